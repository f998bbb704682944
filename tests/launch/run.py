#!/usr/bin/env python3
"""Several ranks on one machine: the losses of one device, one sentence when a rank dies, nothing left behind.

usage: run.py HETRUN [unittest arguments]
"""
import array
import base64
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import leftovers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 60
RANKS = 5
SECRET = 'a secret of more than sixteen bytes'


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


def clients_of(port):
    """How many connections to a port of 127.0.0.1 stand."""
    there = f'0100007F:{int(port):04X}'
    lines = [line.split() for line in pathlib.Path('/proc/net/tcp').read_text().splitlines()[1:]]
    return sum(line[2] == there and line[3] == '01' for line in lines)


def last_words(err):
    """Why a run ended, in the last sentence that says so."""
    return ([line for line in err.splitlines() if 'hetrun: ' in line] or [''])[-1]


def suspects(sentence):
    """The ranks that a sentence says are dead, silent or missing."""
    which = r'rank (\d+)(?: on [^ ]+)?(?: \([^)]*\))?,? '
    said = (r'(?:has not arrived|began it and fell silent|is gone|was lost|did not join|was killed|who served the store, is gone'
            r'|who serves the store)')
    return {int(rank) for words in (which + said, r'missing: rank (\d+)') for rank in re.findall(words, sentence)}


def own_name_is_loopback():
    try:
        return socket.gethostbyname(socket.gethostname()) == '127.0.0.1'
    except OSError:
        return False


class Case(unittest.TestCase):
    def setUp(self):
        self.addCleanup(lambda watch: self.assertEqual(watch.found(), []), leftovers.Watch())
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'text.txt').write_text(TEXT)
        (self.folder / 'lopsided.lua').write_text((HERE / 'lopsided.lua').read_text())

    def start(self, *words, under=(), **environment):
        return subprocess.Popen([*under, HETRUN, *map(str, words)], cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})

    def by_hand(self, world, *words, recipe='lopsided.lua', **environment):
        """Ranks as on machines of their own: no launcher watches them."""
        common = {'WORLD_SIZE': str(world), 'OMP_NUM_THREADS': '1', **environment}
        ranks = [self.start(recipe, *words, RANK=str(rank), LOCAL_RANK=str(rank), **common)
                 for rank in range(world)]
        self.addCleanup(lambda: [rank.kill() for rank in ranks])
        return ranks

    def at_rank_0(self):
        """What ranks need to find each other at the first one."""
        return {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': free_port(), 'HETRUN_SECRET': SECRET}

    def two_ranks(self, *words):
        """Exit codes and messages of two ranks, each started with its own words."""
        where = self.at_rank_0()
        ranks = [self.start(*words[rank], WORLD_SIZE='2', RANK=str(rank), LOCAL_RANK=str(rank), **where)
                 for rank in (0, 1)]
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        return [(rank.returncode, err) for rank, (_, err) in zip(ranks, outputs)]

    def hetrun(self, *words, code=0):
        process = self.start(*words)
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, code, f'{words}\n{out}\n{err}')
        return out, err

    def losses(self, *words):
        metrics = self.folder / 'metrics.jsonl'
        self.hetrun(*words, '--quiet', f'--metrics={metrics}')
        return self.read_losses(metrics)

    def start_etcd(self, folder='etcd'):
        """The rendezvous of an etcd that ends with the test."""
        client, peer = (f'http://127.0.0.1:{free_port()}' for _ in range(2))
        etcd = subprocess.Popen(['etcd', '--name', 'one', '--data-dir', self.folder / folder, '--unsafe-no-fsync',
                                 '--listen-client-urls', client, '--advertise-client-urls', client,
                                 '--listen-peer-urls', peer, '--initial-advertise-peer-urls', peer,
                                 '--initial-cluster', f'one={peer}'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(etcd.wait)
        self.addCleanup(etcd.kill)
        return client.replace('http', 'etcd')

    def until(self, condition, sentence):
        until = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), until, sentence)
            time.sleep(0.005)

    def until_they_met(self, rendezvous):
        """Wait for the roster of the ranks in etcd."""
        def has_roster():
            code = lambda text: base64.b64encode(text.encode()).decode()
            question = {'key': code('hetrun/'), 'range_end': code('hetrun0'), 'keys_only': True}
            try:
                with urllib.request.urlopen(rendezvous.replace('etcd', 'http') + '/v3/kv/range',
                                            json.dumps(question).encode(), timeout=10) as reply:
                    keys = [base64.b64decode(kv['key']) for kv in json.load(reply).get('kvs', [])]
            except OSError:
                return False
            return any(key.endswith(b'/roster') for key in keys)
        self.until(has_roster, 'the ranks do not meet')

    def assert_close(self, one, several, tolerance):
        self.assertEqual(len(one), len(several))
        for a, b in zip(one, several):
            self.assertAlmostEqual(a, b, delta=tolerance * abs(a))

    def read_losses(self, metrics):
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [line.get('loss', line.get('validation_loss')) for line in lines]

    def children_of(self, process):
        """The ranks' processes, by rank."""
        found = {}
        for entry in pathlib.Path('/proc').glob('[0-9]*'):
            try:
                if f'\nPPid:\t{process.pid}\n' not in (entry / 'status').read_text():
                    continue
                variables = (entry / 'environ').read_bytes().split(b'\0')
            except OSError:
                continue
            ranks = [int(v[5:]) for v in variables if v.startswith(b'RANK=')]
            if ranks:
                found[ranks[0]] = int(entry.name)
        return found

    def wait_for_ranks(self, process, count):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            children = self.children_of(process)
            if len(children) == count:
                return children
            time.sleep(0.01)
        self.fail('the ranks did not start')

    def assert_gone(self, pids):
        until = time.monotonic() + 60
        while any(pathlib.Path(f'/proc/{pid}').exists() for pid in pids):
            self.assertLess(time.monotonic(), until, 'a rank is left')
            time.sleep(0.01)


