"""A running job is looked at and steered, and decides by its recipe's policies: steering.py build/lua/hetrun [Class.test]"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

HETRUN = str(Path(sys.argv.pop(1)).resolve())
SECRET = 'a secret of these tests alone'
WAIT = 90
RECIPE = '''local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local opt = het.options { steps = { 1000000, "steps" }, snapshots = { "", "folder", path = "write" }, batch = { 12, "samples" } }
local corpus = data.text { path = "text.txt", tokenizer = "char", holdout = 0.1 }
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = 16, layers = 2, heads = 2 },
  data = corpus, batch = opt.batch, microbatch = 2, steps = opt.steps, optimizer = optim.adamw { lr = 1e-3 },
  evaluate = { every = 0 }, snapshot = opt.snapshots ~= "" and { folder = opt.snapshots, every = 1000000 } or nil,
  %s
}
'''


class Steering(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        draw = random.Random(3)
        (self.folder / 'text.txt').write_text(' '.join(draw.choice(['the', 'quick', 'brown', 'fox']) for _ in range(3000)))
        self.recipe('')

    def recipe(self, fields):
        (self.folder / 'recipe.lua').write_text(RECIPE % fields)

    def start(self, *words, **environment):
        process = subprocess.Popen([HETRUN, *words], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, 'HETRUN_SECRET': SECRET, **environment})
        process.said = []
        process.readers = [threading.Thread(target=lambda pipe=pipe: process.said.extend(pipe)) for pipe in (process.stdout, process.stderr)]
        for reader in process.readers:
            reader.start()
        self.addCleanup(lambda: [process.kill(), process.wait(), *[reader.join() for reader in process.readers],
                                 process.stdout.close(), process.stderr.close()])
        return process

    def ended(self, process, code):
        process.wait(timeout=WAIT)
        for reader in process.readers:
            reader.join(timeout=WAIT)
        said = ''.join(process.said)
        self.assertEqual(process.returncode, code, said)
        return said

    def hetrun(self, *words, code=0, entered=None, **environment):
        done = subprocess.run([HETRUN, *map(str, words)], cwd=self.folder, text=True, capture_output=True, timeout=WAIT, check=False,
                              input=entered, env={**os.environ, **environment})
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stdout + done.stderr

    def until(self, is_it, process):
        deadline = time.monotonic() + WAIT
        while not (found := is_it()):
            if time.monotonic() > deadline or process.poll() is not None:
                self.fail(f'{process.returncode}: {"".join(process.said)}')
            time.sleep(0.01)
        return found

    def status(self, process, of=None):
        done = subprocess.run([HETRUN, 'status', f'--pid={(of or process).pid}', '--json'], capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until_status(self, process, is_it):
        return self.until(lambda: (status := self.status(process)) and is_it(status) and status, process)

    def attach(self, process, word, code=0):
        return self.hetrun('attach', word, f'--pid={process.pid}', code=code)

    def until_said(self, process, pattern):
        self.until(lambda: re.search(pattern, ''.join(process.said)), process)

    RUNS = {'fixed': ('--workers', '2'), 'elastic': ('--workers', '3', '--elastic', '1:3'), 'alone': ('--workers', '1', '--elastic', '1')}

    def test_a_run_says_how_it_is_doing(self):
        for name, words in self.RUNS.items():
            with self.subTest(name):
                run = self.start(*words, 'recipe.lua')
                status = self.until_status(run, lambda status: status['step'] > 5)
                self.assertEqual([rank['rank'] for rank in status['ranks']], list(range(int(words[1]))))
                children = Path(f'/proc/{run.pid}/task/{run.pid}/children').read_text().split()
                self.assertEqual(sorted(rank['pid'] for rank in status['ranks']), sorted(map(int, children)))
                self.assertEqual(status.get('generation'), None if name == 'fixed' else 1)
                self.assertRegex(status['timeline'][0]['event'], r'the run began with \d ranks?')
                text = self.hetrun('status', f'--pid={run.pid}')
                self.assertRegex(text, r'run +hetrun \(recipe.lua\), training; begun (0:00:)?\d+ ?s? ago')
                self.assertLess(abs(time.time() - status['started']), 120)
                self.assertTrue(all(abs(time.time() - rank['since']) < 120 for rank in status['ranks']), status['ranks'])
                self.assertRegex(text, r'step +\d+ of 1000000; .* tokens/s, ')
                self.assertRegex(text, r'ranks +0  \S+  cpu.*  process \d+  for ')
                self.assertIn('het.plan', text)
                later = self.until_status(run, lambda other: other['step'] > status['step'])
                self.assertGreaterEqual(later['at'], status['at'])
                run.send_signal(signal.SIGINT)
                self.ended(run, 130)

    def test_a_run_is_paused_and_resumed_takes_snapshots_and_stops(self):
        for name, words in self.RUNS.items():
            with self.subTest(name):
                shutil.rmtree(self.folder / 'snaps', ignore_errors=True)
                run = self.start(*words, 'recipe.lua', '--snapshots=snaps', '--allow-write=snaps')
                self.until_status(run, lambda status: status['step'] > 2)
                step = int(re.search(r'^snapshot after step (\d+) (in memory and )?in snaps\n', self.attach(run, 'snapshot')).group(1))
                self.assertEqual(len(list((self.folder / 'snaps').glob(f'step-{step}-*'))), int(words[1]))
                step = int(re.search(r'paused after step (\d+)', self.attach(run, 'pause')).group(1))
                self.assertIn(f'the run is paused already, after step {step}', self.attach(run, 'pause'))
                self.assertEqual((self.status(run)['state'], self.status(run)['step']), ('paused', step))
                self.assertIn(f'snapshot after step {step} ', self.attach(run, 'snapshot'))
                self.assertEqual(self.status(run)['snapshots']['disk']['step'], step)
                said = self.attach(run, 'replan', code=2 if name == 'fixed' else 0)
                self.assertIn('replan needs a run with --elastic' if name == 'fixed' else f'planned again after step {step}:\nhet.plan', said)
                self.assertEqual(self.status(run)['step'], step)
                self.assertIn(f'going on after step {step}', self.attach(run, 'resume'))
                self.until_status(run, lambda status: status['step'] > step and status['state'] == 'training')
                self.assertRegex(self.attach(run, 'stop'), r'the run ends after step \d+, as by Ctrl-C')
                self.assertIn('stopped after step', self.ended(run, 130))

    def test_a_prompt_takes_the_same_words(self):
        run = self.start(*self.RUNS['fixed'], 'recipe.lua')
        self.until_status(run, lambda status: True)
        said = self.hetrun('attach', f'--pid={run.pid}', entered='help\npause\nstatus\nresum\nresume\nquit\nnot reached\n', code=2)
        for pattern in (r'  pause +wait after', r'paused after step \d+', r'recipe.lua\), paused', r"no command 'resum'; did you mean 'resume'\?",
                        r'going on after step \d+'):
            self.assertRegex(said, pattern)
        self.assertNotIn('reached', said)
        self.until_status(run, lambda status: status['state'] == 'training')
        self.hetrun('attach', f'--pid={run.pid}', entered='status\n')

    def test_ranks_are_lost_and_join_while_the_run_is_paused(self):
        run = self.start('--workers', '3', '--elastic', '1:3', '--respawn', 'recipe.lua', '--batch=6')
        status = self.until_status(run, lambda status: status['step'] > 2)
        paused_after = int(re.search(r'paused after step (\d+)', self.attach(run, 'pause')).group(1))
        # The first rank too: the next one goes on with its timeline.
        os.kill(status['ranks'][0]['pid'], signal.SIGKILL)
        status = self.until_status(run, lambda status: len(status['ranks']) == 3 and status['generation'] > 2)
        self.assertEqual(status['state'], 'paused')
        events = [event['event'] for event in status['timeline']]
        self.assertEqual(events[:2], ['the run began with 3 ranks', 'paused'])
        self.assertRegex('\n'.join(events), r'generation 2: .* is lost; 2 ranks')
        self.assertRegex('\n'.join(events), r'generation \d: .*join.*; 3 ranks')
        self.assertEqual(status['step'], paused_after)
        step = int(re.search(r'going on after step (\d+)', self.attach(run, 'resume')).group(1))
        self.assertEqual(step, paused_after)
        status = self.until_status(run, lambda status: status['step'] > step + 3)
        self.assertGreater(status['recovery']['first_step_seconds'], status['recovery']['restored_seconds'])
        self.assertRegex(self.hetrun('status', f'--pid={run.pid}'),
                         rf'\nrecovery   .*connected after .*, step \d+ done .*; 0 steps repeated\n')

    def test_a_paused_run_does_no_step_while_others_wait(self):
        self.recipe('''on_change = function(run, change)
    if change.kind == "waiting" then
      print "waits"
      return false
    end
  end,''')
        run = self.start('--workers', '3', '--elastic', '1:3', '--respawn', 'recipe.lua')
        status = self.until_status(run, lambda status: status['step'] > 2)
        self.attach(run, 'pause')
        os.kill(status['ranks'][2]['pid'], signal.SIGKILL)
        self.until_said(run, 'waits')
        said = [self.attach(run, 'pause') for _ in range(3)]
        self.assertRegex(said[0], r'the run is paused already, after step \d+')
        self.assertEqual(said, said[:1] * 3)

    def test_the_first_rank_leaves_a_paused_run(self):
        run = self.start('--workers', '3', '--elastic', '1:3', 'recipe.lua')
        status = self.until_status(run, lambda status: status['step'] > 2)
        step = int(re.search(r'paused after step (\d+)', self.attach(run, 'pause')).group(1))
        os.kill(status['ranks'][0]['pid'], signal.SIGTERM)
        self.until_said(run, f'rank 0 left the run after step {step}: SIGTERM')
        status = self.until_status(run, lambda status: len(status['ranks']) == 2)
        self.assertEqual(status['state'], 'paused')
        self.assertEqual([event['event'] for event in status['timeline']][:2], ['the run began with 3 ranks', 'paused'])

    def test_ctrl_c_ends_a_paused_run(self):
        for name, words in self.RUNS.items():
            with self.subTest(name):
                run = self.start(*words, 'recipe.lua')
                self.until_status(run, lambda status: status['step'] > 2)
                self.attach(run, 'pause')
                run.send_signal(signal.SIGINT)
                self.ended(run, 130)

    def test_of_several_runs_the_one_that_is_steered_is_named(self):
        self.recipe('name = "one", ')
        one = self.start('--workers=2', 'recipe.lua')
        self.until_status(one, lambda status: status['step'] > 2)
        self.recipe('name = "other", ')
        other = self.start('--workers=2', 'recipe.lua')
        self.until_status(other, lambda status: status['step'] > 2)
        said = self.hetrun('attach', 'stop', code=2)
        self.assertRegex(said, r'\d+ runs of this user are on this machine, of processes .*; --pid=N says which one is meant')
        for run in (one, other):
            self.assertIn(str(run.pid), said)
            self.attach(run, 'stop')
            self.ended(run, 130)

    def test_where_there_is_no_run_it_is_said(self):
        self.assertIn('there is no run of process 1 here', self.hetrun('status', '--pid=1', code=2).replace('no run of this user with several ranks',
                      'there is no run of process 1 here'))
        self.assertIn("there is no command 'puase'; did you mean 'pause'?", self.hetrun('attach', 'puase', code=2))
        self.assertIn("hetrun status takes options alone, not 'extra'", self.hetrun('status', 'extra', code=2))
        self.assertIn('hetrun status has no option --nope', self.hetrun('status', '--nope', code=2))
        self.assertIn('cannot connect to 127.0.0.1:1', self.hetrun('status', '--rendezvous=127.0.0.1:1', code=75, HETRUN_SECRET=SECRET))

    def test_a_store_elsewhere_needs_the_secret_of_the_run(self):
        run = self.start(*self.RUNS['fixed'], 'recipe.lua')
        status = self.until_status(run, lambda status: True)
        variables = Path(f'/proc/{status["ranks"][0]["pid"]}/environ').read_bytes().split(b'\0')
        values = dict(text.decode().split('=', 1) for text in variables if b'=' in text)
        store = values['HETRUN_STORE']
        self.assertIn('recipe.lua', self.hetrun('status', f'--rendezvous={store}', HETRUN_SECRET=values['HETRUN_SECRET']))
        self.assertIn('secret', self.hetrun('status', f'--rendezvous={store}', HETRUN_SECRET='another secret of that length', code=2))
        self.assertIn("no status of a run 'other'", self.hetrun('status', f'--pid={run.pid}', '--run=other', code=2))

    def start_etcd(self):
        """The address of an etcd that ends with the test."""
        client, peer = (f'http://{self.free_place()}' for _ in range(2))
        etcd = subprocess.Popen(['etcd', '--name', 'one', '--data-dir', self.folder / 'etcd', '--unsafe-no-fsync',
                                 '--listen-client-urls', client, '--advertise-client-urls', client, '--listen-peer-urls', peer,
                                 '--initial-advertise-peer-urls', peer, '--initial-cluster', f'one={peer}'],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (etcd.kill(), etcd.wait()))
        return client.replace('http', 'etcd')

    @unittest.skipUnless(shutil.which('etcd'), 'there is no etcd')
    def test_runs_that_meet_in_etcd_are_looked_at_and_steered_there(self):
        place = self.start_etcd()
        words = f'--rendezvous={place}', 'recipe.lua'
        by_hand = [{'RANK': str(rank), 'WORLD_SIZE': '2', 'LOCAL_RANK': str(rank), 'OMP_NUM_THREADS': '1'} for rank in range(2)]
        starts = {'fixed': lambda: [self.start(*words, **rank) for rank in by_hand],
                  **{name: lambda how=self.RUNS[name]: [self.start(*how, *words)] for name in ('elastic', 'alone')}}
        for name, count in (('fixed', 2), ('elastic', 3), ('alone', 1)):
            with self.subTest(name):
                processes = starts[name]()
                run = processes[0]

                def ask(*words, code=0):
                    return self.hetrun(*words, f'--rendezvous={place}', HETRUN_SECRET=SECRET, code=code)

                def status():
                    done = subprocess.run([HETRUN, 'status', f'--rendezvous={place}', '--json'], capture_output=True, text=True,
                                          check=False, env={**os.environ, 'HETRUN_SECRET': SECRET})
                    return json.loads(done.stdout) if done.returncode == 0 else {'state': 'none'}

                first = self.until(lambda: (said := status())['state'] == 'training' and said['step'] > 2 and said, run)
                self.assertEqual(len(first['ranks']), count)
                self.assertRegex(ask('status'), r'run +hetrun \(recipe.lua\), training; begun ')
                step = int(re.search(r'paused after step (\d+)', ask('attach', 'pause')).group(1))
                self.assertEqual((status()['state'], status()['step']), ('paused', step))
                self.assertIn("no status of a run 'other'", ask('status', '--run=other', code=2))
                ask('attach', 'stop')
                for process in processes:
                    self.ended(process, 130)
                self.assertEqual(status()['state'], 'ended')

    def test_where_the_store_of_a_run_does_not_answer_the_option_that_names_another_is_said(self):
        with socket.socket() as closed:   # bound, and nothing listens there
            closed.bind(('127.0.0.1', 0))
            rank = self.start('recipe.lua', RANK='1', WORLD_SIZE='2', LOCAL_RANK='1', LOCAL_WORLD_SIZE='2', MASTER_ADDR='127.0.0.1',
                              MASTER_PORT=str(closed.getsockname()[1]))
            # The process that started the rank by hand is this one.
            self.until(lambda: f'{os.getpid()}' in self.found_by_hand(), rank)
            self.assertRegex(self.hetrun('status', f'--pid={os.getpid()}', code=75),
                             f'the run of process {os.getpid()} cannot be reached: .*; where its recipe names a rendezvous, --rendezvous=etcd://')

    def found_by_hand(self):
        return self.hetrun('status', '--pid=1', code=2)

    # --- what may change

    def free_place(self):
        with socket.socket() as listener:
            listener.bind(('127.0.0.1', 0))
            return f'127.0.0.1:{listener.getsockname()[1]}'

    def timelines(self):
        path = self.folder / 'metrics.jsonl'
        lines = path.read_text().split('\n')[:-1] if path.exists() else []
        return [record for record in map(json.loads, lines) if 'timeline' in record]

    def test_who_waits_to_join_is_a_spare_and_takes_the_place_of_the_lost(self):
        place = self.free_place()
        head = self.start('--workers', '2', '--elastic', '1:2', f'--listen={place}', 'recipe.lua')
        status = self.until_status(head, lambda status: status['step'] > 2)
        self.assertNotIn('spares', status)
        machine = self.start('--workers', '1', f'--join={place}', 'recipe.lua', HETRUN_HOST='another')
        status = self.until_status(head, lambda status: status.get('spares'))
        self.assertEqual([spare['host'] for spare in status['spares']], ['another'])
        self.assertEqual(status['spares'][0]['device'], status['ranks'][0]['device'])
        self.assertRegex(self.hetrun('status', f'--pid={head.pid}'), r'spares +another  \S.*  waits to join\n')
        os.kill(status['ranks'][1]['pid'], signal.SIGKILL)
        status = self.until_status(head, lambda status: status['generation'] == 2)
        self.assertEqual(status['ranks'][1]['host'], 'another')
        self.assertNotIn('spares', status)
        head.send_signal(signal.SIGINT)
        self.ended(head, 130)
        self.ended(machine, 130)

    def test_it_is_said_who_keeps_copies_of_what_a_rank_has(self):
        self.recipe('''plan = het.plan { microbatch = 2, sharded_optimizer = true,
    het.pipeline { microbatches = 3, het.stage { "a:0" } }, het.pipeline { microbatches = 3, het.stage { "b:0" } } },''')
        place = self.free_place()
        head = self.start('--workers', '1', '--elastic', '1:2', f'--listen={place}', 'recipe.lua', HETRUN_HOST='a')
        other = self.start('--workers', '1', f'--join={place}', 'recipe.lua', HETRUN_HOST='b')
        status = self.until_status(head, lambda status: (status['snapshots'].get('memory') or {}).get('hosts') == 2)
        self.assertEqual(status['snapshots']['memory']['keepers'], [[1], [0]])
        hosts = [rank['host'] for rank in status['ranks']]
        said = self.hetrun('status', f'--pid={head.pid}')
        self.assertRegex(said, r'\nsnapshots +step \d+ in memory of 2 hosts, ')
        for rank in (0, 1):
            self.assertIn(f'copy of what rank {rank} has: rank {1 - rank} ({hosts[1 - rank]})\n', said)
        head.send_signal(signal.SIGINT)
        self.ended(head, 130)
        self.ended(other, 130)

    def test_a_change_that_was_foreseen_finds_its_plan(self):
        # A model as small as this one gains nothing by a third rank.
        self.recipe('''plan = het.plan.auto {},
  on_change = function(run, change)
    local own = { new_step_seconds = 0 }
    for _, name in ipairs { "kind", "ranks", "devices", "step", "steps_left", "seconds_left" } do own[name] = change[name] end
    return het.policy.on_change(run, own)
  end,''')
        place = self.free_place()
        head = self.start('--workers', '2', '--elastic', '1:4', f'--listen={place}', 'recipe.lua', '--metrics=metrics.jsonl',
                          HETRUN_HOST='a')

        def until_planned(ranks):
            return self.until_status(head, lambda status: len(status['ranks']) == ranks and
                                     (ahead := status.get('ahead')) and ahead['planned'] == ahead['foreseen'])

        def join(host, ranks):
            before = len(self.timelines())
            machine = self.start('--workers', '1', f'--join={place}', 'recipe.lua', '--metrics=metrics.jsonl', HETRUN_HOST=host)
            self.until_status(head, lambda status: len(status['ranks']) == ranks)
            self.until(lambda: len(self.timelines()) > before, head)   # it has done a step: what follows is another change
            return machine

        self.assertEqual(until_planned(2)['ahead']['foreseen'], 1)   # one of two alike ranks is lost
        self.assertRegex(self.hetrun('status', f'--pid={head.pid}'), r'ahead +1 of 1 plans ')
        join('b', 3)
        status = until_planned(3)
        os.kill(status['ranks'][2]['pid'], signal.SIGKILL)
        self.until(lambda: len(self.timelines()) == 2, head)
        join('c', 3)
        until_planned(3)
        join('d', 4)
        head.send_signal(signal.SIGINT)
        said = self.ended(head, 130)
        lost, joined = self.timelines()[1], self.timelines()[3]
        for timeline in (lost, joined):
            self.assertTrue(timeline['planned_ahead'], timeline)
        self.assertEqual((lost['lost'], joined['joined']), (1, 1))
        self.assertEqual(len(re.findall(r'planned \S+ \S+ \(ahead\)', said)), len([each for each in self.timelines() if each['planned_ahead']]))

    def test_a_run_counts_what_its_machines_cost(self):
        place = self.free_place()
        head = self.start('--workers', '2', '--elastic', '1:3', '--price=360000', f'--listen={place}', 'recipe.lua',
                          '--metrics=metrics.jsonl', HETRUN_HOST='a')
        self.assertEqual(self.until_status(head, lambda status: status['step'] > 2)['hourly'], 360000)   # two ranks, one machine
        machine = self.start('--workers', '1', f'--join={place}', 'recipe.lua', '--metrics=metrics.jsonl', HETRUN_HOST='b',
                             HETRUN_PRICE='36000')
        status = self.until_status(head, lambda status: len(status['ranks']) == 3)
        self.assertEqual(status['hourly'], 396000)
        self.until(self.timelines, head)
        os.kill(status['ranks'][2]['pid'], signal.SIGKILL)
        self.ended(machine, 75)
        status = self.until_status(head, lambda status: len(status['ranks']) == 2 and len(self.timelines()) == 2 and
                                   status['changes'] == 2 and status['money_lost'] > self.timelines()[0]['money_lost'])
        self.assertEqual(status['hourly'], 360000)
        text = self.hetrun('status', f'--pid={head.pid}')
        self.assertRegex(text, r'lost +\d+ steps? repeated in 2 changes of ranks, \S+ of money\n')
        self.assertRegex(text, r'money +\S+ paid, 360000 an hour\n')
        head.send_signal(signal.SIGINT)
        said = self.ended(head, 130)
        joined, lost = self.timelines()
        for timeline, hourly in ((joined, 396000), (lost, 360000)):
            least = hourly / 3600 * timeline['first_step_seconds']
            self.assertGreaterEqual(timeline['money_lost'], least * 0.999)
            self.assertLess(timeline['money_lost'], least + hourly / 3600 * (timeline['steps_repeated'] * 1.0 + 1e-6))
        account = [json.loads(line) for line in (self.folder / 'metrics.jsonl').read_text().splitlines() if '"paid"' in line][-1]
        self.assertAlmostEqual(account['money_lost'], joined['money_lost'] + lost['money_lost'], delta=1e-6 * account['paid'])
        seconds = account['paid'] / 100   # of both machines' prices, the second was there for a part
        self.assertGreater(seconds, joined['first_step_seconds'] + lost['first_step_seconds'])
        self.assertRegex(said, r'of money lost')
        self.assertRegex(said, r'\S+ of money paid, \S+ of it lost to changes')

    # --- policies

    def test_a_recipe_chooses_the_plan_of_the_ranks_that_are_left(self):
        self.recipe('''on_change = function(run, change)
    if change.kind == "changed" then
      print("asked", change.kind, change.lost, change.joined, change.ranks, run.step == change.step)
      return het.plan { microbatch = 3, het.pipeline { microbatches = 4, het.stage { "here:0" }, het.stage { "here:1" } } }
    end
  end,''')
        run = self.start('--workers', '3', '--elastic', '1:3', 'recipe.lua')
        status = self.until_status(run, lambda status: status['step'] > 5)
        os.kill(status['ranks'][0]['pid'], signal.SIGKILL)
        status = self.until_status(run, lambda status: status['generation'] == 2)
        self.assertIn('microbatches = 4', status['plan'])
        self.until_status(run, lambda later: later['step'] > status['step'])
        self.until_said(run, 'asked\tchanged\t1\t0\t2\ttrue')

    def test_a_recipe_lets_others_wait(self):
        self.recipe('''on_change = function(run, change)
    if change.kind == "waiting" then
      print("waits", change.waiting, change.steps_left > 1000)
      if run.step <= 40 then return false end
      return nil
    end
    return het.policy.on_change(run, change)
  end,''')
        run = self.start('--workers', '3', '--elastic', '1:3', '--respawn', 'recipe.lua')
        status = self.until_status(run, lambda status: status['step'] > 1)
        os.kill(status['ranks'][2]['pid'], signal.SIGKILL)
        status = self.until_status(run, lambda status: status['generation'] == 3 and len(status['ranks']) == 3)
        self.until_said(run, 'waits\t1\ttrue')
        self.assertGreater(next(event['step'] for event in status['timeline'] if 'join' in event['event']), 40)

    def test_a_recipe_decides_upon_notices(self):
        for answer, code, pattern in (('"leave"', 130, r'rank 1 left the run after step \d+: SIGTERM'), ('"stop"', 130, 'stopped after step')):
            with self.subTest(answer):
                self.recipe(f'''on_notice = function(run, notice)
    print("notice", #notice.ranks, notice.ranks[1], notice.of, notice.least, notice.source)
    return notice.waited > 0.3 and {answer} or "wait"
  end,''')
                run = self.start('--workers', '3', '--elastic', '1:3', 'recipe.lua')
                status = self.until_status(run, lambda status: status['step'] > 5)
                os.kill(status['ranks'][1]['pid'], signal.SIGTERM)
                self.until_said(run, 'notice\t1\t1\t3\t1\tSIGTERM')
                if answer == '"leave"':
                    self.until_status(run, lambda status: len(status['ranks']) == 2)
                    run.send_signal(signal.SIGINT)
                self.assertRegex(self.ended(run, code), pattern)

    def test_what_others_ask_for_is_said_where_the_run_prints(self):
        run = self.start('--workers', '2', 'recipe.lua')
        self.until_status(run, lambda status: status['step'] > 2)
        for word, sentence in (('pause', r'paused after step \d+; `resume` goes on'), ('resume', r'going on after step \d+'),
                               ('replan', 'replan needs a run with --elastic'), ('stop', r'the run ends after step \d+, as by Ctrl-C')):
            self.attach(run, word, code=2 if word == 'replan' else 0)
            self.until_said(run, f'hetrun attach {word}: {sentence}')
        self.ended(run, 130)

    def test_a_closed_terminal_of_one_machine_ends_no_run(self):
        with socket.socket() as listener:
            listener.bind(('127.0.0.1', 0))
            place = f'127.0.0.1:{listener.getsockname()[1]}'
        head = self.start('--workers', '2', '--elastic', '2:4', f'--listen={place}', 'recipe.lua')
        self.until_status(head, lambda status: status['step'] > 2)
        machine = self.start('--workers', '2', f'--join={place}', 'recipe.lua')
        status = self.until_status(head, lambda status: len(status['ranks']) == 4)
        machine.send_signal(signal.SIGHUP)
        said = self.ended(machine, 75)
        self.assertIn('SIGHUP: the terminal, or who read the output, is gone: leaving the run', said)
        self.assertRegex(said, r'left the run after step \d+: SIGHUP')
        status = self.until_status(head, lambda status: len(status['ranks']) == 2)
        self.until_status(head, lambda later: later['step'] > status['step'])
        head.send_signal(signal.SIGHUP)
        self.assertIn('stopped after step', self.ended(head, 130))

    def test_a_run_that_is_trained_alone_writes_no_metrics_of_the_command_line(self):
        self.recipe('alone = true,')
        self.hetrun('recipe.lua', '--steps=4', '--metrics=metrics.jsonl', '--trace=trace.json')
        self.assertFalse((self.folder / 'metrics.jsonl').exists())
        self.assertFalse((self.folder / 'trace.json').exists())
        self.recipe('alone = true, pace = het.cluster { bandwidth = "10 Gbit/s", het.node { name = "b", type = "T4", devices = 2 } },')
        self.assertIn('train.pace slows the ranks of a plan, and with alone = true', self.hetrun('recipe.lua', code=2))

    def test_too_few_ranks_that_would_be_left_stop_the_run(self):
        self.recipe('on_notice = function() return "leave" end,')
        run = self.start('--workers', '2', '--elastic', '2:2', 'recipe.lua')
        status = self.until_status(run, lambda status: status['step'] > 2)
        os.kill(status['ranks'][1]['pid'], signal.SIGTERM)
        self.assertIn('stopped after step', self.ended(run, 130))

    def test_a_rank_that_joined_knows_how_many_the_run_needs(self):
        with socket.socket() as listener:
            listener.bind(('127.0.0.1', 0))
            place = f'127.0.0.1:{listener.getsockname()[1]}'
        head = self.start('--workers', '2', '--elastic', '2:4', f'--listen={place}', 'recipe.lua')
        first = self.until_status(head, lambda status: status['step'] > 2)
        machine = self.start('--workers', '2', f'--join={place}', 'recipe.lua')
        self.until_status(head, lambda status: len(status['ranks']) == 4)
        for rank in first['ranks']:
            os.kill(rank['pid'], signal.SIGKILL)
        def two_are_left():   # no rank of the launcher is there any more: by its store
            status = json.loads(self.hetrun('status', f'--rendezvous={place}', '--json', HETRUN_SECRET=SECRET))
            return len(status['ranks']) == 2 and status['ranks']
        os.kill(self.until(two_are_left, machine)[1]['pid'], signal.SIGTERM)
        self.assertIn('stopped after step', self.ended(machine, 130))

    def test_ctrl_c_in_a_policy_saves_the_run(self):
        self.recipe('''save = "runs/saved", on_notice = function(run, notice)
    print "deciding"
    while true do tostring(run) end
  end,''')
        run = self.start('--workers', '2', '--elastic', '1:2', 'recipe.lua')
        status = self.until_status(run, lambda status: status['step'] > 2)
        os.kill(status['ranks'][1]['pid'], signal.SIGTERM)
        self.until_said(run, 'deciding')
        run.send_signal(signal.SIGINT)
        self.assertIn('stopped and saved', self.ended(run, 130))

    def test_what_on_change_returns_beside_a_plan_is_not_run(self):
        self.recipe('''on_change = function(run, change)
    local found = het.plan { microbatch = 3, het.pipeline { microbatches = 4, het.stage { "here:0" }, het.stage { "here:1" } } }
    return found, { { lost = "x", plan = '(function() error("ESCAPED", 0) end)()' } }
  end,''')
        self.assertNotIn('ESCAPED', self.ended(self.start('--workers', '2', '--elastic', '1:2', 'recipe.lua', '--steps=5'), 0))

    def test_answers_that_are_none_are_errors_with_the_line_of_the_function(self):
        for fields, sentence in (
                ('on_change = function(run, change)\n return 3\n end,', 'recipe.lua:9: on_change returned 3; a het.plan { ... }, or nil for the default, is needed'),
                ('on_change = function(run, change)\n return het.plan { het.pipeline { het.stage { "a:0" } } }\n end,',
                 'recipe.lua:9: on_change returned a plan for 1 device; a plan for the 2 ranks that are here is needed'),
                ('on_change = function(run, change)\n error "no idea"\n end,', 'recipe.lua:10: no idea'),
                ('on_change = function(run, change)\n run:gather()\n end,', 'on_change is called on the first rank alone'),
                ('on_step = function(run, step)\n error "here" end,', 'recipe.lua:10: here')):
            with self.subTest(fields):
                self.recipe(fields)
                said = self.ended(self.start('--workers', '2', '--elastic', '1:2', 'recipe.lua'), 2)
                self.assertIn(sentence, said)
                self.assertEqual(said.count('hetrun: '), 1, said)

    def test_while_a_run_trains_the_defaults_decide_where_its_own_functions_fail(self):
        self.recipe('''on_change = function(run, change)
    if change.kind == "changed" then error "no idea" end
    if change.kind == "waiting" then return 42 end
  end, on_notice = function() return "go" end,''')
        run = self.start('--workers', '3', '--elastic', '1:3', '--respawn', 'recipe.lua')
        status = self.until_status(run, lambda status: status['step'] > 5)
        os.kill(status['ranks'][2]['pid'], signal.SIGKILL)
        status = self.until_status(run, lambda status: status['generation'] == 3 and len(status['ranks']) == 3)
        self.until_said(run, r'recipe.lua:10: no idea; het.policy.on_change decides instead')
        self.until_said(run, r'on_change returned 42; true or false, or nil for the default, is needed; het.policy.on_change decides '
                             'instead')
        os.kill(status['ranks'][1]['pid'], signal.SIGTERM)
        self.until_said(run, 'on_notice returned .*; het.policy.on_notice decides instead')
        self.until_status(run, lambda later: later['step'] > status['step'])
        run.send_signal(signal.SIGINT)
        self.ended(run, 130)


if __name__ == '__main__':
    unittest.main()
