"""Ranks that train: the losses of one device, whatever the plan."""
import array
import json
import math
import re
import shutil
import socket
import unittest

from case import Case, RANKS, ROOT, SECRET, own_name_is_loopback


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

    def test_experts_give_the_losses_of_one_device_wherever_a_plan_has_them(self):
        shutil.copy(ROOT / 'tests' / 'launch' / 'experts.lua', self.folder)
        for top in (1, 2):
            alone = self.losses('experts.lua', f'--top={top}')
            self.assertEqual(len(alone), 8)   # of 6 steps and 2 evaluations
            for ranks, plan in ((2, 'tensor'), (2, 'uneven'), (2, 'data'), (3, 'pipeline'), (5, 'mixed'), (2, 'expert')):
                with self.subTest(top=top, plan=plan):
                    spread = self.losses('--workers', ranks, 'experts.lua', f'--top={top}', f'--plan={plan}')
                    self.assert_close(alone, spread, 1e-5)
        page = (ROOT / 'recipes' / 'guide' / 'plans.md').read_text()   # what it says of experts, in a plan of two ranks
        sharding = re.search(r'```lua\n(sharding = .*?)\n```', page, re.S)[1]
        text = (self.folder / 'experts.lua').read_text()
        (self.folder / 'page.lua').write_text(text.replace('tensor = 2,', f'tensor = 2, {sharding},'))
        self.assert_close(alone, self.losses('--workers', 2, 'page.lua', '--plan=tensor'), 1e-5)
        for shard in ('experts', 'hidden', 'replicated'):
            with self.subTest(shard=shard):
                spread = self.losses('--workers', 2, 'experts.lua', '--plan=tensor', f'--shard={shard}')
                self.assert_close(alone, spread, 1e-5)

    def test_optimizers_of_many_operators_change_experts_and_fused_matrices_alike_under_every_plan(self):
        shutil.copy(ROOT / 'tests' / 'launch' / 'experts.lua', self.folder)
        for optimizer in ('muon', 'adafactor'):
            own = f'--optimizer={optimizer}'
            alone = self.losses('experts.lua', own)
            for ranks, plan in ((2, 'tensor'), (2, 'uneven'), (2, 'data'), (3, 'pipeline'), (5, 'mixed'), (2, 'expert')):
                with self.subTest(optimizer=optimizer, plan=plan):
                    self.assert_close(alone, self.losses('--workers', ranks, 'experts.lua', own, f'--plan={plan}'), 1e-5)

    def test_ignored_labels_weigh_nothing_wherever_they_are(self):
        shutil.copy(ROOT / 'tests' / 'launch' / 'ignored.lua', self.folder)
        alone = self.losses('ignored.lua')
        self.assertEqual(len(alone), 8)   # of 6 steps and 2 evaluations
        self.assertLess(abs(alone[0] - math.log(11)), 0.5)   # the mean over the labels that count, of 11 tokens
        for plan in ('data', 'tensor'):
            with self.subTest(plan=plan):
                self.assert_close(alone, self.losses('--workers', 2, 'ignored.lua', f'--plan={plan}'), 1e-5)
        # In micro-batches of a row; some have no label that counts.
        text = (self.folder / 'ignored.lua').read_text()
        (self.folder / 'rows.lua').write_text(text.replace('and 8 or nil', 'and 1 or nil'))
        self.assert_close(alone, self.losses('rows.lua'), 1e-5)

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
        self.assertIn('the plan is for 1 device, 4 ranks are here', err)

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

    def test_ranks_that_the_fastest_plan_leaves_out_share_the_batch(self):
        (self.folder / 'small.lua').write_text('''local het = require "het"
local x = het.randn({ 40, 8 }, "f32", 1)
return het.train { model = het.nn.linear(8, 8), data = het.data.pairs { inputs = x, labels = x }, batch = 8, steps = 3,
  optimizer = het.optim.sgd { lr = 0.01 }, evaluate = { every = 0 }, plan = het.plan.auto {} }''')
        alone = self.losses('small.lua')
        self.assert_close(alone, self.losses('--workers', 2, 'small.lua'), 1e-5)
        _, err = self.hetrun('--workers', 2, 'small.lua')
        self.assertIn('the fastest plan uses 1 of the 2 ranks; all of them share the batch instead. Start 1 rank to train by', err)
        self.assertIn('slowest rank', err)

    def test_a_last_save_that_cannot_be_written_ends_the_run_once(self):
        for elastic in ([], ['--elastic', '1:3']):
            run = self.start('--workers', 3, *elastic, 'lopsided.lua', '--steps=20', '--save=saved/model', '--metrics=metrics.jsonl',
                             under=('prlimit', '--fsize=8192'))
            err = run.communicate(timeout=120)[1]
            self.assertEqual(run.returncode, 71, err)
            self.assertNotIn('generation 2', err)
            self.assertIn('saved/model', err)
            self.assertNotIn('set `save`', err)
            steps = [json.loads(line)['step'] for line in (self.folder / 'metrics.jsonl').read_text().splitlines() if '"loss"' in line]
            self.assertEqual(steps, list(range(1, 21)))

    def test_a_run_that_fails_on_all_ranks_or_one_is_saved(self):
        (self.folder / 'fails.lua').write_text('''local het = require "het"
local opt = het.options { how = { "", "" }, save = { "", "", path = "write" }, snapshots = { "", "", path = "write" } }
local x = het.randn({ 40, 8 }, "f32", 1)
return het.train { model = het.nn.linear(8, 8), data = het.data.pairs { inputs = x, labels = x }, batch = 8, steps = 30,
  optimizer = het.optim.sgd { lr = function(step)
    if opt.how == "rate" and step == 6 then error "no rate" end
    return opt.how == "loss" and step > 5 and 1e30 or 0.01
  end }, evaluate = { every = 0 }, save = opt.save ~= "" and opt.save or nil,
  snapshot = opt.snapshots ~= "" and { folder = opt.snapshots, every = 100 } or nil,
  on_step = function(run, step)
    if step.step == 5 and (opt.how == "all" or opt.how == "one" and run.rank == 1) then error "no more" end
  end }''')
        for ranks in (['--workers', 2], ['--workers', 2, '--elastic', '1:2']):
            for how, said, step in (('loss', r'step \d+: the (loss|gradient) is ', None), ('all', r'fails.lua:11: no more', 6),
                                    ('one', r'rank 1: fails.lua:11: no more', 6)):
                with self.subTest(ranks=ranks, how=how):
                    shutil.rmtree(self.folder / 'kept', ignore_errors=True)
                    err = self.hetrun(*ranks, 'fails.lua', f'--how={how}', '--save=kept', code=2)[1]
                    self.assertRegex(err, said)
                    saved = int(re.search(r'failed and saved after step (\d+) in kept', err)[1])
                    self.assertGreaterEqual(saved, step or 5)
                    self.assertTrue((self.folder / 'kept' / 'training.snapshot').exists())
        err = self.hetrun('--workers', 2, 'fails.lua', '--how=loss', '--snapshots=snaps', code=2)[1]
        self.assertRegex(err, r'failed after step \d+; its snapshot is in snaps')
        for words, said in (('--save=kept2',), 'failed and saved after step 5 in kept2'), ((), 'nothing was saved of 5 steps'):
            err = self.hetrun('--workers', 2, 'fails.lua', '--how=rate', *words, code=2)[1]
            self.assertRegex(err, r'no rate')
            self.assertEqual(err.count(said), 1, err)

    def test_the_first_rank_writes_text_with_the_whole_model(self):
        alone, _ = self.hetrun('lopsided.lua')
        for ranks, words in ((RANKS, '--spread'), (6, '--tensor'), (6, '--mixed')):
            spread, _ = self.hetrun('--workers', ranks, 'lopsided.lua', words)
            self.assertEqual(alone.splitlines()[-1], spread.splitlines()[-1])

    def test_plans_follow_the_types_of_the_devices_that_are_there(self):
        (self.folder / 'pair.lua').write_text("""local het = require "het"
local corpus = het.data.text { path = "text.txt" }
local plan = het.plan { tensor = 2, microbatch = 2, het.pipeline { microbatches = 2, het.stage { "a:0-1" } } }
return het.train { model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 2, heads = 2 }, data = corpus,
  batch = 4, steps = 2, optimizer = het.optim.adamw { lr = 1e-3 }, save = "runs/mine", plan = plan }
""")
        for threads, unlike in ((('1', '2'), True), (('1', '1'), False)):
            with self.subTest(threads=threads):
                where = self.at_rank_0()
                ranks = [self.start('pair.lua', f'--threads={count}', '--overwrite', WORLD_SIZE='2', RANK=str(rank),
                                    LOCAL_RANK=str(rank), **where) for rank, count in enumerate(threads)]
                for rank in ranks:
                    _, err = rank.communicate(timeout=120)
                    self.assertEqual(rank.returncode, 0, err)
                shown, _ = self.hetrun('snapshot', 'show', 'runs/mine/training.snapshot')
                self.assertEqual('unlike_devices = true' in shown, unlike, shown)

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
        out, _ = self.hetrun('snapshot', 'show', 'first', '--json')
        saved = {tensor['name']: tensor['bytes'] for tensor in json.loads(out)['tensors']}
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