class Training(Case):
    def test_a_lopsided_plan_gives_the_losses_of_one_device(self):
        alone = self.losses('lopsided.lua')
        self.assertGreater(len(alone), 4)
        for schedule in ('1f1b', 'gpipe', 'split_backward'):
            spread = self.losses('--workers', RANKS, 'lopsided.lua', '--spread', f'--schedule={schedule}')
            self.assert_close(alone, spread, 1e-5)

    def test_ranks_that_share_each_layer_give_the_losses_of_one_device(self):
        alone = self.losses('lopsided.lua')
        for words in ([], ['--sharded', '--schedule=gpipe']):
            spread = self.losses('--workers', 6, 'lopsided.lua', '--tensor', *words)
            self.assert_close(alone, spread, 1e-5)

    def test_stages_that_share_their_layers_differently_give_the_losses_of_one_device(self):
        alone = self.losses('lopsided.lua')
        for words in ([], ['--sharded', '--schedule=split_backward']):
            spread = self.losses('--workers', 6, 'lopsided.lua', '--mixed', *words)
            self.assert_close(alone, spread, 1e-5)

    def test_the_plans_of_the_page_give_the_losses_of_one_device(self):
        page = (ROOT / 'recipes' / 'guide' / 'plans.md').read_text()
        plans = [text for text in re.findall(r'```lua\n(.*?)```', page, re.S) if text.startswith('het.plan')]
        self.assertEqual(len(plans), 4)
        for plan in plans:
            with self.subTest(plan=plan):
                microbatch = int(re.search(r'microbatch = (\d+)', plan)[1])
                batch = microbatch * sum(int(count) for count in re.findall(r'microbatches = (\d+)', plan))
                (self.folder / 'page.lua').write_text(f"""local het = require "het"
local opt = het.options {{ spread = {{ false, "run the plan" }} }}
local corpus = het.data.text {{ path = "text.txt", tokenizer = "char", holdout = 0 }}
return het.train {{
  model = het.nn.gpt {{ vocab = corpus.vocab, context = 16, width = 32, layers = 6, heads = 4 }},
  data = corpus, batch = {batch}, steps = 6, optimizer = het.optim.adamw {{ lr = 3e-3, clip = 0.5 }},
  plan = opt.spread and {plan} or nil,
}}
""")
                devices = sum(int(last or first) - int(first) + 1 for first, last in re.findall(r'"\w:(\d)(?:-(\d))?"', plan))
                self.assert_close(self.losses('page.lua'), self.losses('--workers', devices, 'page.lua', '--spread'), 1e-5)

    def test_a_run_goes_on_by_other_plans_with_its_state(self):
        text = """local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local opt = het.options { change = { false, "go on by other plans" }, wrong = { false, "by one of other devices" } }
local corpus = data.text { path = "text.txt", tokenizer = "char", holdout = 0.1 }
local stage = het.stage
local plans = {
  [3] = het.plan { tensor = 2, microbatch = 2, sharded_optimizer = true,
    het.pipeline { microbatches = 3, stage { "a:0-1" } }, het.pipeline { microbatches = 1, stage { "a:2-3" } } },
  [5] = het.plan { microbatch = 1, schedule = "gpipe",
    het.pipeline { microbatches = 5, stage { "a:3", layers = 1 }, stage { "a:1", layers = 2 }, stage { "a:0" } },
    het.pipeline { microbatches = 3, stage { "a:2" } } },
  [6] = het.plan { tensor = { 3, 1 }, microbatch = 4,
    het.pipeline { microbatches = 2, stage { "a:2-3", layers = 2 }, stage { "a:0-1" } } },
}
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = 32, layers = 3, heads = 4, dropout = 0.1 },
  data = corpus,
  batch = 8, steps = 10, optimizer = optim.adamw { lr = 3e-3, clip = 0.5 }, evaluate = { every = 2, batches = 2 },
  on_step = function(run, step)
    if opt.wrong then run:use_plan(het.plan { microbatch = 8, het.pipeline { microbatches = 1, stage { "a:0" } } }) end
    if opt.change and plans[step.step] then run:use_plan(plans[step.step]) end
  end,
}
"""
        (self.folder / 'changing.lua').write_text(text)
        alone = self.losses('changing.lua')
        self.assertEqual(len(alone), 15)
        self.assert_close(alone, self.losses('--workers', 4, 'changing.lua', '--change'), 1e-5)
        _, err = self.hetrun('--workers', 4, 'changing.lua', '--wrong', code=2)
        self.assertIn('the plan is for 1 devices, 4 ranks are here', err)

    def test_sessions_give_back_what_they_took_whatever_the_collector_does(self):
        (self.folder / 'sessions.lua').write_text("""local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
collectgarbage "stop"
local corpus = data.text { path = "text.txt", tokenizer = "char", holdout = 0.1 }
local stage = het.stage
local plans = {
  het.plan { tensor = 2, microbatch = 8, het.pipeline { microbatches = 2, stage { "a:0-1" } } },
  het.plan { microbatch = 8, schedule = "gpipe", het.pipeline { microbatches = 2, stage { "a:1" }, stage { "a:0" } } },
  het.plan { microbatch = 4, sharded_optimizer = true, het.pipeline { microbatches = 3, stage { "a:0" } },
    het.pipeline { microbatches = 1, stage { "a:1" } } },
}
local function use(step)
  local file = io.open "/proc/self/status"
  local status = file:read "*a"
  file:close()
  local list = io.popen(("ls /proc/%s/fd | wc -l"):format(status:match "Pid:%s*(%d+)"))
  local descriptors = list:read "*n"
  list:close()
  file = io.open("use." .. os.getenv "RANK", "a")
  file:write(("%d %d %d %d\\n"):format(step, descriptors, status:match "Threads:%s*(%d+)", status:match "RssAnon:%s*(%d+)"))
  file:close()
end
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 128, width = 128, layers = 3, heads = 4 },
  data = corpus, batch = 16, steps = 30, optimizer = optim.adamw { lr = 3e-3 }, evaluate = { every = 2, batches = 1 },
  on_step = function(run, step)
    use(step.step)
    run:use_plan(plans[step.step % #plans + 1])
  end,
}
""")
        self.hetrun('--trust', '--workers', 2, 'sessions.lua')
        for rank in range(2):
            use = [[int(word) for word in line.split()] for line in (self.folder / f'use.{rank}').read_text().splitlines()]
            self.assertEqual([step for step, *_ in use], list(range(1, 31)))
            settled, last = use[8], use[29]   # the same plan
            # A thread may have a file of /proc open for a moment: the fewest of three rounds of plans.
            self.assertLessEqual(min(row[1] for row in use[21:]), min(row[1] for row in use[:9]), f'descriptors: {use}')
            self.assertLessEqual(last[2], settled[2], f'threads: {use}')
            # What describes a program, 1 to 2 MiB, goes with the collector; the 20 MiB and more that it works in do not.
            self.assertLess(last[3] - settled[3], 21 * 4_000, f'KiB of memory: {use}')

    def test_layers_that_say_how_they_are_cut_give_the_losses_of_one_device(self):
        text = """local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local opt = het.options { hints = { false, "cut the second product by its rows" }, wide = { 0, "a dimension" } }
local second = nn.linear(24, 12)
if opt.hints then second = second:shard { weight = { model = opt.wide }, bias = { model = "replicated" } } end
local inputs, labels = het.randn({ 32, 8 }, "f32", 1), het.randn({ 32, 12 }, "f32", 2)
return het.train {
  model = nn.sequential { nn.linear(8, 24), nn.gelu(), second }, data = data.pairs { inputs = inputs, labels = labels, holdout = 0 },
  batch = 8, steps = 10, optimizer = optim.sgd { lr = 0.05 },
  plan = opt.hints and het.plan { tensor = 2, microbatch = 4, het.pipeline { microbatches = 2, het.stage { "a:0-1" } } }
    or nil,
}
"""
        (self.folder / 'hinted.lua').write_text(text)
        alone = self.losses('hinted.lua')
        _, err = self.hetrun('--workers', 2, 'hinted.lua', '--hints')
        self.assertRegex(err, r'as `sharding` and `shard` say: devices that share layers send each other [0-9.]+ \w+ more')
        self.assert_close(alone, self.losses('--workers', 2, 'hinted.lua', '--hints'), 1e-5)
        (self.folder / 'other.lua').write_text(text.replace('weight = { model = opt.wide }, ', ''))
        for code, err in self.two_ranks(['hinted.lua', '--hints'], ['other.lua', '--hints']):
            self.assertEqual(code, 2, err)
            self.assertIn('has the recipe', err)
        _, err = self.hetrun('hinted.lua', '--hints', '--wide=2', code=2)
        self.assertIn('hinted.lua:5: nn.linear:shard { weight = ... }: model = 2; its shape is [12, 24]: a dimension from 0 '
                      'to 1, or "replicated"', err)

    def test_plans_that_say_how_stages_are_cut_give_the_losses_of_one_device(self):
        text = """local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local opt = het.options { cut = { "", "which sharding" } }
local shardings = {
  batch = { inputs = { inputs = 0, labels = 0 } },
  mixed = { state = { ["*.weight"] = 0, ["*.bias"] = "replicated" }, inputs = { inputs = 0 } },
  mesh = { mesh = { data = 2, model = { 3, 1 } }, inputs = { inputs = { data = 0 }, labels = { data = 0 } } },
  tile = { mesh = { { "y", 2 }, { "x", 2 } }, state = { ["*.weight"] = { y = 0, x = 1 } } },
  misspelt = { state = { ["linear_2.wieght"] = 0 } },
}
local inputs, labels = het.randn({ 32, 8 }, "f32", 1), het.randn({ 32, 12 }, "f32", 2)
return het.train {
  model = nn.sequential { nn.linear(8, 24), nn.gelu(), nn.linear(24, 12) },
  data = data.pairs { inputs = inputs, labels = labels, holdout = 0 }, batch = 16, steps = 10,
  optimizer = optim.adamw { lr = 0.01 },
  plan = opt.cut ~= "" and het.plan { tensor = not shardings[opt.cut].mesh and { 3, 1 } or nil, microbatch = 8,
    sharding = shardings[opt.cut],
    het.pipeline { microbatches = 2, het.stage { shardings[opt.cut].mesh and "a:0-3" or "a:0-1" } } } or nil,
}
"""
        (self.folder / 'cut.lua').write_text(text)
        alone = self.losses('cut.lua')
        for cut in ('batch', 'mixed'):
            self.assert_close(alone, self.losses('--workers', 2, 'cut.lua', f'--cut={cut}'), 1e-5)
        for cut in ('mesh', 'tile'):
            self.assert_close(alone, self.losses('--workers', 4, 'cut.lua', f'--cut={cut}'), 1e-5)
        _, err = self.hetrun('--workers', 4, 'cut.lua', '--cut=mesh')
        self.assertIn('sharding = { mesh = { data = 2, model = { 3, 1 } }, inputs = { ["inputs"] = { data = 0 }, '
                      '["labels"] = { data = 0 } } }', err)
        _, err = self.hetrun('--workers', 4, 'cut.lua', '--cut=tile')
        self.assertIn('mesh = { { "y", 2 }, { "x", 2 } }', err)
        _, err = self.hetrun('--workers', 2, 'cut.lua', '--cut=mixed')
        self.assertIn('sharding = { state = { ["*.bias"] = "replicated", ["*.weight"] = 0 }, inputs = { ["inputs"] = 0 } }', err)
        _, err = self.hetrun('--workers', 2, 'cut.lua', '--cut=misspelt', code=2)
        self.assertIn("state: 'linear_2.wieght' matches nothing of the model; did you mean 'linear_2.weight'?", err)

    def test_weights_rounded_stochastically_are_the_same_on_all_ranks(self):
        words = ['--precision=bf16', '--rounding=stochastic', '--steps=6']
        alone = self.losses('lopsided.lua', *words)
        self.assertNotEqual(alone, self.losses('lopsided.lua', '--precision=bf16', '--steps=6'))
        for ranks, plan in ((RANKS, ['--spread', '--sharded']), (6, ['--tensor']), (3, [])):
            self.assert_close(alone, self.losses('--workers', ranks, 'lopsided.lua', *plan, *words), 1e-3)

    def test_ranks_without_a_plan_share_the_batch(self):
        alone, spread = self.losses('lopsided.lua'), self.losses('--workers', 4, 'lopsided.lua')
        self.assertGreater(len(alone), 4)
        self.assert_close(alone, spread, 1e-5)

    def weights(self, folder):
        """Tensors of a saved model: name -> floats."""
        data = (self.folder / folder / 'model.safetensors').read_bytes()
        size = int.from_bytes(data[:8], 'little')
        header = json.loads(data[8:8 + size])
        found = {}
        for name, about in header.items():
            if name != '__metadata__':
                begin, end = about['data_offsets']
                self.assertEqual(about['dtype'], 'F32')
                found[name] = array.array('f', data[8 + size + begin:8 + size + end])
        return found

    def assert_same_weights(self, one, several):
        alone, spread = self.weights(one), self.weights(several)
        self.assertEqual(alone.keys(), spread.keys())
        for name, values in alone.items():
            self.assertLess(max(abs(a - b) for a, b in zip(values, spread[name])), 1e-5, name)

    def test_the_first_rank_saves_the_whole_model_and_all_go_on_from_it(self):
        self.hetrun('lopsided.lua', '--save=alone')
        for name, ranks, words in (('spread', RANKS, ['--spread']), ('sharded', RANKS, ['--spread', '--sharded']),
                                   ('tensor', 6, ['--tensor', '--sharded']),
                                   ('mixed', 6, ['--mixed', '--sharded'])):
            common = ['--workers', ranks, 'lopsided.lua', f'--save={name}', *words]
            self.hetrun(*common, '--stop=7', code=2)
            self.hetrun(*common)
            self.assert_same_weights('alone', name)

    def test_the_first_rank_writes_text_with_the_whole_model(self):
        alone, _ = self.hetrun('lopsided.lua')
        for ranks, words in ((RANKS, '--spread'), (6, '--tensor'), (6, '--mixed')):
            spread, _ = self.hetrun('--workers', ranks, 'lopsided.lua', words)
            self.assertEqual(alone.splitlines()[-1], spread.splitlines()[-1])

    def test_ranks_started_by_hand_meet(self):
        for rank in self.by_hand(2, '--json', **self.at_rank_0()):
            out, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 0, out + err)

    def test_workers_are_started_within_a_task_of_slurm(self):
        process = self.start('--workers', 2, 'lopsided.lua', '--steps=2', SLURM_STEP_ID='0', SLURM_PROCID='0', SLURM_NTASKS='2')
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + err)

    def test_nccl_gets_the_interface_that_was_named(self):
        recipe, head = (self.folder / 'lopsided.lua').read_text(), 'on_step = function(run, step)\n'
        self.assertEqual(recipe.count(head), 1)
        (self.folder / 'nccl.lua').write_text(recipe.replace(head, head + """
    print("NCCL takes", os.getenv "NCCL_SOCKET_IFNAME", os.getenv "NCCL_SOCKET_FAMILY")"""))
        for words, variables, expected in ((['--interface=lo'], {}, '=lo\tAF_INET'), ([], {}, 'nil\tnil'),
                                       (['--interface=lo'], {'NCCL_SOCKET_IFNAME': 'eth7'}, 'eth7\tnil')):
            for rank in self.by_hand(2, '--steps=1', '--trust', *words, recipe='nccl.lua', **variables, **self.at_rank_0()):
                out, err = rank.communicate(timeout=120)
                self.assertEqual(rank.returncode, 0, out + err)
                self.assertIn(f'NCCL takes\t{expected}\n', out)

    def test_each_rank_reads_of_a_saved_run_what_it_holds(self):
        self.hetrun('lopsided.lua', '--save=first', '--stop=7', code=2)
        saved = {}
        for part in ('model', 'training'):
            header = (self.folder / 'first' / f'{part}.safetensors').read_bytes()
            about = json.loads(header[8:8 + int.from_bytes(header[:8], 'little')])
            saved.update({name: tensor['data_offsets'][1] - tensor['data_offsets'][0]
                          for name, tensor in about.items() if name != '__metadata__'})
        # The first and the last stage of a pipeline both have the table of tokens, and what belongs to it.
        table = sum(size for name, size in saved.items() if 'tokens.weight' in name or 'wte.weight' in name)
        self.assertGreater(table, 0)
        out, _ = self.hetrun('--workers', RANKS, 'lopsided.lua', '--spread', '--save=first', '--json', '--quiet')
        read = [rank['restored_bytes'] for rank in json.loads(out.splitlines()[-1])['ranks']]
        for pipeline in (read[:3], read[3:]):
            self.assertEqual(sum(pipeline), sum(saved.values()) + table)
        self.assertLess(max(read[:3]), 0.6 * sum(saved.values()))

    def test_the_first_rank_finds_its_own_store_where_the_name_leads_elsewhere(self):
        where = self.at_rank_0()
        ranks = [self.start('lopsided.lua', '--steps=2', '--interface=127.0.0.2', WORLD_SIZE='2', RANK=str(rank),
                            LOCAL_RANK=str(rank), **{**where, 'MASTER_ADDR': address})
                 for rank, address in enumerate(('127.0.0.1', '127.0.0.2'))]
        self.addCleanup(lambda: [rank.kill() for rank in ranks])
        for rank in ranks:
            out, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 0, out + err)

    @unittest.skipUnless(own_name_is_loopback(), 'the name of this machine is no alias of localhost')
    def test_a_name_that_no_other_machine_reaches_is_said(self):
        name = socket.gethostname()
        ranks = self.by_hand(2, '--steps=2', **{**self.at_rank_0(), 'MASTER_ADDR': name})
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
        self.assertIn(f'MASTER_ADDR = {name} is 127.0.0.1 here, which no other machine reaches', errors[0])
        self.assertNotIn('MASTER_ADDR', errors[1])

    @unittest.skipUnless(shutil.which('etcd'), 'no etcd here (Debian: etcd-server)')
    def test_a_recipe_trains_the_same_model_by_uneven_stages_whose_layers_two_ranks_share(self):
        recipe = (ROOT / 'recipes' / 'gpt_text.lua').read_text()
        (self.folder / 'alone.lua').write_text(recipe)
        plan = """  plan = het.plan { tensor = 2, microbatch = 2,
    het.pipeline { microbatches = 4, het.stage { "a:0-1", layers = 4 }, het.stage { "a:2-3", recompute = true } },
    het.pipeline { microbatches = 2, het.stage { "b:0-1" } } },
"""
        head = 'return het.train {\n'
        self.assertEqual(recipe.count(head), 1)
        (self.folder / 'spread.lua').write_text(recipe.replace(head, head + plan))
        (self.folder / 'text.txt').write_text((ROOT / 'LICENSE').read_text())
        words = ['--text=text.txt', '--steps=20', '--every=10', '--write=20', '--threads=1']
        metrics = self.folder / 'spread.jsonl'
        ranks = self.by_hand(6, *words, '--quiet', f'--rendezvous={self.start_etcd()}', '--interface=127.0.0.1',
                             f'--metrics={metrics}', recipe='spread.lua', HETRUN_SECRET=SECRET)
        for rank in ranks:
            out, err = rank.communicate(timeout=300)
            self.assertEqual(rank.returncode, 0, out + err)
        alone = self.losses('alone.lua', *words)
        self.assertEqual(len(alone), 22)
        self.assert_close(alone, self.read_losses(metrics), 1e-4)

    @unittest.skipUnless(shutil.which('etcd'), 'no etcd here (Debian: etcd-server)')
    def test_ranks_meet_in_etcd(self):
        secret = self.folder / 'secret'
        secret.write_text(SECRET)
        secret.chmod(0o600)
        metrics = self.folder / 'spread.jsonl'
        ranks = self.by_hand(RANKS, '--spread', '--quiet', f'--rendezvous={self.start_etcd()}',
                             '--interface=127.0.0.1', f'--secret-file={secret}', f'--metrics={metrics}')
        for rank in ranks:
            out, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 0, out + err)
        self.assert_close(self.losses('lopsided.lua'), self.read_losses(metrics), 1e-5)


