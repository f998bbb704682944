"""Launchers, interrupts and ranks that die: one sentence, and nothing left behind."""
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import leftovers
from case import Case, HETRUN, RANKS, SECRET, clients_of, last_words, suspects


class Launcher(Case):
    def test_the_last_words_of_a_rank_need_no_line_end(self):
        (self.folder / 'dies.lua').write_text(
            'if os.getenv "RANK" == "1" then io.stderr:write("these were my last"); os.exit(3) end\n'
            + (self.folder / 'lopsided.lua').read_text())
        _, err = self.hetrun('--workers', 2, 'dies.lua', '--trust', code=3)
        self.assertIn('[rank 1] these were my last\n', err)

    def test_a_mistake_that_all_ranks_meet_is_reported_once(self):
        # Rank 0 notices it last, as on a busy machine, or not at all.
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

    def test_a_run_that_saves_nothing_says_so(self):
        _, err = self.hetrun('lopsided.lua', '--steps=1000000', '--limit-time=2s', code=130)
        self.assertRegex(err, r'(?m)^stopped after step \d+; nothing saved \(set `save`\)$')

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
    WAITS = [('warm-up', 'forming group'), ('forward', 'of forward '), ('backward', 'of backward '),
             ('sync', 'during gradient '), ('update', 'of gradient norms|during parameter '), ('loss', 'of loss|of whether to stop')]

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

    def test_the_last_save_is_named(self):
        for victim in (0, RANKS - 1):
            process = self.start('--workers', RANKS, 'lopsided.lua', '--spread', '--steps=100000', f'--save=saved{victim}',
                                 *(['--quiet'] if victim else []))
            children = self.wait_for_ranks(process, RANKS)
            self.until((self.folder / f'saved{victim}' / 'training.snapshot').exists, 'nothing was saved')
            os.kill(children[victim], signal.SIGKILL)
            _, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 75, err)
            self.assertRegex(err, rf'(?m)saved{victim} holds a model of \d+ steps: --resume goes on with it$')
            self.hetrun('--workers', RANKS, 'lopsided.lua', '--spread', f'--save=saved{victim}', '--resume', '--steps=1')

    def test_that_nothing_was_saved_is_said(self):
        metrics = self.folder / 'nothing.jsonl'
        process = self.start('--workers', RANKS, 'lopsided.lua', '--spread', '--steps=100000', '--quiet', f'--metrics={metrics}')
        children = self.wait_for_ranks(process, RANKS)
        self.until(lambda: metrics.exists() and metrics.stat().st_size > 0, 'no step was done')
        os.kill(children[0], signal.SIGKILL)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 75, err)
        self.assertRegex(err, r'nothing was saved of \d+ steps? \(set `save` with `save_every`, or `snapshot\.folder`\)\n')

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
            self.assertRegex(err, r'waiting [0-9.]+ s for rank 0 \((has not arrived|no answer)\) during ', err)
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
