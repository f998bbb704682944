#!/usr/bin/env python3
"""Several ranks on one machine: the losses of one device, one sentence when a rank dies, nothing left behind.

usage: run.py HETRUN [unittest arguments]
"""
import array
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

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


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'text.txt').write_text(TEXT)
        (self.folder / 'lopsided.lua').write_text((HERE / 'lopsided.lua').read_text())

    def start(self, *words, **environment):
        return subprocess.Popen([HETRUN, *map(str, words)], cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})

    def by_hand(self, world, *words, **environment):
        """Ranks as on machines of their own: no launcher watches them."""
        common = {'WORLD_SIZE': str(world), 'OMP_NUM_THREADS': '1', **environment}
        ranks = [self.start('lopsided.lua', *words, RANK=str(rank), LOCAL_RANK=str(rank), **common)
                 for rank in range(world)]
        self.addCleanup(lambda: [rank.kill() for rank in ranks])
        return ranks

    def at_rank_0(self):
        """What ranks need to find each other at the first one."""
        return {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': free_port(), 'HETRUN_SECRET': SECRET}

    def hetrun(self, *words, code=0):
        process = self.start(*words)
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, code, f'{words}\n{out}\n{err}')
        return out, err

    def losses(self, *words):
        metrics = self.folder / 'metrics.jsonl'
        self.hetrun(*words, '--quiet', f'--metrics={metrics}')
        return self.read_losses(metrics)

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
            self.assertEqual(len(alone), len(spread))
            for one, several in zip(alone, spread):
                self.assertAlmostEqual(one, several, delta=1e-5 * abs(one))

    def test_ranks_that_share_each_layer_give_the_losses_of_one_device(self):
        alone = self.losses('lopsided.lua')
        for words in ([], ['--sharded', '--schedule=gpipe']):
            spread = self.losses('--workers', 6, 'lopsided.lua', '--tensor', *words)
            self.assertEqual(len(alone), len(spread))
            for one, several in zip(alone, spread):
                self.assertAlmostEqual(one, several, delta=1e-5 * abs(one))

    def test_ranks_without_a_plan_share_the_batch(self):
        alone, spread = self.losses('lopsided.lua'), self.losses('--workers', 4, 'lopsided.lua')
        self.assertGreater(len(alone), 4)
        self.assertEqual(len(alone), len(spread))
        for one, several in zip(alone, spread):
            self.assertAlmostEqual(one, several, delta=1e-5 * abs(one))

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
                                   ('tensor', 6, ['--tensor', '--sharded'])):
            common = ['--workers', ranks, 'lopsided.lua', f'--save={name}', *words]
            self.hetrun(*common, '--stop=7', code=2)
            self.hetrun(*common)
            self.assert_same_weights('alone', name)

    def test_the_first_rank_writes_text_with_the_whole_model(self):
        alone, _ = self.hetrun('lopsided.lua')
        for ranks, words in ((RANKS, '--spread'), (6, '--tensor')):
            spread, _ = self.hetrun('--workers', ranks, 'lopsided.lua', words)
            self.assertEqual(alone.splitlines()[-1], spread.splitlines()[-1])

    def test_ranks_started_by_hand_meet(self):
        for rank in self.by_hand(2, '--json', **self.at_rank_0()):
            out, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 0, out + err)

    @unittest.skipUnless(shutil.which('etcd'), 'no etcd here (Debian: etcd-server)')
    def test_ranks_meet_in_etcd(self):
        client, peer = (f'http://127.0.0.1:{free_port()}' for _ in range(2))
        etcd = subprocess.Popen(['etcd', '--name', 'one', '--data-dir', self.folder / 'etcd', '--unsafe-no-fsync',
                                 '--listen-client-urls', client, '--advertise-client-urls', client,
                                 '--listen-peer-urls', peer, '--initial-advertise-peer-urls', peer,
                                 '--initial-cluster', f'one={peer}'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(etcd.wait)
        self.addCleanup(etcd.kill)
        secret = self.folder / 'secret'
        secret.write_text(SECRET)
        secret.chmod(0o600)
        metrics = self.folder / 'spread.jsonl'
        ranks = self.by_hand(RANKS, '--spread', '--quiet', f'--rendezvous={client.replace("http", "etcd")}',
                             '--interface=127.0.0.1', f'--secret-file={secret}', f'--metrics={metrics}')
        for rank in ranks:
            out, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 0, out + err)
        alone, spread = self.losses('lopsided.lua'), self.read_losses(metrics)
        self.assertEqual(len(alone), len(spread))
        for one, several in zip(alone, spread):
            self.assertAlmostEqual(one, several, delta=1e-5 * abs(one))


class Mistakes(Case):
    def test_a_plan_for_more_devices(self):
        _, err = self.hetrun('lopsided.lua', '--spread', code=2)
        self.assertIn('the plan is for 5 devices, this process is alone; start the recipe with --workers 5', err)
        _, err = self.hetrun('--workers', 3, 'lopsided.lua', '--spread', code=2)
        self.assertEqual(err.count('the plan is for 5 devices, 3 ranks are here'), 1, err)

    def test_a_mistake_of_the_recipe_is_told_once(self):
        _, err = self.hetrun('--workers', 3, 'lopsided.lua', '--stepz=3', code=2)
        self.assertEqual(err.count('did you mean --steps?'), 1, err)

    def test_no_recipe(self):
        _, err = self.hetrun('--workers', 2, code=2)
        self.assertIn('--workers 2 needs a recipe to run', err)

    def test_ranks_that_run_different_recipes(self):
        where = self.at_rank_0()
        ranks = [self.start('lopsided.lua', f'--steps={10 + rank}', WORLD_SIZE='2', RANK=str(rank), LOCAL_RANK=str(rank),
                            **where) for rank in (0, 1)]
        for rank in ranks:
            _, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 2, err)
            self.assertIn('recipe', err)

    def two_ranks(self, *words):
        """Exit codes and messages of two ranks, each started with its own words."""
        where = self.at_rank_0()
        ranks = [self.start(*words[rank], WORLD_SIZE='2', RANK=str(rank), LOCAL_RANK=str(rank), **where)
                 for rank in (0, 1)]
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        return [(rank.returncode, err) for rank, (_, err) in zip(ranks, outputs)]

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