def clock_ahead(seconds):
    """The command that starts another with a clock of its own, as hosts have."""
    return ['unshare', '--user', '--map-root-user', '--time', '--monotonic', str(seconds), '--fork', '--kill-child']


def clocks_can_be_set():
    return shutil.which('unshare') and subprocess.run([*clock_ahead(1), 'true'], capture_output=True, check=False).returncode == 0


class Traces(Case):
    PLAN = """plan = het.plan { microbatch = 2,
  het.pipeline { microbatches = 4, het.stage { "a:0", layers = 2 }, het.stage { "a:1" } },
  het.pipeline { microbatches = 2, het.stage { "b:0" } } }
if opt.spread then"""
    LINE = re.compile(r'  rank (\d)  computed ([0-9.]+) ms \(([0-9.]+) ms before the update\), bubbles ([0-9.]+) ms '
                      r'\((\d+) % of the step\), waited for collectives ([0-9.]+) ms \((\d+) %\), sent (\S+ \S+)')

    def run_traced(self, under):
        """A traced run of three ranks, rank r started by the command under(r): events, report, results."""
        recipe = (self.folder / 'lopsided.lua').read_text()
        self.assertEqual(recipe.count('if opt.spread then'), 1)
        (self.folder / 'three.lua').write_text(recipe.replace('if opt.spread then', self.PLAN))
        where = self.at_rank_0()
        ranks = [self.start('three.lua', '--steps=5', '--trace=step.json', '--json', under=under(rank), RANK=str(rank),
                            LOCAL_RANK=str(rank), WORLD_SIZE='3', OMP_NUM_THREADS='1', **where) for rank in range(3)]
        self.addCleanup(lambda: [rank.kill() for rank in ranks])
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        for rank, (out, err) in zip(ranks, outputs):
            self.assertEqual(rank.returncode, 0, out + err)
        out, err = outputs[0]
        return (json.loads((self.folder / 'step.json').read_text())['traceEvents'], err,
                json.loads(out.splitlines()[-1]))

    def spans_of(self, events, rank):
        return sorted((e for e in events if e['ph'] == 'X' and e['pid'] == rank), key=lambda e: e['ts'])

    def sums_of(self, spans):
        """Milliseconds of a rank: computed, of that before the update, bubbles, waits for collectives."""
        totals = {'compute': 0, 'bubble': 0, 'wait': 0}
        before, trains = None, False
        for span in spans:
            if trains and span['cat'] == 'update' and before is None:
                before = totals['compute']
            trains = trains or span['cat'] == 'forward'
            totals[span['cat'] if span['cat'] in totals else 'compute'] += span['dur'] / 1e3
        return totals['compute'], before, totals['bubble'], totals['wait']

    def test_a_trace_shows_what_all_ranks_computed_and_waited_for(self):
        events, err, results = self.run_traced(lambda rank: ())
        names = {e['pid']: e['args']['name'] for e in events if e['name'] == 'process_name'}
        self.assertEqual(names, {0: 'rank 0, a:0', 1: 'rank 1, a:1', 2: 'rank 2, b:0'})
        step = max(e['ts'] + e['dur'] for e in events if e['ph'] == 'X') / 1e3
        self.assertAlmostEqual(step, float(re.search(r'one step, ([0-9.]+) ms:', err)[1]), delta=0.0051)
        self.assertEqual(min(e['ts'] for e in events if 'ts' in e), 0)
        lines = {int(line[0]): line for line in self.LINE.findall(err)}
        self.assertEqual(sorted(lines), [0, 1, 2], err)
        for rank in range(3):
            spans = self.spans_of(events, rank)
            for one, next_one in zip(spans, spans[1:]):
                self.assertLessEqual(one['ts'] + one['dur'], next_one['ts'] + 0.01, f'{one} {next_one}')
            self.assertLessEqual({'forward', 'backward', 'update', 'wait'}, {span['cat'] for span in spans})
            computed, before, bubbles, waited = self.sums_of(spans)
            for total, words in ((computed, lines[rank][1]), (before, lines[rank][2]), (bubbles, lines[rank][3]),
                                 (waited, lines[rank][5])):
                self.assertAlmostEqual(total, float(words), delta=0.0051)
            self.assertLess(0, before)
            self.assertLess(before, computed)
            for part, words in ((bubbles, lines[rank][4]), (waited, lines[rank][6])):
                self.assertAlmostEqual(100 * part / step, float(words), delta=0.501)
            for span in spans:
                self.assertEqual(span['cat'] == 'bubble', span['name'].startswith('bubble: '), span)
                self.assertEqual(span['cat'] == 'wait', span['name'].startswith('wait for '), span)
            self.assertEqual(bubbles > 0, rank < 2)   # rank 2 is a pipeline by itself
            sent = sum(e['args']['bytes'] for e in events
                       if e['ph'] == 'b' and e['pid'] == rank and not e['name'].startswith('receive'))
            self.assertEqual(sent, results['ranks'][rank]['sent_bytes'])
        slowest = re.search(r'  (rank (\d)) \((\S+)\) computed longest', err)
        self.assertEqual(f'{slowest[1]}, {slowest[3]}', names[int(slowest[2])])
        self.assertEqual(float(lines[int(slowest[2])][1]), max(float(line[1]) for line in lines.values()))
        begun = [(e['cat'], e['id']) for e in events if e['ph'] == 'b']
        self.assertEqual(len(begun), len(set(begun)))

    def test_a_run_reports_the_bubbles_of_each_rank(self):
        _, err, results = self.run_traced(lambda rank: ())
        self.assertEqual([rank['device'] for rank in results['ranks']], ['a:0', 'a:1', 'b:0'])
        for rank in results['ranks']:
            self.assertEqual(rank['bubble_s'] > 0, rank['rank'] < 2)
            self.assertLessEqual(rank['bubble_s'], rank['waited_s'])
            share = rank['bubble_s'] / (rank['computed_s'] + rank['waited_s'])
            self.assertAlmostEqual(rank['bubble_share'], share, delta=1e-6)
            line = re.search(rf'rank {rank["rank"]}: a step computes .* and waits .* \((\d+) %; bubbles (\d+) %\), sends', err)
            self.assertTrue(line, err)
            self.assertAlmostEqual(int(line[2]), 100 * share, delta=0.51)
        longest = max(results['ranks'], key=lambda rank: rank['computed_s'])
        self.assertIn(f'; the slowest ({longest["device"]})', err)

    @unittest.skipUnless(clocks_can_be_set(), 'no time namespaces for users here')
    def test_a_trace_has_one_clock_where_hosts_have_their_own(self):
        events, _, _ = self.run_traced(lambda rank: clock_ahead(1000 * rank) if rank else ())
        begun = {(e['pid'], e['id']): e for e in events if e['ph'] == 'b'}
        ended = {(e['pid'], e['id']): e for e in events if e['ph'] == 'e'}
        slack = 50e3   # microseconds: half of what asking for the time may have taken
        messages = {}
        for key, event in begun.items():
            kind, what = event['name'].split(': ', 1)
            messages.setdefault((what, event['args'].get('micro-batch')), {}).setdefault(kind, []).append(
                (event['ts'], ended[key]['ts']))
        checked = 0
        for parts in messages.values():
            # Nothing has come before it was sent, and no sum is there before all have given theirs.
            for kinds in (('send', 'receive'), ('all-reduce', 'all-reduce')):
                if all(kind in parts for kind in kinds):
                    checked += 1
                    self.assertLess(max(t for t, _ in parts[kinds[0]]), min(t for _, t in parts[kinds[1]]) + slack)
        self.assertGreater(checked, 4)


