"""From the loss of machines to the first finished step: by local-first recovery, and by a restart of all ranks that takes
everything from the cloud's store, as Varuna does it, in one run. Machines are namespaces (network.py)."""

import json
import os
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from network import Network

HERE = Path(__file__).resolve().parent
PORT = 7777
PATIENCE = 180


def write_text(folder):
    words = ['the', 'quick', 'brown', 'fox', 'jumps', 'over', 'a', 'lazy', 'dog']
    (folder / 'text.txt').write_text(' '.join(words[i * i % len(words)] for i in range(3000)))
    shutil.copy(HERE / 'scenario.lua', folder)


class Cluster:
    """A run on machines of its own. `folder`: what outlives its processes: metrics, logs, the store's objects."""

    def __init__(self, hetrun, network, folder):
        self.hetrun, self.network, self.folder = hetrun, network, folder
        self.bucket = folder / 'bucket'
        self.bucket.mkdir()
        self.server = subprocess.Popen(network.inside(network.cloud, [
            sys.executable, str(HERE / 'bucket.py'), network.store_address, '9000', str(self.bucket)]))
        self.processes, self.secret, self.attempt = {}, None, 0

    def begin(self, machines, words):
        """A run on machines: the first one serves the store."""
        self.attempt += 1
        self.secret, self.words = secrets.token_hex(16), words
        self.metrics = self.folder / f'metrics-{self.attempt}.jsonl'
        self.records, self.part, self.file = [], '', None
        for machine in machines:
            place = f'{self.network.address[machines[0]]}:{PORT}'
            if machine == machines[0]:
                self.start(machine, ['--elastic', f'{min(2, len(machines))}:8', '--listen', place])
            else:
                self.start(machine, ['--join', place])

    def start(self, machine, how):
        work = self.folder / f'machine-{machine}-{self.attempt}'
        work.mkdir(exist_ok=True)
        write_text(work)
        environment = {**os.environ, 'HETRUN_SECRET': self.secret, 'HETRUN_HOST': f'machine-{machine}',
                       'HETRUN_METADATA': 'none', 'AWS_ENDPOINT_URL': f'http://{self.network.store_address}:9000',
                       'AWS_ACCESS_KEY_ID': 'key', 'AWS_SECRET_ACCESS_KEY': 'secret', 'AWS_REGION': 'us-east-1'}
        log = open(self.folder / f'log-{machine}-{self.attempt}', 'w')
        self.processes[machine] = subprocess.Popen(
            self.network.inside(machine, [self.hetrun, '--workers', '1', '--threads', '1', *how, '--trust',
                                          '--interface=peers', 'scenario.lua', *self.words,
                                          f'--metrics={self.metrics}']),
            cwd=work, stdout=log, stderr=log, env=environment)

    def kill(self, machine):
        """The machine is gone, with its memory and its disk."""
        self.network.kill(machine)
        self.processes.pop(machine).wait()
        shutil.rmtree(self.folder / f'machine-{machine}-{self.attempt}', ignore_errors=True)

    def until(self, is_it, what):
        """The time at which a record of the metrics came, and the record."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.file is None and self.metrics.exists():
                self.file = open(self.metrics)
            line = self.file.readline() if self.file else ''
            if not line.endswith('\n'):
                self.part += line
                if self.processes and all(process.poll() is not None for process in self.processes.values()):
                    self.fail(f'all have ended before {what}')
                time.sleep(0.001)
                continue
            now, record, self.part = time.monotonic(), json.loads(self.part + line), ''
            if is_it(record):
                return now, record
        self.fail(f'{what} did not come within {PATIENCE} s')

    def fail(self, why):
        for log in sorted(self.folder.glob('log-*')):
            sys.stderr.write(f'{log.name}:\n{log.read_text()[-2000:]}\n')
        sys.exit(why)

    def until_stored(self, count):
        """Until the store has a whole snapshot: `count` objects of one step, no part under way. The step."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            steps = {}
            for path in self.bucket.glob('*/*'):
                found = re.search(r'step-(\d+)', path.name)
                if found and not path.name.endswith('.new'):
                    steps.setdefault(int(found.group(1)), []).append(path)
            whole = [step for step, files in steps.items() if len(files) >= count]
            if whole:
                return max(whole)
            time.sleep(0.05)
        self.fail(f'no whole snapshot was stored within {PATIENCE} s')

    def end(self):
        for machine in list(self.processes):
            self.network.kill(machine)
            self.processes.pop(machine).wait()

    def close(self):
        self.end()
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
