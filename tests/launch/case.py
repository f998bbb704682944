"""What the tests of several ranks share: how they are started, watched and read."""
import base64
import json
import os
import pathlib
import re
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
    waited_for = re.sub(r', which rank \d+ waits for', '', sentence)
    one = r'rank \d+(?: on [^ ,]+)?'
    lists = re.findall(rf'(?:lost|s for|missing:) ({one}(?:, {one})*)', waited_for) + re.findall(rf'({one}) was killed', waited_for)
    return {int(rank) for words in lists for rank in re.findall(r'rank (\d+)', words)}


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
        """Exit codes and messages of two ranks, each started with separate words."""
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