class Mistakes(Case):
    def test_a_plan_for_more_devices(self):
        _, err = self.hetrun('lopsided.lua', '--spread', code=2)
        self.assertIn('the plan is for 5 devices, this process is alone; start the recipe with --workers 5', err)
        _, err = self.hetrun('--workers', 3, 'lopsided.lua', '--spread', code=2)
        self.assertEqual(err.count('the plan is for 5 devices, 3 ranks are here'), 1, err)

    def test_a_mistake_of_the_recipe_is_reported_once(self):
        _, err = self.hetrun('--workers', 3, 'lopsided.lua', '--stepz=3', code=2)
        self.assertEqual(err.count('did you mean --steps?'), 1, err)

    def test_times_and_places_that_cannot_be(self):
        for word, sentence in (('--timeout=nans', "timeout = 'nans' is not a time such as"),
                               ('--timeout=1e300s', 'timeout = 1e300s is above 1000000 s, the most'),
                               ('--warn-after=1us', 'warn_after = 1us is below 0.1 s, the least'),
                               ('--rendezvous=here', 'rendezvous = "here" is no place to meet'),
                               ('--rendezvous=etcd://head', "'head' is no endpoint")):
            process = self.start('lopsided.lua', word, WORLD_SIZE='2', RANK='0', LOCAL_RANK='0', **self.at_rank_0())
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 2, err)
            self.assertIn(sentence, err)

    def test_ranks_that_run_different_recipes(self):
        where = self.at_rank_0()
        ranks = [self.start('lopsided.lua', f'--steps={10 + rank}', WORLD_SIZE='2', RANK=str(rank), LOCAL_RANK=str(rank),
                            **where) for rank in (0, 1)]
        for rank in ranks:
            _, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 2, err)
            self.assertIn('recipe', err)
            self.assertRegex(err, rf'rank [01] on {re.escape(socket.gethostname())} has the recipe')

    def test_a_rank_0_that_is_not_there(self):
        where = self.at_rank_0()
        rank = self.start('lopsided.lua', '--timeout=1s', WORLD_SIZE='2', RANK='1', LOCAL_RANK='1', **where)
        _, err = rank.communicate(timeout=120)
        self.assertEqual(rank.returncode, 75, err)
        self.assertIn(f'cannot connect to 127.0.0.1:{where["MASTER_PORT"]}: Connection refused; rank 0 should serve the store '
                      'there', err)

    def test_a_rank_with_another_secret_is_reported_by_both_sides(self):
        where = self.at_rank_0()
        first, second = (self.start('lopsided.lua', '--warn-after=1s', WORLD_SIZE='2', RANK=str(rank), LOCAL_RANK=str(rank),
                                    **{**where, 'HETRUN_SECRET': secret}) for rank, secret in enumerate((SECRET, SECRET + '?')))
        self.addCleanup(lambda: (first.kill(), first.communicate()))
        _, err = second.communicate(timeout=120)
        self.assertEqual(second.returncode, 2, err)
        self.assertIn('its shared secret is another one', err)
        said = next((line for line in first.stderr if 'missing: rank 1; the store turned away' in line), '')
        self.assertIn('who came from 127.0.0.1 with another secret', said)

    def test_ranks_that_wait_in_vain_for_another_say_the_same(self):
        common = {'WORLD_SIZE': '3', **self.at_rank_0()}
        ranks = [self.start('lopsided.lua', '--timeout=5s', RANK=str(rank), LOCAL_RANK=str(rank), **common)
                 for rank in (0, 1)]
        words = []
        for rank in ranks:
            _, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 75, err)
            words.append(last_words(err))
        self.assertIn('2 of 3 members of run ', words[0])
        self.assertIn('missing: rank 2', words[0])
        self.assertEqual(words[0], words[1])

    def test_a_store_that_does_not_answer_is_waited_for_as_long_as_ranks_are(self):
        where = self.at_rank_0()
        first = self.start('lopsided.lua', WORLD_SIZE='2', RANK='0', LOCAL_RANK='0', **where)
        self.addCleanup(first.communicate)
        self.addCleanup(first.kill)
        self.until(lambda: clients_of(where['MASTER_PORT']) >= 3, 'the first rank serves no store')
        first.send_signal(signal.SIGSTOP)
        second = self.start('lopsided.lua', '--timeout=3s', WORLD_SIZE='2', RANK='1', LOCAL_RANK='1', **where)
        _, err = second.communicate(timeout=120)
        self.assertEqual(second.returncode, 75, err)
        self.assertIn('did not answer within 3000 ms', err)

    def test_ranks_whose_recipes_differ_in_anything_that_counts(self):
        text = (self.folder / 'lopsided.lua').read_text()
        changes = [('dropout = 0.1', 'dropout = 0.2'), ('data = corpus,', 'data = corpus, seed = 5,'),
                   ('microbatch = 2, steps', 'steps'), ('weight_decay = 0.1', 'weight_decay = 0.2'),
                   ('clip = 0.5', 'clip = 0.5, beta2 = 0.99'), ('clip = 0.5', 'clip = 0.6'),
                   ('warmup = 4', 'warmup = 3'), ('every = opt.every', 'every = 7'),
                   ('save_every = 3', 'save_every = 4'),
                   ('data = corpus,', 'data = corpus, loss = function(y, t, s) return (het.op.cross_entropy(y, t, s)) end,'),
                   ('tokens = 20', 'tokens = 21'), ('"stopped here"', '"stopped elsewhere"')]
        for old, new in changes:
            self.assertEqual(text.count(old), 1, old)
            (self.folder / 'other.lua').write_text(text.replace(old, new))
            for code, err in self.two_ranks(['lopsided.lua'], ['other.lua']):
                self.assertEqual(code, 2, f'{new}\n{err}')
                self.assertIn('has the recipe', err, new)

    def test_ranks_may_differ_in_what_is_the_machines_own(self):
        recipe = (self.folder / 'lopsided.lua').read_text()
        (self.folder / 'copy.txt').write_text(TEXT)
        (self.folder / 'other.lua').write_text(recipe.replace('"text.txt"', '"copy.txt"'))
        results = self.two_ranks(['lopsided.lua', '--save=one', '--metrics=one.jsonl', '--steps=2'],
                                 ['other.lua', '--save=two', '--threads=1', '--steps=2'])
        for code, err in results:
            self.assertEqual(code, 0, err)

    def test_ranks_with_texts_of_one_size(self):
        recipe = (self.folder / 'lopsided.lua').read_text()
        (self.folder / 'copy.txt').write_text(TEXT.replace('quick', 'kciuq'))
        (self.folder / 'other.lua').write_text(recipe.replace('"text.txt"', '"copy.txt"'))
        for code, err in self.two_ranks(['lopsided.lua'], ['other.lua']):
            self.assertEqual(code, 2, err)
            self.assertIn('has the data', err)


