"""Traces of a step over several ranks."""
import json
import re
import shutil
import subprocess
import unittest

from case import Case


def clock_ahead(seconds):
    """The command that starts another with a separate clock, as hosts have."""
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
            sent = sum(e['args']['sent_bytes'] for e in events if e['ph'] == 'b' and e['pid'] == rank)
            self.assertEqual(sent, results['ranks'][rank]['sent_bytes'])
            self.assertLess(0, sent)
        for event in (e for e in events if e['ph'] == 'b' and e['name'].startswith('receive')):
            self.assertEqual(event['args']['sent_bytes'], 0, event)
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
        self.assertIn(f'; slowest rank ({longest["device"]})', err)

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
