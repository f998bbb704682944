"""Runs with --chaos, and what elastic runs say of losses: python3 tests/launch/chaos_option.py build/lua/hetrun [Class.test]"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HETRUN = str(Path(sys.argv.pop(1)).resolve())
HERE = Path(__file__).resolve().parent
WAIT = 120
STEPS = 60
REPLICAS = ['lopsided.lua', '--every=20']
# Each has a part of the optimizer's state alone.
SHARDED = ['spot.lua', '--text=text.txt', '--width=16', '--layers=1', '--heads=2', '--context=16']


class Chaos(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over a lazy dog\n' * 80)
        for path in (HERE / 'lopsided.lua', HERE / 'schedule.lua', HERE.parent.parent / 'recipes' / 'spot.lua'):
            shutil.copy(path, self.folder)

    def hetrun(self, *words, code=0):
        done = subprocess.run([HETRUN, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=WAIT,
                              check=False)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done

    def records(self, *words):
        """What a run reports, and what it says."""
        done = self.hetrun(f'--steps={STEPS}', '--metrics=metrics.jsonl', *words)
        lines = (self.folder / 'metrics.jsonl').read_text().splitlines()   # the command line counts
        return [json.loads(line) for line in lines], done.stderr

    def losses(self, records):
        return {record['step']: record['loss'] for record in records if 'loss' in record}

    def disturbed(self, seed, *words):
        return self.records('--workers=4', '--elastic=2:4', f'--chaos={seed}', *words)

    def test_the_schedule_keeps_its_rules(self):
        self.assertEqual(self.hetrun('--trust', 'schedule.lua').stdout, 'right\n')

    def test_the_losses_are_those_of_an_undisturbed_run(self):
        right = self.losses(self.records(*REPLICAS)[0])
        for seed in (1, 2, 7):
            with self.subTest(seed=seed):
                records, err = self.disturbed(seed, *REPLICAS)
                found = self.losses(records)
                self.assertEqual(sorted(found), sorted(right))
                for step, loss in right.items():
                    self.assertAlmostEqual(found[step], loss, delta=1e-4 * abs(loss), msg=f'step {step}\n{err}')
                events = [line for line in err.splitlines() if '; back after step ' in line]
                gone = sum(len(re.findall(r'\d+', re.search('process(.*?)(is|are|get)', line)[1])) for line in events)
                self.assertGreater(gone, 0)
                account = next(record for record in records if 'samples' in record)
                self.assertEqual((account['ranks_gone'], account['ranks_joined']), (gone, gone), err)
                self.assertEqual((account['samples'], account['samples_lost'], account['samples_repeated']),
                                 (STEPS * 12, 0, 0))
                self.assertRegex(err, rf'{gone} ranks? went, {gone} came, .* of {STEPS * 12} samples 0 lost, 0 repeated')

    def test_a_seed_repeats_its_schedule(self):
        said, changes = [], []
        for seed in (5, 5, 6):
            records, err = self.disturbed(seed, *REPLICAS)
            said.append(re.search(r'(?m)^chaos: .*\n(?:  step .*\n)+', err)[0])
            changes.append([(r['last_step'], r['members'], r['lost'], r['joined']) for r in records if 'timeline' in r
                            and not r['after_loss']])   # which step a loss breaks off depends on who has come how far
        self.assertEqual(said[0], said[1])
        self.assertEqual(changes[0], changes[1])
        self.assertNotEqual(said[0], said[2])

    def test_every_pause_has_a_timeline(self):
        for words in (REPLICAS, SHARDED):
            with self.subTest(recipe=words[0]):
                records, err = self.disturbed(2, *words)
                pauses = [record for record in records if 'timeline' in record]
                self.assertEqual(len(pauses), len(re.findall(r'(?m)^  (?:noticed|all agreed).* done .*repeated$', err)), err)
                self.assertTrue(any(pause['after_loss'] for pause in pauses))
                self.assertTrue(any(not pause['after_loss'] for pause in pauses))
                for pause in pauses:
                    times = [pause[f'{name}_seconds'] for name in ('frozen', 'connected', 'planned', 'restored', 'first_step')]
                    self.assertEqual(times, sorted(times))
                    self.assertGreater(times[0], 0)
                    self.assertGreaterEqual(pause['first_step'], pause['last_step'] - pause['steps_repeated'])
                    self.assertGreater(pause['lost'] + pause['joined'], 0)
                    if pause['joined']:
                        self.assertGreater(pause['bytes']['live'], 0)   # who joins has nothing
                if words is SHARDED:
                    self.assertTrue(any(pause['bytes'].get('memory', 0) > 0 for pause in pauses), pauses)

    def test_the_age_of_the_newest_snapshot_is_reported(self):
        # Replicas have all of the state, and take none.
        records, err = self.records('--workers=2', '--elastic=1:2', *REPLICAS)
        self.assertFalse(any('snapshot_hosts' in record for record in records))
        self.assertNotIn('snapshot', err)
        records, err = self.records('--workers=2', '--elastic=1:2', *SHARDED)
        found = [record for record in records if 'snapshot_hosts' in record]
        self.assertGreater(len(found), STEPS // 2, err)
        for record in found:
            self.assertGreaterEqual(record['snapshot_age_steps'], 1)
            self.assertGreater(record['snapshot_stall_seconds'], 0)
            self.assertEqual((record['snapshot_hosts'], record['replicas_behind_bytes']), (1, 0))
        self.assertRegex(err, r'snapshot \d+ steps? old on 1 host\b')

    def test_a_rank_that_has_left_is_no_good_end_of_the_run(self):
        # After the notice of one the other is killed: nothing has trained to the end.
        words = ['--workers=2', '--elastic=1:2', 'lopsided.lua', '--steps=100000', '--every=100000']
        process = subprocess.Popen([HETRUN, *words], cwd=self.folder, text=True, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        ranks = [int(word) for word in re.findall(r'\d+', process.stderr.readline())]
        for line in process.stderr:
            if line.startswith('step '):
                subprocess.run(['kill', '-TERM', str(ranks[1])], check=True)
                break
        for line in process.stderr:
            if 'goes on' in line:
                subprocess.run(['kill', '-KILL', str(ranks[0])], check=True)
                break
        process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=WAIT), 75)

    def test_what_is_no_chaos_is_said(self):
        for words, sentence in (
                (['--chaos=x', '--workers=4', '--elastic=2:4'], '--chaos=x is not a seed'),
                (['--chaos=-1', '--workers=4', '--elastic=2:4'], '--chaos=-1 is not a seed'),
                (['--chaos=1234567890', '--workers=4', '--elastic=2:4'], 'is not a seed'),
                (['--chaos', '7', '--workers=4'], 'it needs --workers and --elastic'),
                (['--chaos', '7', '--elastic=2:4'], 'it needs --workers and --elastic'),
                (['--chaos', '7', '--workers=2', '--elastic=2:4'], '--chaos has no rank to lose'),
                (['--chaos', '7', '--workers=4', '--elastic=2:4', '--respawn'], 'leave --respawn out'),
                (['--chaos', '7', '--workers=4', '--elastic=2:4', '--listen=127.0.0.1:7777'], 'of one machine')):
            with self.subTest(words=words):
                self.assertIn(sentence, self.hetrun('lopsided.lua', *words, code=2).stderr)
        self.assertIn('a run of 9 steps has no room for faults', self.hetrun(
            'lopsided.lua', '--chaos=7', '--workers=4', '--elastic=2:4', '--steps=9', code=2).stderr)
        self.assertIn('micro-batches for 6 of 7', self.hetrun(
            'lopsided.lua', '--chaos=7', '--workers=7', '--elastic=2:7', code=2).stderr)


if __name__ == '__main__':
    unittest.main()