class Launcher(Case):
    def test_the_last_words_of_a_rank_need_no_line_end(self):
        (self.folder / 'dies.lua').write_text(
            'if os.getenv "RANK" == "1" then io.stderr:write("these were my last"); os.exit(3) end\n'
            + (self.folder / 'lopsided.lua').read_text())
        _, err = self.hetrun('--workers', 2, 'dies.lua', '--trust', code=3)
        self.assertIn('[rank 1] these were my last\n', err)

    def test_a_mistake_that_all_ranks_meet_is_reported_once(self):
        # Rank 0 comes upon it last, as on a busy machine, or not at all.
        for seconds in ('1.5', 'math.huge'):
            (self.folder / 'wrong.lua').write_text(
                f'if os.getenv "RANK" == "0" then local start = os.clock() while os.clock() - start < {seconds} do end end\n'
                'require "het".nn.linear(2)\n')
            _, err = self.hetrun('--workers', 3, 'wrong.lua', '--trust', code=2)
            self.assertTrue(err.startswith('hetrun: wrong.lua:2: '), err)
            self.assertEqual(err.count('nn.linear'), 1, err)

    def test_a_rank_that_cannot_be_started_is_told(self):
        # A process may have so many bytes of arguments and variables: here just so many that the launcher can be
        # started, by a short name, and a rank, which has a few variables more, cannot.
        (self.folder / 'h').symlink_to(HETRUN)

        def begin(recipe, ballast):
            many = {f'BALLAST_{i}': 'x' * min(1000, ballast - i) for i in range(0, ballast, 1000)}
            return subprocess.run(['./h', '--workers', '2', recipe], cwd=self.folder, capture_output=True, text=True,
                                  env={'PATH': os.environ['PATH'], **many}, check=False, timeout=120,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20)))

        least, most = 0, 1 << 20
        while most - least > 20:
            middle = (least + most) // 2
            try:
                begin('nowhere1.lua', middle)
                least = middle
            except OSError:
                most = middle
        done = begin('lopsided.lua', least)
        self.assertEqual(done.returncode, 71, done.stderr)
        self.assertIn('cannot start rank 0: Argument list too long', done.stderr)

    def test_ranks_have_no_descriptors_that_they_do_not_use(self):
        process = self.start('--workers', 2, 'lopsided.lua', '--steps=100000')
        children = self.wait_for_ranks(process, 2)
        extra = []
        for descriptor in pathlib.Path(f'/proc/{children[1]}/fd').iterdir():
            with contextlib.suppress(FileNotFoundError):   # closed since: it still opens its libraries
                if int(descriptor.name) > 2 and os.readlink(descriptor) == '/dev/null':
                    extra.append(descriptor.name)
        process.kill()
        process.communicate()
        self.assertEqual(extra, [])


