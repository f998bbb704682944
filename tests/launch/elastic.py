"""A run with --elastic goes on when ranks are lost: python3 tests/launch/elastic.py build/lua/hetrun [Class.test]"""

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
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / 'bench/recovery'))
import bucket  # noqa: E402

HETRUN = str(Path(sys.argv.pop(1)).resolve())
RECIPE = Path(__file__).with_name('lopsided.lua')
SECRET = 'a secret of these tests alone'
WAIT = 60
STEPS = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


class Elastic(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        words = ['the', 'quick', 'brown', 'fox', 'jumps', 'over', 'a', 'lazy', 'dog']
        draw = random.Random(3)
        (self.folder / 'text.txt').write_text(' '.join(draw.choice(words) for _ in range(3000)))
        shutil.copy(RECIPE, self.folder)
        self.steps = STEPS

    def start(self, *words, workers=4, elastic='1:4', environment=None):
        """A run, or without `elastic` ranks that join one; every step is also written to the metrics file."""
        if elastic:
            (self.folder / 'metrics.jsonl').unlink(missing_ok=True)
        command = [HETRUN, '--workers', str(workers), *(['--elastic', elastic] if elastic else []), 'lopsided.lua',
                   f'--steps={self.steps}', '--every=20', '--metrics=metrics.jsonl', *words]
        process = subprocess.Popen(command, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, 'HETRUN_SECRET': SECRET, **(environment or {})})
        self.addCleanup(process.kill)
        process.said = {name: [] for name in ('stdout', 'stderr')}
        process.readers = [threading.Thread(target=lambda pipe=getattr(process, name), lines=lines: lines.extend(pipe))
                           for name, lines in process.said.items()]
        for reader in process.readers:
            reader.start()
        return process

    def start_held(self, steps, *words, host=None, **more):
        """A run in which ranks, by step, wait before that step until it is let go."""
        self.gates = {step: self.folder / f'gate-{step}' for step in steps}
        for gate in self.gates.values():
            gate.unlink(missing_ok=True)
        faults = [f'rank={rank} step={step} hold={self.gates[step]}' for step, rank in steps.items()]
        environment = {'HETRUN_FAULT': ', '.join(faults), **({'HETRUN_HOST': host} if host else {})}
        return self.start(*words, environment=environment, **more)

    def let_join(self, head, place, step, *words, count, members, **more):
        """Processes that all wait to join a run that is held before a step, and come in when it goes on: together, or
        one after the other, until it has so many members. Each has its launcher: a launcher prints equal sentences of
        its ranks once, and a rank that is still measuring its device could join only after the next held step."""
        newcomers = [self.start(f'--join={place}', *words, '--warn-after=0.2s', workers=1, elastic=None, **more)
                     for _ in range(count)]
        for newcomer in newcomers:
            self.until_said(newcomer, 'waits to join')
        self.go(step)
        self.until_generation(head, lambda generation: generation['members'] == members)
        return newcomers

    def until(self, process, is_it, what):
        deadline = time.monotonic() + WAIT
        while not is_it():
            if time.monotonic() > deadline or process.poll() is not None:
                self.fail(f'{what}: {self.records()[-3:]}, {process.returncode}, {process.said}')
            time.sleep(0.005)

    def go(self, step):
        """Let the rank go that waits before a step, or comes there later."""
        self.gates[step].touch()

    def until_said(self, process, pattern, count=1):
        self.until(process, lambda: len(re.findall(pattern, ''.join(process.said['stderr']))) >= count, pattern)

    def until_there(self, path):
        deadline = time.monotonic() + WAIT
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def records(self):
        path = self.folder / 'metrics.jsonl'
        lines = path.read_text().split('\n')[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def until_step(self, process, step):
        self.until(process, lambda: any(record.get('step', 0) >= step for record in self.records()), f'step {step}')

    def generations(self):
        return [record for record in self.records() if 'generation' in record]

    def until_generation(self, process, is_it):
        self.until(process, lambda: any(is_it(generation) for generation in self.generations()), 'the generation')

    def ranks(self, process):
        """Process ids by the rank that each was started as."""
        found = {}
        for pid in subprocess.run(['pgrep', '-P', str(process.pid)], capture_output=True, text=True).stdout.split():
            try:
                environment = Path(f'/proc/{pid}/environ').read_bytes().split(b'\0')
            except OSError:   # it has ended since
                continue
            rank = next((v for v in environment if v.startswith(b'RANK=')), None)
            if rank:   # else it has not begun yet
                found[int(rank.split(b'=')[1])] = int(pid)
        return found

    def ended(self, process, code=0):
        try:
            process.wait(timeout=WAIT)
        except subprocess.TimeoutExpired:
            self.fail(f'it does not end: {process.said}')
        for reader in process.readers:
            reader.join(timeout=WAIT)
        out, err = (''.join(process.said[name]) for name in ('stdout', 'stderr'))
        self.assertEqual(process.returncode, code, f'{out}\n{err}')
        return out, err

    def losses(self):
        """Losses by step, and of evaluations."""
        records = self.records()
        return ({r['step']: r['loss'] for r in records if 'loss' in r},
                {r['step']: r['validation_loss'] for r in records if 'validation_loss' in r})

    def undisturbed(self, *words):
        subprocess.run([HETRUN, 'lopsided.lua', f'--steps={self.steps}', '--every=20', '--metrics=metrics.jsonl', '--quiet',
                        *words], cwd=self.folder, check=True, capture_output=True, timeout=WAIT)
        return self.losses()

    def assert_same_curve(self, expected):
        for mine, right in zip(self.losses(), expected):
            self.assertEqual(sorted(mine), sorted(right))
            for step, loss in right.items():
                self.assertAlmostEqual(mine[step], loss, delta=1e-4 * abs(loss), msg=f'step {step}')

    def test_any_rank_is_killed_and_the_others_go_on_in_the_same_processes(self):
        right = self.undisturbed()
        for victim, held, step in ((2, 1, 2), (0, 3, 31), (3, 0, 78), (1, 2, STEPS)):
            with self.subTest(victim=victim, step=step):
                process = self.start_held({step: held})
                self.until_step(process, step - 1)
                before = self.ranks(process)
                os.kill(before.pop(victim), signal.SIGKILL)
                self.until_said(process, rf'process {victim} was killed by signal 9')
                self.assertEqual(self.ranks(process), before)
                self.go(step)
                out, err = self.ended(process)
                self.assertNotIn('is started again', err)
                self.assertRegex(out, '^the ')   # the sample, whoever wrote it
                self.assertEqual([(g['members'], g['lost'], g['joined']) for g in self.generations()], [(3, 1, 0)])
                self.assert_same_curve(right)

    def test_several_ranks_are_lost_one_after_the_other_and_at_once(self):
        right = self.undisturbed()
        process = self.start_held({10: 2, 40: 2})
        self.until_step(process, 9)
        ranks = self.ranks(process)
        os.kill(ranks[1], signal.SIGKILL)
        self.go(10)
        self.until_step(process, 39)
        os.kill(ranks[0], signal.SIGKILL)
        os.kill(ranks[3], signal.SIGKILL)
        self.go(40)
        _, err = self.ended(process)
        generations = self.generations()
        self.assertEqual([record['members'] for record in generations][-1], 1, generations)
        self.assertEqual(sum(record['lost'] for record in generations), 3, generations)
        self.assertRegex(err, r'generation \d+: .* 1 rank goes on after step \d+')
        self.assert_same_curve(right)

    def test_state_that_several_ranks_held_is_moved_to_those_that_are_left(self):
        # Replicas of the parameters and one stage each; who is lost is the other pipeline.
        right = self.undisturbed()
        process = self.start_held({10: 0}, '--spread', workers=5, elastic='2:5')
        self.until_step(process, 9)
        os.kill(self.ranks(process)[4], signal.SIGKILL)
        self.go(10)
        self.ended(process)
        generation = self.generations()[-1]
        self.assertEqual(generation['members'], 4)
        self.assertGreater(generation['moved_bytes'], 0)
        self.assert_same_curve(right)

    def test_a_recipe_changes_the_plan_and_replicas_follow_a_loss(self):
        right = self.undisturbed()
        process = self.start_held({40: 0}, '--swap=10')
        self.until_step(process, 39)
        os.kill(self.ranks(process)[3], signal.SIGKILL)
        self.go(40)
        self.ended(process)
        self.assertEqual([g['members'] for g in self.generations()], [3])
        self.assert_same_curve(right)

    def test_ranks_are_a_cluster_to_the_planner(self):
        shutil.copy(RECIPE.with_name('ranks.lua'), self.folder)
        done = subprocess.run([HETRUN, '--trust', 'ranks.lua'], cwd=self.folder, text=True, capture_output=True,
                              timeout=WAIT, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, 'right\n'), done.stderr)

    def test_joining_and_snapshots_pay(self):
        shutil.copy(RECIPE.with_name('deciding.lua'), self.folder)
        done = subprocess.run([HETRUN, '--trust', 'deciding.lua'], cwd=self.folder, text=True, capture_output=True,
                              timeout=WAIT, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, 'right\n'), done.stderr)

    def test_changes_are_foreseen(self):
        shutil.copy(RECIPE.with_name('ahead.lua'), self.folder)
        done = subprocess.run([HETRUN, '--trust', 'ahead.lua'], cwd=self.folder, text=True, capture_output=True,
                              timeout=WAIT, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, 'right\n'), done.stderr)

    def test_the_planner_decides_which_rank_has_which_part(self):
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        head = self.start_held({10: 0, 30: 0}, '--reversed', f'--listen={place}', workers=3, elastic='2:5',
                               host='machine-a')
        self.until_step(head, 9)
        newcomers = self.let_join(head, place, 10, '--reversed', count=2, members=5,
                                  environment={'HETRUN_HOST': 'machine-b'})
        self.until_step(head, 29)
        os.kill(self.ranks(head)[1], signal.SIGKILL)
        self.go(30)
        _, err = self.ended(head)
        for newcomer in newcomers:
            self.ended(newcomer)
        self.assertRegex(err, r'(?s)machine_b:1 +cpu\S* +0-0 .*machine_a:0 +cpu\S* +4-5 ')
        self.assert_same_curve(right)

    def test_ranks_join_late_and_go_on_when_all_others_are_lost(self):
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        head = self.start_held({10: 0, 60: 0}, f'--listen={place}', workers=2)
        self.until_step(head, 9)
        newcomers = self.let_join(head, place, 10, count=2, members=4)
        self.until_step(head, 59)
        for rank in self.ranks(head).values():
            os.kill(rank, signal.SIGKILL)
        out = ''.join(self.ended(newcomer)[0] for newcomer in newcomers)
        self.assertRegex(out, '^the ')   # one of them spoke for the run in the end
        _, err = self.ended(head)
        self.assertIn('the ranks of this machine are gone; others may go on by its store', err)
        generations = self.generations()
        self.assertEqual(sum(generation['joined'] for generation in generations), 2, generations)
        self.assertEqual(sum(generation['lost'] for generation in generations), 2, generations)
        self.assertEqual(generations[-1]['members'], 2)
        self.assert_same_curve(right)

    def test_others_join_a_run_of_one_rank(self):
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        head = self.start_held({10: 0, 30: 0}, f'--listen={place}', workers=1, elastic='1:2')
        self.until_step(head, 9)
        [newcomer] = self.let_join(head, place, 10, count=1, members=2)
        self.go(30)
        self.ended(head)
        self.ended(newcomer)
        self.assert_same_curve(right)

    def test_others_join_a_run_that_one_machine_has_resumed(self):
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        kept = ('--snapshots=snaps', '--allow-write=snaps', '--eager')
        head = self.start_held({10: 0}, f'--listen={place}', '--resume', *kept, workers=1, elastic='1:2')
        self.until_step(head, 9)
        [newcomer] = self.let_join(head, place, 10, *kept, count=1, members=2)   # by the command of every other day
        self.ended(head)
        self.ended(newcomer)
        self.assert_same_curve(right)

    def test_others_join_while_a_snapshot_waits_for_the_one_before_it(self):
        """Which a rank that joins does not know: whether a snapshot is due is agreed on."""
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        kept = ('--snapshots=snaps', '--trust', '--eager', '--store=s3://bucket/run')
        slow = bucket.SlowBucket(self.folder / 'store', lambda _: self.until_there(self.folder / 'sent'))
        self.addCleanup(slow.close)
        with mock.patch.dict(os.environ, slow.variables):
            head = self.start_held({12: 0, 16: 0}, f'--listen={place}', *kept, workers=1, elastic='1:2')
            self.until_step(head, 11)   # the snapshot after step 5 is being sent, and that after step 10 waits for it
            [newcomer] = self.let_join(head, place, 12, *kept, count=1, members=2)
        (self.folder / 'sent').touch()
        self.go(16)
        self.ended(head)
        self.ended(newcomer)
        self.assert_same_curve(right)
        self.assertEqual((self.folder / 'store/bucket/run%2Fvocabulary.json').read_bytes(),
                         (self.folder / 'snaps/vocabulary.json').read_bytes())

    def test_a_run_begins_when_as_many_are_there_as_it_needs_at_least(self):
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        head = self.start(f'--listen={place}', '--warn-after=0.2s', workers=1, elastic='3:4')
        self.until_said(head, 'waits for its members to come', 1)
        machine = self.start(f'--join={place}', workers=2, elastic=None)
        self.ended(head)
        self.ended(machine)
        self.assertEqual(self.generations(), [])   # there was one
        self.assert_same_curve(right)

    def test_a_rank_that_is_left_alone_takes_others_in(self):
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        head = self.start_held({10: 0, 20: 0}, '--eager', f'--listen={place}', workers=2)
        self.until_step(head, 9)
        os.kill(self.ranks(head)[1], signal.SIGKILL)
        self.go(10)
        self.until_generation(head, lambda generation: generation['members'] == 1)
        self.until_step(head, 19)
        newcomers = self.let_join(head, place, 20, '--eager', count=2, members=3)
        self.ended(head)
        for newcomer in newcomers:
            self.ended(newcomer)
        self.assertEqual(max(generation['members'] for generation in self.generations()), 3)
        self.assert_same_curve(right)

    def test_no_more_ranks_join_than_there_are_micro_batches(self):
        # Six of two samples in a batch.
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        head = self.start_held({10: 0, 60: 0}, f'--listen={place}', workers=4, elastic='1:64')
        self.until_step(head, 9)
        newcomers = self.let_join(head, place, 10, count=3, members=6)
        self.go(60)
        self.ended(head)
        for newcomer in newcomers:
            self.ended(newcomer)
        self.assertEqual(max(generation['members'] for generation in self.generations()), 6)
        self.assert_same_curve(right)

    def test_a_lost_rank_is_started_again(self):
        right = self.undisturbed()
        for victim in (0, 2):
            with self.subTest(victim=victim):
                process = self.start_held({10: 1}, '--respawn', '--eager', '--warn-after=0.2s')
                self.until_step(process, 9)
                os.kill(self.ranks(process)[victim], signal.SIGKILL)
                self.until_said(process, 'waits to join')
                self.go(10)
                out, err = self.ended(process)
                self.assertIn(f'process {victim} is started again', err)
                self.assertIn(f'[process {victim}] this process has joined the run as rank 3 of 4', err)
                self.assertEqual([(g['members'], g['joined']) for g in self.generations()], [(3, 0), (4, 1)])
                self.assertRegex(out, '^the ')
                self.assert_same_curve(right)

    def test_all_ranks_are_lost_who_alone_had_the_state_and_one_that_waits_begins_anew(self):
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        head = self.start_held({10: 0}, f'--listen={place}', host='alpha', workers=1, elastic='1:2')
        self.until_step(head, 9)
        newcomer = self.start(f'--join={place}', '--warn-after=0.2s', workers=1, elastic=None, environment={'HETRUN_HOST': 'beta'})
        self.until_said(newcomer, 'waits to join')
        os.kill(self.ranks(head)[0], signal.SIGKILL)
        _, err = self.ended(newcomer)
        self.assertIn('neither a rank nor a snapshot has the state of this run; it begins after step 0', err)
        self.ended(head)
        self.assert_same_curve(right)

    def test_all_ranks_are_lost_and_started_again_from_the_last_save(self):
        right = self.undisturbed()
        process = self.start_held({20: 1}, '--respawn', '--save=model', '--fresh')
        self.until_step(process, 19)
        self.until(process, lambda: (self.folder / 'model' / 'training.snapshot').exists(), 'a save')
        for rank in self.ranks(process).values():
            os.kill(rank, signal.SIGKILL)
        _, err = self.ended(process)
        self.assertRegex(err, r'going on after step (3|6|9|12|15|18)\b')
        self.assertRegex(err, rf'saved after step {STEPS} in model')
        self.assert_same_curve(right)

    def test_all_ranks_are_lost_and_started_again_from_snapshots_on_disk(self):
        right = self.undisturbed()
        process = self.start_held({20: 1}, '--respawn', '--snapshots=kept', '--memory=false')
        self.until_step(process, 19)
        self.until(process, lambda: (self.folder / 'kept').exists() and self.whole_snapshots(), 'a snapshot')
        for rank in self.ranks(process).values():
            os.kill(rank, signal.SIGKILL)
        _, err = self.ended(process)
        went_on = re.search(r'going on after step (5|10|15)\b', err)
        self.assertTrue(went_on, err)
        step = int(went_on[1])
        self.assert_same_curve(right)
        # It counts for the whole run; the step that the ranks had said last may be some steps old.
        self.assertRegex(err, rf'\n4 ranks went, 4 came, at least \d+ steps? repeated; of {12 * STEPS:,} samples 0 lost, 0 repeated')
        account = next(record for record in self.records() if 'samples' in record)
        self.assertLessEqual(account['steps_repeated'], 19 - step)
        self.assertEqual(account['changes'], 1)

    def test_a_run_that_is_resumed_counts_what_has_been_before(self):
        process = self.start_held({20: 0}, '--snapshots=kept')
        self.until_step(process, 19)
        os.kill(self.ranks(process)[2], signal.SIGKILL)
        self.go(20)
        self.until_generation(process, lambda generation: generation['members'] == 3)
        self.until_step(process, 40)
        process.send_signal(signal.SIGINT)
        self.ended(process, 130)
        _, err = self.ended(self.start('--snapshots=kept', '--resume'))
        self.assertRegex(err, rf'\n1 rank went, 0 came, \d steps? repeated; of {12 * STEPS:,} samples 0 lost, 0 repeated')

    def test_a_run_that_is_resumed_after_the_loss_of_all_says_what_it_does_not_know(self):
        process = self.start_held({20: 0}, '--snapshots=kept', workers=2, elastic='1:2')
        self.until_step(process, 19)
        self.until(process, lambda: self.whole_snapshots(), 'a snapshot')
        for pid in (process.pid, *self.ranks(process).values()):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        _, err = self.ended(self.start('--snapshots=kept', '--resume', workers=2, elastic='1:2'))
        self.assertRegex(err, r'at least 0 steps repeated')

    def test_a_run_that_has_ended_and_goes_on_knows_all_that_was(self):
        self.steps = 20   # whose snapshot is due after its last step
        self.ended(self.start('--snapshots=kept', workers=2, elastic='1:2'))
        self.steps = 30
        _, err = self.ended(self.start('--snapshots=kept', '--resume', workers=2, elastic='1:2'))
        self.assertRegex(err, r'\n0 ranks went, 0 came, 0 steps repeated')

    def test_a_rank_that_stands_still_does_not_keep_the_launcher(self):
        process = self.start_held({10: 0}, '--timeout=2s')
        self.until_step(process, 9)
        os.kill(self.ranks(process)[1], signal.SIGSTOP)
        self.go(10)
        _, err = self.ended(process)
        self.assertIn('hetrun: process 1 is stopped, and the run has ended: it is killed', err)

    def test_a_rank_that_was_silent_for_too_long_joins_again(self):
        right = self.undisturbed()
        process = self.start_held({10: 0, 40: 0}, '--timeout=3s')
        self.until_step(process, 9)
        victim = self.ranks(process)[1]
        os.kill(victim, signal.SIGSTOP)
        self.go(10)
        self.until_generation(process, lambda generation: generation['members'] == 3)
        self.until_step(process, 39)
        os.kill(victim, signal.SIGCONT)
        time.sleep(1.5)   # it hears that the others went on, and joins again half a second later
        self.go(40)
        self.until_generation(process, lambda generation: generation['members'] == 4)
        self.assertEqual(self.ranks(process)[1], victim)
        self.ended(process)
        self.assert_same_curve(right)

    def with_fault(self, fault, *words, **more):
        """A run that ends well although a rank is killed in it."""
        process = self.start(*words, environment={'HETRUN_FAULT': fault}, **more)
        out, err = self.ended(process)
        self.assertRegex(err, r'process \d was killed by signal 9', fault)
        return out, err

    def test_a_rank_is_killed_at_any_instruction(self):
        # Replicas with the optimizer's state on each; two pipelines of stages; the second is lost.
        self.steps = 6
        right = {'replicas': self.undisturbed('--every=2')}
        draw = random.Random(18)
        for count in range(40):
            plan, workers, victims = ('--spread', 5, (3, 4)) if count % 2 else ('', 4, (0, 1, 2, 3))
            fault = f'rank={draw.choice(victims)} step={draw.randint(1, 6)} at={draw.random():.3f}'
            with self.subTest(fault=fault, plan=plan):
                words = [*filter(None, [plan]), *(['--collect'] if count % 4 > 1 else [])]
                self.with_fault(fault, '--every=2', *words, workers=workers, elastic=f'1:{workers}')
                self.assert_same_curve(right['replicas'])

    def test_the_others_begin_when_a_rank_is_killed_before_it_comes(self):
        self.steps = 6
        right = self.undisturbed('--every=2')
        for victim in (0, 2):
            self.with_fault(f'rank={victim} phase=start', '--every=2', '--timeout=10min')
            self.assertEqual(self.generations(), [])   # three ranks began
            self.assert_same_curve(right)

    def test_a_rank_is_killed_in_each_phase_of_the_end(self):
        self.steps = 6
        right = self.undisturbed('--every=2')
        for phase in ('save', 'results', 'sample', 'after'):
            for victim in (0, 1):
                with self.subTest(phase=phase, victim=victim):
                    shutil.rmtree(self.folder / 'model', ignore_errors=True)
                    out, err = self.with_fault(f'rank={victim} phase={phase}', '--every=2', '--save=model')
                    self.assert_same_curve(right)
                    self.assertTrue((self.folder / 'model' / 'training.snapshot').exists())
                    self.assertRegex(err, 'saved after step 6 in model')
                    self.assertEqual(len(re.findall('(?m)^the ', out)), 1, out)

    def test_a_rank_that_was_left_behind_goes_on_when_all_others_are_lost(self):
        right = self.undisturbed()
        for words in ((), ('--save=model', '--overwrite', '--fresh')):   # a save of its own does not begin again
            with self.subTest(words=words):
                process = self.start_held({10: 0, 40: 0}, '--timeout=1s', *words)
                self.until_step(process, 9)
                ranks = self.ranks(process)
                last = ranks.pop(2)
                os.kill(last, signal.SIGSTOP)
                self.go(10)
                self.until_generation(process, lambda generation: generation['members'] == 3)
                self.until_step(process, 39)
                for rank in ranks.values():
                    os.kill(rank, signal.SIGKILL)
                os.kill(last, signal.SIGCONT)
                out, _ = self.ended(process)
                generation = self.generations()[-1]
                self.assertEqual(generation['members'], 1)
                self.assertIn(generation['step'], (9, 10))   # it did not begin again
                self.assertRegex(out, '^the ')
                self.assert_same_curve(right)

    def test_slices_that_only_the_lost_rank_had_end_the_run_by_name(self):
        process = self.start_held({10: 0}, '--spread', '--sharded', '--memory=false', workers=5, elastic='2:5')
        self.until_step(process, 9)
        os.kill(self.ranks(process)[4], signal.SIGKILL)
        self.go(10)
        _, err = self.ended(process, code=75)
        self.assertRegex(err, r'no member of the run has \S+.* and \d+ others of the state after step \d+')

    def test_a_rank_that_is_started_again_does_not_begin_a_run_anew_that_others_had_to_give_up(self):
        process = self.start_held({10: 0}, '--spread', '--sharded', '--memory=false', '--respawn', workers=5, elastic='1:5')
        self.until_step(process, 9)
        os.kill(self.ranks(process)[4], signal.SIGKILL)
        self.go(10)
        _, err = self.ended(process, code=75)
        self.assertIn('hetrun: process 4 is started again', err)
        self.assertRegex(err, r'\[process 4\] hetrun: the other ranks have given the run up: no member of the run has')
        self.assertLess(max(record.get('step', 0) for record in self.records()), self.steps)

    def memory_of(self, process):
        """The folder in memory of a run, which its launcher owns."""
        rank = next(iter(self.ranks(process).values()))
        values = Path(f'/proc/{rank}/environ').read_bytes().split(b'\0')
        return Path(next(value for value in values if value.startswith(b'HETRUN_MEMORY=')).split(b'=')[1].decode())

    def test_runs_that_share_a_secret_share_no_memory(self):
        runs = []
        for _ in range(2):
            runs.append(self.start_held({6: 0}, f'--listen=127.0.0.1:{free_port()}', workers=2, elastic='1:4'))
            self.until_step(runs[-1], 5)
        first, second = [self.memory_of(run) for run in runs]
        self.assertNotEqual(first, second)
        self.assertTrue(first.is_dir() and second.is_dir())
        self.go(6)
        for run in runs:
            self.ended(run)

    def test_slices_that_only_the_lost_rank_had_come_from_snapshots_in_memory(self):
        right = self.undisturbed()
        # Of the optimizer's state each rank has a part alone; later replicas have all of it.
        for victims in ((4,), (0,), (1, 3)):
            with self.subTest(victims=victims):
                process = self.start_held({20: 2}, '--spread', '--sharded', workers=5, elastic='2:5')
                self.until_step(process, 19)
                ranks, memory = self.ranks(process), self.memory_of(process)
                self.assertTrue(memory.is_dir())
                for victim in victims:
                    os.kill(ranks[victim], signal.SIGKILL)
                self.go(20)
                _, err = self.ended(process)
                self.assertRegex(err, 'read from snapshots in memory')
                first = self.generations()[0]
                self.assertLessEqual(first['steps_repeated'], 5)
                self.assertGreater(first['bytes']['memory'], 0)
                self.assert_same_curve(right)
                self.assertFalse(memory.exists())   # the launcher leaves nothing behind

    def test_snapshots_in_memory_take_no_more_than_their_limit(self):
        """Of 52.3 k parameters the largest part has some 500 KiB; five ranks share the host's limit."""
        for limit, fits in (('100MiB', True), ('100KiB', False)):
            with self.subTest(limit=limit):
                process = self.start_held({20: 2}, '--spread', '--sharded', f'--memory_limit={limit}', workers=5, elastic='2:5')
                self.until_step(process, 19)
                files = [path.stat().st_size for path in self.memory_of(process).glob('**/*') if path.is_file()]
                if fits:
                    self.assertTrue(0 < sum(files) <= 100 << 20, files)
                else:
                    self.assertEqual(sum(files), 0, files)
                os.kill(self.ranks(process)[4], signal.SIGKILL)
                self.go(20)
                _, err = self.ended(process, code=0 if fits else 75)
                said = (r"rank \d: two snapshots of its part of the state take \S+ \S+ of memory, and it may take 20.0 KiB "
                        r'\(snapshot.memory_limit\): this plan has no snapshots in memory')
                (self.assertNotRegex if fits else self.assertRegex)(err, said)
                self.assertRegex(err, 'read from snapshots in memory' if fits else r'no member of the run has \S+')

    def test_all_ranks_are_lost_and_started_again_from_snapshots_in_memory(self):
        right = self.undisturbed()
        process = self.start_held({20: 1}, '--spread', '--sharded', '--respawn', workers=5, elastic='2:5')
        self.until_step(process, 19)
        for rank in self.ranks(process).values():
            os.kill(rank, signal.SIGKILL)
        _, err = self.ended(process)
        self.assertRegex(err, r'going on after step (1[0-9])\b')
        self.assert_same_curve(right)

    def whole_snapshots(self):
        """Steps of the whole ones in `kept`, the newest first. One that is due while another is written comes later."""
        listed = subprocess.run([HETRUN, 'snapshot', 'list', 'kept', '--json'], cwd=self.folder, check=True, text=True,
                                capture_output=True, timeout=WAIT).stdout
        return [each['step'] for each in json.loads(listed)['snapshots'] if 'problem' not in each]

    def metadata_service(self, *words):
        service = subprocess.Popen([sys.executable, str(Path(__file__).parent / 'metadata_server.py'), *words],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(service.stdout.close)
        self.addCleanup(service.wait)
        self.addCleanup(service.kill)
        return service

    def test_the_ranks_of_a_machine_leave_together_when_one_of_them_has_a_notice_of_the_cloud(self):
        self.steps = 1000000
        notice, place = self.folder / 'notice', f'127.0.0.1:{free_port()}'
        service = self.metadata_service('--cloud=aws', '--to-one', f'--notice-file={notice}')
        head = self.start(f'--listen={place}', '--eager', workers=1, elastic='1:3',
                          environment={'HETRUN_HOST': 'alpha', 'HETRUN_METADATA': 'none'})
        self.until_step(head, 1)
        machine = self.start(f'--join={place}', '--eager', workers=2, elastic=None,
                             environment={'HETRUN_HOST': 'beta', 'HETRUN_METADATA': service.stdout.readline().strip()})
        self.until_generation(head, lambda generation: generation['members'] == 3)
        notice.write_text('100')
        _, err = self.ended(machine, code=75)   # the others go on, but none of its own
        self.assertEqual(len(re.findall(r'left the run after step \d+: AWS takes this machine away', err)), 2, err)
        self.until_generation(head, lambda generation: generation['lost'] == 2 and generation['members'] == 1)
        head.send_signal(signal.SIGINT)
        _, err = self.ended(head, code=130)
        self.assertRegex(err, r'generation \d+: ranks 1 and 2 \(beta\) have left: AWS takes machines of this run away')

    def test_a_cloud_that_takes_all_machines_leaves_a_snapshot(self):
        for cloud, who in (('aws', 'AWS'), ('azure', 'Azure')):
            with self.subTest(cloud=cloud):
                self.steps = 1000000
                notice = self.folder / f'{cloud}.notice'
                service = self.metadata_service(f'--cloud={cloud}', f'--notice-file={notice}')
                process = self.start('--snapshots=kept', '--snapshot_every=1000', '--replicas=1', workers=3, elastic='2:3',
                                     environment={'HETRUN_METADATA': service.stdout.readline().strip()})
                self.until_step(process, 9)
                notice.write_text('100')
                _, err = self.ended(process, code=75)   # to be run again
                self.assertRegex(err, rf'(?m)hetrun: the run ended after step \d+: {who} takes machines of this run away \(')
                self.assertRegex(err, rf'(?m)^stopping: {who} takes machines of this run away \(')
                self.assertNotIn('nothing saved', err)
                stopped = int(re.search(r'stopped after step (\d+); its snapshot is in kept: --resume goes on with it', err)[1])
                self.assertEqual(self.whole_snapshots()[0], stopped)
                if cloud == 'azure':
                    self.assertIn('acknowledged', service.stdout.readline())
                self.steps = stopped + 3
                _, err = self.ended(self.start('--snapshots=kept', '--resume', workers=2, elastic='2:2'))
                self.assertIn(f'restored the state after step {stopped}', err)
                self.assertEqual(sorted(self.losses()[0]), [stopped + 1, stopped + 2, stopped + 3])
                shutil.rmtree(self.folder / 'kept')

    def test_a_run_resumes_from_snapshots_on_disk_under_another_plan(self):
        right = self.undisturbed()
        folder = self.folder / 'kept'
        process = self.start_held({20: 2}, '--spread', '--sharded', '--snapshots=kept', workers=5, elastic='5:5')
        self.until_step(process, 19)
        for pid in (process.pid, *self.ranks(process).values()):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        shutil.copytree(folder, self.folder / 'as it was')
        newest = self.whole_snapshots()[0]
        self.assertIn(newest, range(10, 20))
        # A copy of a part of it is none.
        shutil.copytree(folder, self.folder / 'part')
        next((self.folder / 'part').glob(f'step-{newest}-*')).unlink()
        done = subprocess.run([HETRUN, 'snapshot', 'copy', 'part', 'elsewhere', f'--step={newest}'], cwd=self.folder,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r'cannot be copied:\n  no file has \S+ \[')
        self.assertFalse((self.folder / 'elsewhere').exists())
        refused = self.start('--snapshots=kept', workers=2, elastic='1:2')
        _, err = self.ended(refused, code=2)
        self.assertRegex(err, r'kept holds snapshots up to step 1\d; --resume goes on with them')
        for words, workers, elastic in ((['--swap=40'], 4, '2:4'), ([], 2, '1:2')):
            with self.subTest(words=words):
                shutil.rmtree(folder)
                shutil.copytree(self.folder / 'as it was', folder)
                again = self.start('--snapshots=kept', '--resume', *words, workers=workers, elastic=elastic)
                _, err = self.ended(again)
                self.assertRegex(err, rf'restored the state after step {newest}: \S+ \S+ from disk \(kept\)')
                losses, validation = self.losses()
                self.assertEqual(min(losses), newest + 1)
                for mine, all_right in ((losses, right[0]), (validation, right[1])):
                    for step, loss in mine.items():
                        self.assertAlmostEqual(loss, all_right[step], delta=1e-4 * abs(loss), msg=f'step {step}')
                steps = {path.name.split('-')[1] for path in folder.glob('step-*')}
                self.assertLessEqual(len(steps), 4, steps)   # older ones go

    def test_a_rank_whose_machine_is_taken_away_leaves_and_no_step_is_repeated(self):
        self.steps = 400   # others may have a notice, too: ranks wait for half a second
        right = self.undisturbed()
        for words in (['--spread', '--sharded'], ['--spread']):
            for victim in (4, 0):
                with self.subTest(words=words, victim=victim):
                    process = self.start_held({40: 2}, *words, workers=5, elastic='2:5')
                    self.until_step(process, 39)
                    os.kill(self.ranks(process)[victim], signal.SIGTERM)
                    time.sleep(0.5)   # what ranks say is held back while they run
                    self.go(40)
                    _, err = self.ended(process)
                    self.assertIn('leaving the run after the next step', err)
                    self.assertRegex(err, rf'rank {victim} left the run after step \d+: SIGTERM')
                    self.assertRegex(err, rf'generation 2: rank {victim}( \(\S+\))? has left: SIGTERM; ')
                    generations = self.generations()
                    self.assertEqual({g['steps_repeated'] for g in generations}, {0}, generations)
                    self.assertEqual(generations[-1]['members'], 4, err)
                    self.assert_same_curve(right)

    def test_a_rank_leaves_also_where_the_recipe_changes_the_plan_all_the_time(self):
        self.steps = 2000
        process = self.start_held({20: 0}, '--renew=5', workers=3, elastic='1:3')
        self.until_step(process, 19)
        os.kill(self.ranks(process)[1], signal.SIGTERM)
        self.go(20)
        self.until_said(process, 'rank 1 left the run after step')
        process.send_signal(signal.SIGINT)
        self.ended(process, 130)

    def test_what_a_rank_has_written_of_a_snapshot_that_another_has_not_is_removed(self):
        kept = self.folder / 'kept'
        process = self.start_held({8: 0, 15: 0}, '--snapshots=kept', workers=2, elastic='1:2')
        self.until_step(process, 7)
        own = {rank: next(path.name for path in kept.glob(f'*5*rank-{rank}*')) for rank in (0, 1)}
        (kept / own[1].replace('5', '10', 1)).mkdir()   # where rank 1 is to write
        self.go(8)
        self.until_said(process, 'the snapshot on disk after step 10 was not written')
        self.until_step(process, 14)
        self.until(process, lambda: not (kept / own[0].replace('5', '10', 1)).exists(), 'the file of rank 0 goes')
        self.go(15)
        _, err = self.ended(process)
        self.assertIn('the snapshot on disk after step 10 was not written: rank 1: ', err)

    def test_ranks_that_resume_begin_again_when_one_is_lost_before_it_has_done_a_step(self):
        right = self.undisturbed()
        kept = ('--snapshots=kept', '--respawn')
        process = self.start_held({15: 0}, *kept, workers=2, elastic='2:2')
        self.until_step(process, 14)
        process.send_signal(signal.SIGINT)
        self.go(15)
        self.ended(process, 130)
        before = self.records()
        done = max(record['step'] for record in before if 'loss' in record)
        process = self.start(*kept, '--resume', workers=2, elastic='2:2',
                             environment={'HETRUN_FAULT': f'rank=1 step={done + 1} at=0.1'})
        _, err = self.ended(process)
        self.assertIn('process 1 is started again', err)
        (self.folder / 'metrics.jsonl').write_text(''.join(
            json.dumps(record) + '\n' for record in before + self.records()))
        self.assert_same_curve(right)

    def test_ranks_that_find_different_saves_do_not_go_on(self):
        place = f'127.0.0.1:{free_port()}'
        self.steps = 6
        self.ended(self.start('--save=model', workers=2, elastic='2:2'))
        self.steps = STEPS
        words = ('--save=model', '--resume', '--allow-write=model')
        head = self.start(f'--listen={place}', *words, workers=1, elastic='2:2')
        other = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, other, ignore_errors=True)
        for name in ('text.txt', 'lopsided.lua'):
            shutil.copy(self.folder / name, other)
        self.folder, home = other, self.folder
        newcomer = self.start(f'--join={place}', *words, workers=1, elastic=None)
        self.folder = home
        for process in (head, newcomer):
            _, err = self.ended(process, 2)
            self.assertRegex(err, 'the ranks find different states to go on from: rank 0 that of step [06], rank 1 that of step [06]')

    def test_the_loss_of_a_host_is_made_good_from_copies_on_another(self):
        right = self.undisturbed()
        place = f'127.0.0.1:{free_port()}'
        head = self.start_held({10: 0, 60: 0}, '--spread', '--sharded', f'--listen={place}', workers=2, elastic='1:5',
                               host='alpha')
        self.until_step(head, 9)
        newcomers = self.let_join(head, place, 10, '--spread', '--sharded', count=3, members=5,
                                  environment={'HETRUN_HOST': 'beta'})
        self.until_step(head, 59)
        for newcomer in newcomers:
            for rank in self.ranks(newcomer).values():
                os.kill(rank, signal.SIGKILL)
        self.go(60)
        _, err = self.ended(head)
        self.assertRegex(err, r'read from snapshots in memory')
        self.assertLessEqual(max(g['steps_repeated'] for g in self.generations()), 10)
        self.assert_same_curve(right)

    def test_a_damaged_snapshot_is_named_and_an_older_one_is_taken(self):
        right = self.undisturbed()
        process = self.start_held({20: 2}, '--spread', '--sharded', '--snapshots=kept', workers=5, elastic='5:5')
        self.until_step(process, 19)
        self.until(process, lambda: len(self.whole_snapshots()) >= 2, 'two snapshots')
        for pid in (process.pid, *self.ranks(process).values()):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        newest, older = self.whole_snapshots()[:2]
        damaged = sorted((self.folder / 'kept').glob(f'step-{newest}-*.snapshot'))[1]
        bytes_ = bytearray(damaged.read_bytes())
        bytes_[4096 + 100] ^= 1   # in the data of its first part
        damaged.write_bytes(bytes_)
        shutil.copytree(self.folder / 'kept', self.folder / 'as it was')
        # Of five ranks several see the file in turn.
        for words, workers in (((), 2), (('--spread', '--sharded'), 5), ((), 5)):
            with self.subTest(words=words, workers=workers):
                shutil.rmtree(self.folder / 'kept')
                shutil.copytree(self.folder / 'as it was', self.folder / 'kept')
                again = self.start('--snapshots=kept', '--resume', *words, workers=workers, elastic=f'1:{workers}')
                _, err = self.ended(again)
                self.assertIn(damaged.name, err)
                self.assertRegex(err, rf'restored the state after step {older}:')
                for step, loss in self.losses()[0].items():
                    self.assertAlmostEqual(loss, right[0][step], delta=1e-4 * abs(loss), msg=f'step {step}')

    def test_a_planner_or_a_measurement_that_takes_longer_than_the_timeout_is_waited_for(self):
        right = self.undisturbed()
        for phase in ('plan', 'measure'):
            with self.subTest(phase=phase):
                gate = self.folder / phase
                process = self.start('--spread', '--timeout=3s', '--warn-after=1s', workers=5, elastic='1:5', environment={
                    'HETRUN_FAULT': f'rank=0 phase={phase} hold={gate}, rank=4 step=10'})
                # Ranks are measured before they train, for plans that are made ahead.
                self.until_said(process, 'was killed by signal 9' if phase == 'plan' else 'process ids')
                time.sleep(5)   # longer than the timeout
                self.assertIsNone(process.poll())
                self.assertEqual(any('loss' in record for record in self.records()), phase == 'plan')
                gate.touch()
                _, err = self.ended(process)
                self.assertEqual([(g['members'], g['lost']) for g in self.generations()], [(4, 1)], err)
                self.assert_same_curve(right)

    def test_too_few_ranks_save_what_they_have_and_end(self):
        right = self.undisturbed()
        for words in (('--save=model', '--sharded'), ('--snapshots=kept',), ()):
            with self.subTest(words=words):
                process = self.start_held({6: 0}, '--timeout=2s', *words, elastic='4:4')
                self.until_step(process, 5)
                os.kill(self.ranks(process)[1], signal.SIGKILL)
                self.go(6)
                _, err = self.ended(process, code=75)
                self.assertRegex(err, r'the run ended after step 5: rank 1 .*is lost, and 3 of at least 4 ranks were there within '
                                 r'2 s')
                if not words:
                    self.assertRegex(err, r'stopped after step 5; nothing saved')
                    continue
                self.assertRegex(err, r'stopped and saved after step 5 in model' if 'model' in words[0] else
                                 r'stopped after step 5; its snapshot is in kept')
                self.ended(self.start(*words, '--resume', elastic='2:4'))
                again = self.losses()[0]
                self.assertEqual(min(again), 6)
                for step, loss in again.items():
                    self.assertAlmostEqual(loss, right[0][step], delta=1e-4 * abs(loss), msg=f'step {step}')

    def test_an_interrupt_saves_what_ranks_have_that_are_too_few(self):
        process = self.start_held({6: 0}, '--save=model', elastic='4:4')
        self.until_step(process, 5)
        os.kill(self.ranks(process)[1], signal.SIGKILL)
        self.go(6)
        self.until_said(process, 'was killed by signal 9')
        process.send_signal(signal.SIGTERM)
        _, err = self.ended(process, code=130)
        self.assertRegex(err, r'rank 1 .*is lost, and 3 of at least 4 ranks are left')
        self.assertRegex(err, r'stopped and saved after step 5 in model')

    def test_an_interrupt_ends_all_ranks(self):
        process = self.start_held({10: 0, 41: 0}, '--save=model')
        self.until_step(process, 9)
        os.kill(self.ranks(process)[2], signal.SIGKILL)
        self.go(10)
        self.until_step(process, 40)
        process.send_signal(signal.SIGTERM)
        self.until_said(process, 'SIGTERM')
        self.go(41)
        _, err = self.ended(process, code=130)
        step = int(re.search(r'stopped and saved after step (\d+) in model', err).group(1))
        self.assertIn(step, (40, 41, 42))

    def test_an_interrupt_while_the_ranks_find_each_other_again_is_not_lost(self):
        process = self.start_held({10: 0}, '--save=model')
        self.until_step(process, 9)
        os.kill(self.ranks(process)[2], signal.SIGKILL)
        self.until_said(process, 'was killed by signal 9')
        process.send_signal(signal.SIGTERM)
        self.until_said(process, 'SIGTERM')
        self.go(10)
        _, err = self.ended(process, code=130)
        step = int(re.search(r'stopped and saved after step (\d+) in model', err).group(1))
        self.assertIn(step, (9, 10, 11))

    def test_what_is_no_elastic_run_is_said(self):
        for words, sentence in (
                (['--elastic=3:2', 'lopsided.lua'], 'at most 2 ranks are fewer than at least 3'),
                (['--elastic=two', 'lopsided.lua'], 'is not a whole number above 0'),
                (['--workers=2', '--elastic=3:4', 'lopsided.lua'], '--workers 2 starts fewer, and without --listen no others join'),
                (['--workers=5', '--elastic=3:4', 'lopsided.lua'], '--workers 5 starts more'),
                (['--workers=2', '--elastic=1:2'], '--elastic needs a recipe')):
            result = subprocess.run([HETRUN, *words], cwd=self.folder, capture_output=True, text=True, timeout=WAIT)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(sentence, result.stderr)


if __name__ == '__main__':
    unittest.main()
