"""Six machines of one rank each; with m copies of each part of the state up to m - 1 of them are lost at once, with all that
was in their memory: python3 tests/chaos/redundancy.py build/lua/hetrun [unittest arguments]

Where the copies of the lost ranks' snapshots are current, no step is repeated."""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import judge
from elastic_run import PATIENCE, Run, free_port, write_text

HETRUN = str(Path(sys.argv.pop(1)).resolve())
HOSTS = 6
STEPS, LOST_AFTER = 120, 89


class SixHosts(Run):
    """The first machine serves the store, the others join before step 4; all wait before the step after LOST_AFTER."""

    class Schedule:   # what Run asks of one
        seed, world, events, faults, kinds, disk = 0, 'hosts', {4: None, LOST_AFTER + 1: None}, [], set(), False

        def __init__(self, copies):
            self.copies = copies

        def words(self):
            return [f'--steps={STEPS}', '--every=40', '--timeout=20s', '--warn-after=0.2s', '--tensor', '--sharded',
                    f'--replicas={self.copies}']

    def __init__(self, copies, folder, zones=()):
        def of(host):
            return [f'--zone={zones[host]}'] if zones else []
        super().__init__(HETRUN, self.Schedule(copies), folder)
        place = self.place = f'127.0.0.1:{free_port()}'
        self.launch(['--elastic', f'1:{HOSTS}', f'--listen={place}', *of(0)], 'host0', 1)
        self.need(lambda: self.come_to(4))
        for host in range(1, HOSTS):
            self.launch([f'--join={place}', *of(host)], f'host{host}', 1)
        self.need(lambda: all('waits to join' in each.said() for each in self.processes[1:]))
        self.gates[4].touch()
        self.need(lambda: self.come_to(LOST_AFTER + 1))
        if not any(record.get('members') == HOSTS for record in judge.records_of(self.metrics[0])):
            raise AssertionError(f'not all have joined by then: {self.processes[0].said()}')

    def need(self, is_it):
        if not self.until(is_it):
            raise AssertionError(''.join(each.said() for each in self.processes))

    def rank_of(self, host):
        """By the file that it has written itself."""
        for path in self.memory_folder(f'host{host}').glob(f'*/scarce/step-*-of-{HOSTS}.snapshot'):
            return int(re.search(r'-rank-(\d+)-', path.name).group(1))
        return None

    def copied(self, host, lost):
        """The step of the newest copy of the host's snapshot on a machine that is not in `lost`."""
        rank, steps = self.rank_of(host), [0]
        for other in set(range(HOSTS)) - set(lost):
            for path in self.memory_folder(f'host{other}').glob(
                    f'*/replicas/*/step-*-rank-{rank}-of-{HOSTS}.snapshot'):
                steps.append(int(path.name.split('-')[1]))
        return max(steps)

    def lose(self, hosts):
        """All at once; the first machine's launcher serves the store, and goes on without a rank."""
        for host in hosts:
            for pid in self.processes[host].ranks() + ([self.processes[host].process.pid] if host > 0 else []):
                subprocess.run(['kill', '-STOP', str(pid)], check=True)
        for host in hosts:
            if host > 0:
                self.processes[host].kill()
            else:
                self.processes[0].signal_ranks(signal.SIGKILL)
            shutil.rmtree(self.memory_folder(f'host{host}'), ignore_errors=True)


class Redundancy(unittest.TestCase):
    def lose(self, copies, hosts, right):
        """Whether there were copies on other machines."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        write_text(folder)
        run = SixHosts(copies, folder)
        self.addCleanup(run.close)
        # A snapshot that is due while another is written comes a step later: then the copy is a step behind.
        deadline = time.monotonic() + 5
        while min(run.copied(host, hosts) for host in hosts) < LOST_AFTER and time.monotonic() < deadline:
            time.sleep(0.02)
        newest = min(run.copied(host, hosts) for host in hosts)
        run.lose(hosts)
        run.gates[LOST_AFTER + 1].touch()
        run.until(lambda: False)
        said = ''.join(each.said() for each in run.processes)
        self.assertEqual(run.processes[0].process.poll(), 0, said)
        curve = judge.Curve()
        records = judge.records_of(folder / 'metrics.jsonl')
        curve.read(records, HOSTS)
        curve.exact = 0   # it began by another plan
        self.assertEqual(curve.problem(right, [], said), '', said)
        changes = [record for record in records if 'generation' in record and record['lost'] > 0]
        self.assertEqual(sum(record['lost'] for record in changes), len(hosts), said)
        self.assertLessEqual(changes[0]['steps_repeated'], max(0, LOST_AFTER - newest), f'{newest}: {said}')
        print(f'{copies} copies, lost {hosts}: copied up to step {newest} of {LOST_AFTER}, '
              f'{changes[0]["steps_repeated"]} steps repeated', file=sys.stderr)
        return newest > 0

    def undisturbed(self):
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        write_text(folder)
        subprocess.run([HETRUN, 'lopsided.lua', f'--steps={STEPS}', '--every=40', '--metrics=metrics.jsonl', '--quiet'],
                       cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
        return [record['loss'] for record in judge.records_of(folder / 'metrics.jsonl') if 'loss' in record]

    def test_any_of_six_machines_is_lost_with_two_copies(self):
        right = self.undisturbed()
        copied = 0
        for host in range(HOSTS):
            with self.subTest(host=host):
                copied += self.lose(2, [host], right)
        self.assertEqual(copied, HOSTS)

    def test_any_two_of_six_machines_are_lost_at_once_with_three_copies(self):
        right = self.undisturbed()
        for hosts in ((0, 3), (1, 2), (4, 5)):
            with self.subTest(hosts=hosts):
                self.lose(3, hosts, right)

    def test_copies_lie_in_the_other_zone(self):
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        write_text(folder)
        zones = ['east', 'east', 'west', 'west', 'west', 'west']
        run = SixHosts(2, folder, zones)
        self.addCleanup(run.close)
        same = {host: [other for other in range(HOSTS) if zones[other] == zones[host]] for host in range(HOSTS)}
        run.need(lambda: min(run.copied(host, same[host]) for host in range(HOSTS)) > 0)
        for host in range(HOSTS):
            elsewhere = [other for other in range(HOSTS) if other not in same[host]]
            self.assertEqual(run.copied(host, elsewhere), 0, host)


if __name__ == '__main__':
    unittest.main()