class Leftovers(unittest.TestCase):
    @unittest.skipUnless(leftovers.SHARED_MEMORY.is_dir(), 'no /dev/shm here')
    def test_what_is_left_is_found(self):
        watch = leftovers.Watch()
        listens = 'import socket, time; kept = socket.create_server(("127.0.0.1", 0)); print(flush=True); time.sleep(600)'
        process = subprocess.Popen([sys.executable, '-c', listens], stdout=subprocess.PIPE)
        number, file = tempfile.mkstemp(dir=leftovers.SHARED_MEMORY)
        try:
            process.stdout.readline()
            self.assertEqual([words.split()[0] for words in watch.found(patience=0)], ['process', 'somebody'])
            os.close(number)   # no process has the file open any more
            found = watch.found(patience=0)
            self.assertEqual(found[0], f'{file} is left')
            self.assertIn(f'process {process.pid}: ', found[1])
            self.assertIn('somebody listens at 0100007F:', found[2])
        finally:
            os.unlink(file)
            process.kill()
            process.communicate()
        self.assertEqual(watch.found(), [])


class Interrupts(Case):
    def test_sigterm_has_all_ranks_save_and_leave_whoever_is_told(self):
        metrics = self.folder / 'metrics.jsonl'
        for target in ('the launcher', 'a rank', 'all'):
            metrics.unlink(missing_ok=True)
            folder = target.replace(' ', '_')
            process = self.start('--workers', RANKS, 'lopsided.lua', '--spread', '--steps=100000', f'--save={folder}',
                                 f'--metrics={metrics}')
            children = self.wait_for_ranks(process, RANKS)
            self.until(lambda: metrics.exists() and metrics.stat().st_size > 0, 'no step was reported')
            for pid in {'the launcher': [process.pid], 'a rank': [children[3]],
                        'all': [process.pid, *children.values()]}[target]:
                os.kill(pid, signal.SIGTERM)
            _, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 130, f'{target}\n{err}')
            self.assertIn(f'in {folder}', err)
            self.assertNotIn('hetrun:', err.replace('hetrun: SIGTERM: ending at the next safe point', ''))
            self.assert_gone(children.values())
            steps = int(re.search('stopped and saved after step ([0-9]+)', err)[1])
            self.hetrun('--workers', RANKS, 'lopsided.lua', '--spread', f'--save={folder}', f'--steps={steps + 1}')

    def test_ranks_that_do_not_train_yet_end_at_once(self):
        process = self.start('lopsided.lua', WORLD_SIZE='2', RANK='0', LOCAL_RANK='0', **self.at_rank_0())
        time.sleep(1)   # it waits for rank 1
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, -signal.SIGTERM)


