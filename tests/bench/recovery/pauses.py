#!/usr/bin/env python3
"""How long a run with --elastic stands still when a rank is killed: python3 tests/bench/recovery.py build/lua/hetrun

Each trial starts four ranks of a small model, kills one of them in its steps with SIGKILL and reads from the metrics
when the others are connected again, have a session, and have done their next step. --etcd: they meet in etcd (a process
of this machine) instead of the launcher's store.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

RECIPE = """local het = require "het"
local corpus = het.data.text { path = "text.txt", tokenizer = "char" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 16, width = 32, layers = 4, heads = 4 },
  data = corpus, batch = 12, microbatch = 1, steps = 100000, optimizer = het.optim.adamw { lr = 1e-3 },
  evaluate = { every = 0 },
}
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


def start_etcd(folder):
    client, peer = (f'http://127.0.0.1:{free_port()}' for _ in range(2))
    process = subprocess.Popen(['etcd', f'--data-dir={folder}/etcd', f'--listen-client-urls={client}',
                                f'--advertise-client-urls={client}', f'--listen-peer-urls={peer}',
                                f'--initial-advertise-peer-urls={peer}', f'--initial-cluster=default={peer}'],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f'{client}/health', timeout=1).read()
            return process, client.replace('http', 'etcd')
        except OSError:
            time.sleep(0.1)
    process.kill()
    sys.exit('etcd did not begin within 30 s')


class Metrics:
    """Lines of a file as they come, with the time at which they were seen."""

    def __init__(self, path):
        self.path, self.file, self.part = path, None, ''

    def until(self, is_it, process):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.file is None and self.path.exists():
                self.file = open(self.path)
            line = self.file.readline() if self.file else ''
            if not line.endswith('\n'):
                self.part += line
                if process.poll() is not None:
                    sys.exit(f'the run ended: {process.communicate()}')
                time.sleep(0.0002)
                continue
            now, record, self.part = time.monotonic(), json.loads(self.part + line), ''
            if is_it(record):
                return now, record
        process.kill()
        sys.exit(f'nothing came within 60 s: {process.communicate()}')


def trial(hetrun, folder, chance, words):
    metrics = folder / 'metrics.jsonl'
    metrics.unlink(missing_ok=True)
    process = subprocess.Popen([hetrun, '--workers', '4', '--elastic', '2:4', 'recipe.lua', '--quiet',
                                f'--metrics={metrics}', *words], cwd=folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    lines = Metrics(metrics)
    first = 20 + chance.randrange(40)
    lines.until(lambda record: record.get('step') == first, process)
    ranks = [int(pid) for pid in subprocess.run(['pgrep', '-P', str(process.pid)], capture_output=True,
                                                text=True).stdout.split()]
    time.sleep(chance.random() * 0.02)
    killed = time.monotonic()
    os.kill(chance.choice(ranks), signal.SIGKILL)
    ready, generation = lines.until(lambda record: 'generation' in record, process)
    stepped, _ = lines.until(lambda record: record.get('step', 0) > generation['step'] + 1, process)
    process.terminate()
    process.communicate()
    noticed = ready - killed - generation['seconds']
    return noticed, noticed + generation['connected_seconds'], ready - killed, stepped - killed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('hetrun')
    parser.add_argument('--trials', type=int, default=100)
    parser.add_argument('--etcd', action='store_true')
    parser.add_argument('--seed', type=int, default=1)
    arguments = parser.parse_args()
    folder, chance = Path(tempfile.mkdtemp()), random.Random(arguments.seed)
    (folder / 'text.txt').write_text(' '.join(chance.choice(['the', 'quick', 'brown', 'fox']) for _ in range(3000)))
    (folder / 'recipe.lua').write_text(RECIPE)
    words, etcd = [], None
    try:
        if arguments.etcd:
            etcd, place = start_etcd(folder)
            words = [f'--rendezvous={place}']
            os.environ['HETRUN_SECRET'] = 'a secret of this benchmark alone'
        rows = [trial(str(Path(arguments.hetrun).resolve()), folder, chance, words) for _ in range(arguments.trials)]
    finally:
        if etcd:
            etcd.kill()
        shutil.rmtree(folder, ignore_errors=True)
    print(f'{arguments.trials} kills of one of 4 ranks, {"etcd" if arguments.etcd else "embedded store"}; '
          'from the kill, milliseconds:')
    for name, times in zip(('noticed', 'connected again', 'next session ready', 'two steps done'), zip(*rows)):
        ordered = sorted(1e3 * seconds for seconds in times)
        print(f'{name:20} median {statistics.median(ordered):6.1f}  p99 {ordered[int(0.99 * (len(ordered) - 1))]:6.1f}  '
              f'most {ordered[-1]:6.1f}')


if __name__ == '__main__':
    main()
