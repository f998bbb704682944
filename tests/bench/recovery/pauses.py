"""How long a run with --elastic stands still when a rank is lost.

Each trial starts four ranks of a small model, ends one of them in its steps with SIGKILL, or stops it with SIGSTOP, and
reads from the metrics when the others are connected again, have a session, and have done their next step. With etcd
they meet there (a process of this machine) instead of in the launcher's store.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from metrics import Metrics

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


def until(metrics, is_it, process):
    """The time at which a record came, and the record."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        seen = metrics.next()
        if seen is None:
            if process.poll() is not None:
                sys.exit(f'the run ended: {process.communicate()}')
            time.sleep(0.0002)
        elif is_it(seen[1]):
            return seen
    process.kill()
    sys.exit(f'nothing came within 60 s: {process.communicate()}')


def trial(hetrun, folder, chance, words, silent):
    metrics = folder / 'metrics.jsonl'
    metrics.unlink(missing_ok=True)
    process = subprocess.Popen([hetrun, '--workers', '4', '--elastic', '2:4', 'recipe.lua', '--quiet',
                                f'--metrics={metrics}', *words], cwd=folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    lines = Metrics(metrics)
    first = 20 + chance.randrange(40)
    until(lines, lambda record: record.get('step') == first, process)
    ranks = [int(pid) for pid in subprocess.run(['pgrep', '-P', str(process.pid)], capture_output=True,
                                                text=True).stdout.split()]
    time.sleep(chance.random() * 0.02)
    killed = time.monotonic()
    victim = chance.choice(ranks)
    os.kill(victim, signal.SIGSTOP if silent else signal.SIGKILL)
    ready, generation = until(lines, lambda record: 'generation' in record, process)
    stepped, _ = until(lines, lambda record: record.get('step', 0) > generation['step'] + 1, process)
    if silent:
        os.kill(victim, signal.SIGKILL)
    process.terminate()
    process.communicate()
    noticed = ready - killed - generation['seconds']
    return noticed, noticed + generation['connected_seconds'], ready - killed, stepped - killed


def measure(hetrun, trials, etcd=False, silent=None, seed=1):
    """From the loss, in milliseconds, by what came: lists of one number a trial, sorted. `silent`: the timeout in seconds
    of ranks that do not answer, which the lost one then is."""
    folder, chance = Path(tempfile.mkdtemp()), random.Random(seed)
    (folder / 'text.txt').write_text(' '.join(chance.choice(['the', 'quick', 'brown', 'fox']) for _ in range(3000)))
    (folder / 'recipe.lua').write_text(RECIPE)
    words, server = [f'--timeout={silent}s'] if silent else [], None
    try:
        if etcd:
            server, place = start_etcd(folder)
            words.append(f'--rendezvous={place}')
            os.environ['HETRUN_SECRET'] = 'a secret of this benchmark alone'
        rows = [trial(hetrun, folder, chance, words, silent) for _ in range(trials)]
    finally:
        if server:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)
    names = ('noticed', 'connected', 'ready', 'two steps')
    return {name: sorted(1e3 * seconds for seconds in times) for name, times in zip(names, zip(*rows))}


def p99(ordered):
    return ordered[int(0.99 * (len(ordered) - 1))]