class Deaths(Case):
    def until_it_trains(self, metrics):
        until = time.monotonic() + 60
        while not (metrics.exists() and metrics.stat().st_size > 0):
            self.assertLess(time.monotonic(), until, 'no step was reported')
            time.sleep(0.005)

    # Of a run: what is given to it, whether it trains when a rank dies, within how long after that.
    RUNS = [([], False, 0.4), ([], True, 0.5), (['--sharded', '--schedule=gpipe'], True, 0.5),
            (['--every=1', '--batches=100'], True, 0.5), ([], False, 1.0)]
    # What the others did with the rank when it died, by the words for what they waited for.
    WAITS = [('warm-up', 'form group'), ('forward', "of 'forward "), ('backward', "of 'backward "),
             ('sync', "of 'gradients of "), ('update', "of 'gradient norms'|of 'parameters of "),
             ('loss', "of 'loss'|of 'whether to stop'")]

    def phase_of(self, err, metrics, every):
        """In which part of the run a rank died, by what the others say and what was reported before."""
        steps = [json.loads(line) for line in (metrics.read_text() if metrics.exists() else '').splitlines()]
        waited = next((phase for phase, words in self.WAITS if re.search(words, err)), None)
        if not steps:
            return 'warm-up' if waited else 'rendezvous'
        if 'loss' in steps[-1] and steps[-1]['step'] % every == 0:
            return 'evaluation'
        return waited or 'between two waits'

    def trials(self, count, words, die):
        """Runs that lose a rank at some moment; how many died in which phase."""
        seed = int(os.environ.get('HETRUN_KILL_SEED', '1'))
        chance = random.Random(seed)
        phases, exact = {}, 0
        for trial in range(count):
            own, trains, spread = self.RUNS[trial % len(self.RUNS)]
            metrics = self.folder / f'{trial}.jsonl'
            process = self.start('--workers', RANKS, *words, 'lopsided.lua', '--spread', '--steps=100000',
                                 f'--metrics={metrics}', *own)
            children = self.wait_for_ranks(process, RANKS)
            if trains:
                self.until_it_trains(metrics)
            time.sleep(chance.random() * spread)
            victim = chance.randrange(RANKS)
            err = die(process, children[victim], victim)
            every = 1 if '--every=1' in own else 6
            phase = self.phase_of(err, metrics, every)
            phases[phase] = phases.get(phase, 0) + 1
            where = f'seed {seed}, trial {trial} ({phase}): rank {victim}\n{err}'
            self.assertEqual(process.returncode, 75, where)
            self.assertRegex(err, rf'hetrun: .*\brank {victim}\b', where)
            exact += suspects(last_words(err)) == {victim}
            self.assert_gone(children.values())
        # A rank that times out first closes its connections, and may be what another's last words name.
        print(f'last words that name the dead rank and no other: {exact} of {count}')
        return phases

    def test_a_killed_rank_ends_all_with_one_sentence(self):
        slowest = 0

        def die(process, pid, victim):
            nonlocal slowest
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            _, err = process.communicate(timeout=120)
            slowest = max(slowest, time.monotonic() - killed)
            self.assertIn(f'rank {victim} was killed by signal 9', err)
            return err

        phases = self.trials(int(os.environ.get('HETRUN_KILL_TRIALS', '6')), [], die)
        print(f'kills by phase: {json.dumps(phases, sort_keys=True)}')
        print(f'from the kill to the end of all, at most: {slowest:.3f} s')

    def test_a_stopped_rank_ends_all_within_the_timeout(self):
        def die(process, pid, _):
            os.kill(pid, signal.SIGSTOP)
            try:
                return process.communicate(timeout=120)[1]
            except subprocess.TimeoutExpired:
                states = subprocess.run(['ps', '-eo', 'pid,ppid,stat,etimes,wchan:24,args'], capture_output=True, text=True).stdout
                process.kill()
                self.fail(f'the others do not end; rank {pid} was stopped.\n{states}\n{process.communicate()[1]}')

        trials = int(os.environ.get('HETRUN_STOP_TRIALS', '4'))
        for words in (['--timeout=5s', '--warn-after=1s'], ['--timeout=5s']):
            phases = self.trials(trials // 2, words, die)
            print(f'stops by phase: {json.dumps(phases, sort_keys=True)}')

    def test_ranks_without_a_launcher_notice_a_killed_one(self):
        chance = random.Random(int(os.environ.get('HETRUN_KILL_SEED', '1')))
        slowest, phases = 0, {}
        for trial in range(int(os.environ.get('HETRUN_KILL_TRIALS', '4'))):
            metrics = self.folder / f'{trial}.jsonl'
            ranks = self.by_hand(RANKS, '--spread', '--steps=100000', f'--metrics={metrics}', **self.at_rank_0())
            self.until_it_trains(metrics)
            time.sleep(chance.random() * 0.5)
            victim = 1 + chance.randrange(RANKS - 1)
            killed = time.monotonic()
            ranks[victim].kill()
            seen = set()
            for number, rank in enumerate(ranks):
                _, err = rank.communicate(timeout=120)
                if number == victim:
                    continue
                where = f'trial {trial}: rank {victim} killed, rank {number} says\n{err}'
                self.assertEqual(rank.returncode, 75, where)
                self.assertEqual(suspects(last_words(err)), {victim}, where)
                seen.add(self.phase_of(err, metrics, 6))
            for phase in seen:
                phases[phase] = phases.get(phase, 0) + 1
            slowest = max(slowest, time.monotonic() - killed)
        print(f'without a launcher, kills while a rank was in a phase: {json.dumps(phases, sort_keys=True)}')
        print(f'without a launcher, from the kill to the end of all, at most: {slowest:.3f} s')

    def assert_survivors_blame(self, victim, ranks):
        """All others end, long before they would time out, and name it."""
        for number, rank in enumerate(ranks):
            if number == victim:
                rank.communicate()
                continue
            try:
                _, err = rank.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                self.fail(f'rank {number} does not notice that rank {victim} died')
            where = f'rank {victim} killed, rank {number} says\n{err}'
            self.assertEqual(rank.returncode, 75, where)
            self.assertEqual(suspects(last_words(err)), {victim}, where)

    def test_ranks_notice_that_the_one_that_serves_their_store_died_while_groups_form(self):
        chance = random.Random(int(os.environ.get('HETRUN_KILL_SEED', '1')))
        for _ in range(int(os.environ.get('HETRUN_KILL_TRIALS', '4'))):
            where = self.at_rank_0()
            ranks = self.by_hand(RANKS, '--spread', '--steps=100000', '--timeout=200s', **where)
            self.until(lambda: clients_of(where['MASTER_PORT']) >= 3 * RANKS, 'the ranks do not meet')
            time.sleep(chance.random() * 0.2)
            ranks[0].kill()
            self.assert_survivors_blame(0, ranks)

    @unittest.skipUnless(shutil.which('etcd'), 'no etcd here (Debian: etcd-server)')
    def test_ranks_that_met_in_etcd_notice_a_killed_one(self):
        chance = random.Random(int(os.environ.get('HETRUN_KILL_SEED', '1')))
        for trial in range(int(os.environ.get('HETRUN_KILL_TRIALS', '4'))):
            with self.subTest(trial=trial):
                rendezvous = self.start_etcd(f'etcd{trial}')
                ranks = self.by_hand(RANKS, '--spread', '--steps=100000', '--timeout=200s', f'--rendezvous={rendezvous}',
                                     '--interface=127.0.0.1', HETRUN_SECRET=SECRET)
                self.until_they_met(rendezvous)
                time.sleep(chance.random() * (0 if trial % 2 else 0.4))
                victim = chance.randrange(RANKS)
                ranks[victim].kill()
                self.assert_survivors_blame(victim, ranks)

    @unittest.skipUnless(shutil.which('etcd'), 'no etcd here (Debian: etcd-server)')
    def test_a_rank_that_pauses_for_less_than_the_timeout_ends_nothing(self):
        metrics = self.folder / 'metrics.jsonl'
        ranks = self.by_hand(2, '--steps=100000', '--timeout=60s', f'--metrics={metrics}', f'--rendezvous={self.start_etcd()}',
                             '--interface=127.0.0.1', HETRUN_SECRET=SECRET)
        self.until_it_trains(metrics)
        ranks[1].send_signal(signal.SIGSTOP)
        time.sleep(12)   # its lease lapses
        steps = len(metrics.read_text().splitlines())
        ranks[1].send_signal(signal.SIGCONT)
        self.until(lambda: len(metrics.read_text().splitlines()) > steps + 5, 'they do not go on')
        ranks[0].send_signal(signal.SIGTERM)
        for rank in ranks:
            _, err = rank.communicate(timeout=60)
            self.assertEqual(rank.returncode, 130, err)

    def test_ranks_notice_a_stopped_one_that_serves_their_store(self):
        metrics = self.folder / 'metrics.jsonl'
        ranks = self.by_hand(3, '--steps=100000', '--timeout=6s', '--warn-after=1s', f'--metrics={metrics}',
                             **self.at_rank_0())
        self.until_it_trains(metrics)
        os.kill(ranks[0].pid, signal.SIGSTOP)
        for rank in ranks[1:]:
            _, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 75, err)
            self.assertRegex(err, r'rank \d \(.* has waited .*: rank 0 \(.*(has not arrived|fell silent)', err)
            # One that gave up first cannot tell the others why: the store was the stopped rank's.
            self.assertEqual(suspects(last_words(err)), {0}, err)
        ranks[0].kill()
        ranks[0].communicate()

    def test_nothing_outlives_the_launcher(self):
        process = self.start('--workers', RANKS, 'lopsided.lua', '--spread', '--steps=100000')
        children = self.wait_for_ranks(process, RANKS)
        time.sleep(0.5)
        process.kill()
        process.communicate(timeout=60)
        self.assert_gone(children.values())


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[1:])