class Interrupts(Case):
    def until(self, condition, sentence):
        until = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), until, sentence)
            time.sleep(0.005)

    def test_sigterm_has_all_ranks_save_and_leave_whoever_is_told(self):
        metrics = self.folder / 'metrics.jsonl'
        for told in ('the launcher', 'a rank', 'all'):
            metrics.unlink(missing_ok=True)
            folder = told.replace(' ', '_')
            process = self.start('--workers', RANKS, 'lopsided.lua', '--spread', '--steps=100000', f'--save={folder}',
                                 f'--metrics={metrics}')
            children = self.wait_for_ranks(process, RANKS)
            self.until(lambda: metrics.exists() and metrics.stat().st_size > 0, 'no step was reported')
            for pid in {'the launcher': [process.pid], 'a rank': [children[3]],
                        'all': [process.pid, *children.values()]}[told]:
                os.kill(pid, signal.SIGTERM)
            _, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 130, f'{told}\n{err}')
            self.assertIn(f'in {folder}', err)
            self.assertNotIn('hetrun:', err)
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

    # Of a run: what is given to it, how long after which event a rank dies.
    PHASES = {'joining and warming up': ([], False, 0.6), 'training': ([], True, 0.5),
              'evaluating': (['--every=1', '--batches=100'], True, 0.5)}

    def test_a_killed_rank_ends_all_with_one_sentence(self):
        seed = int(os.environ.get('HETRUN_KILL_SEED', '1'))
        chance = random.Random(seed)
        slowest = 0
        for trial in range(int(os.environ.get('HETRUN_KILL_TRIALS', '6'))):
            phase, (words, trains, spread) = list(self.PHASES.items())[trial % len(self.PHASES)]
            metrics = self.folder / f'{trial}.jsonl'
            process = self.start('--workers', RANKS, 'lopsided.lua', '--spread', '--steps=100000', f'--metrics={metrics}',
                                 *words)
            children = self.wait_for_ranks(process, RANKS)
            if trains:
                self.until_it_trains(metrics)
            time.sleep(chance.random() * spread)
            victim = chance.randrange(RANKS)
            killed = time.monotonic()
            os.kill(children[victim], signal.SIGKILL)
            _, err = process.communicate(timeout=120)
            slowest = max(slowest, time.monotonic() - killed)
            where = f'seed {seed}, trial {trial} ({phase}): rank {victim}\n{err}'
            self.assertEqual(process.returncode, 75, where)
            self.assertIn(f'rank {victim} was killed by signal 9', err, where)
            self.assert_gone(children.values())
        print(f'from the kill to the end of all, at most: {slowest:.3f} s')

    def test_a_stopped_rank_ends_all_within_the_timeout(self):
        chance = random.Random(int(os.environ.get('HETRUN_KILL_SEED', '1')))
        for trial in range(int(os.environ.get('HETRUN_STOP_TRIALS', '2'))):
            metrics = self.folder / f'{trial}.jsonl'
            process = self.start('--workers', RANKS, '--timeout=2s', '--warn-after=1s', 'lopsided.lua', '--spread',
                                 '--steps=100000', f'--metrics={metrics}')
            children = self.wait_for_ranks(process, RANKS)
            self.until_it_trains(metrics)
            time.sleep(chance.random() * 0.5)
            victim = chance.randrange(RANKS)
            os.kill(children[victim], signal.SIGSTOP)
            _, err = process.communicate(timeout=120)
            where = f'trial {trial}: rank {victim}\n{err}'
            self.assertEqual(process.returncode, 75, where)
            self.assertRegex(err, f'rank {victim} ', where)
            self.assert_gone(children.values())

    def test_ranks_without_a_launcher_notice_a_killed_one(self):
        chance = random.Random(int(os.environ.get('HETRUN_KILL_SEED', '1')))
        slowest = 0
        for trial in range(int(os.environ.get('HETRUN_KILL_TRIALS', '4'))):
            metrics = self.folder / f'{trial}.jsonl'
            ranks = self.by_hand(RANKS, '--spread', '--steps=100000', f'--metrics={metrics}', **self.at_rank_0())
            self.until_it_trains(metrics)
            time.sleep(chance.random() * 0.5)
            victim = 1 + chance.randrange(RANKS - 1)
            killed = time.monotonic()
            ranks[victim].kill()
            for number, rank in enumerate(ranks):
                _, err = rank.communicate(timeout=120)
                if number == victim:
                    continue
                where = f'trial {trial}: rank {victim} killed, rank {number} says\n{err}'
                self.assertEqual(rank.returncode, 75, where)
                # What it says last is why: the dead rank by name, or who ended the group because of it.
                self.assertRegex(err.splitlines()[-1], r'^hetrun: .*rank \d', where)
            slowest = max(slowest, time.monotonic() - killed)
        print(f'without a launcher, from the kill to the end of all, at most: {slowest:.3f} s')

    def test_nothing_outlives_the_launcher(self):
        process = self.start('--workers', RANKS, 'lopsided.lua', '--spread', '--steps=100000')
        children = self.wait_for_ranks(process, RANKS)
        time.sleep(0.5)
        process.kill()
        process.communicate(timeout=60)
        self.assert_gone(children.values())


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[1:])
