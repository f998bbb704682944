"""From the loss of machines to the first finished step: by local-first recovery, and by a restart of all ranks that takes
everything from the cloud's store, as Varuna does it, in one run. Machines are namespaces (network.py)."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import difference
from metrics import Metrics
from network import Network

HERE = Path(__file__).resolve().parent
PORT = 7777
PATIENCE = 180


def write_text(folder):
    words = ['the', 'quick', 'brown', 'fox', 'jumps', 'over', 'a', 'lazy', 'dog']
    (folder / 'text.txt').write_text(' '.join(words[i * i % len(words)] for i in range(3000)))
    shutil.copy(HERE / 'scenario.lua', folder)


class Cluster:
    """A run on separate machines. `folder`: what outlives its processes: metrics, logs, the store's objects; `variables` of the
    environment of its ranks."""

    def __init__(self, hetrun, network, folder, variables=None):
        self.hetrun, self.network, self.folder, self.variables = hetrun, network, folder, variables or {}
        self.bucket = folder / 'bucket'
        self.bucket.mkdir()
        self.server = subprocess.Popen(network.inside(network.cloud, [
            sys.executable, str(HERE / 'bucket.py'), network.store_address, '9000', str(self.bucket)]))
        self.processes, self.secret, self.attempt, self.newest = {}, None, 0, 0   # `newest`: step that was seen

    def begin(self, machines, words, least=2):
        """A run on machines, which begins when the least number is there: the first one serves the store."""
        self.attempt += 1
        self.secret, self.words = secrets.token_hex(16), words
        self.metrics = Metrics(self.folder / f'metrics-{self.attempt}.jsonl')
        for machine in machines:
            place = f'{self.network.address[machines[0]]}:{PORT}'
            if machine == machines[0]:
                self.start(machine, ['--elastic', f'{least}:8', '--listen', place])
            else:
                self.start(machine, ['--join', place])

    def start(self, machine, how):
        work = self.folder / f'machine-{machine}-{self.attempt}'
        work.mkdir(exist_ok=True)
        write_text(work)
        environment = {**os.environ, **self.variables, 'HETRUN_SECRET': self.secret, 'HETRUN_HOST': f'machine-{machine}',
                       'HETRUN_METADATA': 'none', 'AWS_ENDPOINT_URL': f'http://{self.network.store_address}:9000',
                       'AWS_ACCESS_KEY_ID': 'key', 'AWS_SECRET_ACCESS_KEY': 'secret', 'AWS_REGION': 'us-east-1'}
        log = open(self.folder / f'log-{machine}-{self.attempt}', 'w')
        self.processes[machine] = subprocess.Popen(
            self.network.inside(machine, [self.hetrun, '--workers', '1', '--threads', '1', *how, '--trust',
                                          '--interface=peers', 'scenario.lua', *self.words,
                                          f'--metrics={self.metrics.path}']),
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
            seen = self.metrics.next()
            if seen is None:
                if self.processes and all(process.poll() is not None for process in self.processes.values()):
                    self.fail(f'all have ended before {what}')
                time.sleep(0.001)
                continue
            self.newest = seen[1].get('step', self.newest)
            if is_it(seen[1]):
                return seen
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

    def settle(self):
        """What was being put into the store when all ended is no snapshot; the last steps are read."""
        time.sleep(0.5)
        for _, record in iter(self.metrics.next, None):
            self.newest = record.get('step', self.newest)
        for path in self.bucket.glob('*/*.new'):
            path.unlink()

    def end(self):
        for machine in list(self.processes):
            self.network.kill(machine)
            self.processes.pop(machine).wait()

    def close(self):
        self.end()
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()


class Scenario:
    """What happens to a run on machines. `way`: of four ranks, see scenario.lua; `after`: the machines it goes on with."""

    def __init__(self, name, way='pipeline', machines=4, lost=(), new=(), memory=True):
        self.name, self.way, self.machines, self.lost, self.new, self.memory = name, way, machines, lost, new, memory
        self.after = [machine for machine in range(machines) if machine not in lost] + list(new)

    def words(self):
        return [f'--way={self.way}', '--snapshots=kept', '--store=s3://bucket/run', '--every=20',
                *([] if self.memory else ['--memory=false'])]


SCENARIOS = [
    Scenario('a machine is lost, another pipeline has its layers', way='two', lost=(3,)),
    Scenario('half of the machines are lost, one pipeline is left', way='two', lost=(2, 3)),
    Scenario('a machine is lost, its layers are in a peer\'s memory', lost=(2,)),
    Scenario('a machine is lost, its layers are in the cloud alone', lost=(2,), memory=False),
    Scenario('a machine is lost, tensor parallelism of two becomes one', way='tensor', lost=(1,)),
    Scenario('a machine is lost, a new one takes its place', lost=(2,), new=(4,)),
    Scenario('a machine is lost, one of a slower type takes its place', lost=(2,), new=(5,)),
    Scenario('a machine joins', machines=3, new=(4,)),
]


def is_step(record):
    return 'loss' in record


def train_until_loss(cluster, scenario, words, ready=lambda: None):
    """Some steps on all machines of a scenario, after it is `ready`; what those that stay have received until then."""
    cluster.begin(list(range(scenario.machines)), words)
    if scenario.machines > 2:
        cluster.until(lambda record: record.get('members') == scenario.machines, 'all machines')
    ready()
    _, record = cluster.until(is_step, 'a step')
    cluster.until(lambda each: is_step(each) and each['step'] > record['step'] + 3, 'more steps')
    return {machine: cluster.network.received(machine) for machine in scenario.after}


def received_since(network, before):
    """By machine: bytes from peers, and from the cloud."""
    return {machine: [after - earlier for after, earlier in zip(network.received(machine), counts)]
            for machine, counts in before.items()}


def bytes_of(timeline, *tiers):
    return sum((timeline.get('bytes') or {}).get(tier, 0) for tier in tiers)


def lacking_of(scenario, timelines, tensors):
    """Of each change, what the ranks then lack: {'store':, 'near':} in bytes."""
    members, found = list(range(scenario.machines)), []
    changes = [[m for m in members if m not in scenario.lost]] if scenario.lost else []
    changes += [scenario.after] if scenario.new else []
    for after, timeline in zip(changes, timelines):
        # State that only the lost had is of an older step.
        is_back = bytes_of(timeline, 'memory', 'disk', 'store') > 0
        found.append(difference.lacking(members, sorted(after), scenario.way, tensors, is_back, scenario.memory))
        members = sorted(after)
    return found


def measure(hetrun, network, scenario, peer_rate, cloud_rate):
    """Seconds without a finished step, ours and of a restart from the cloud."""
    folder = Path(tempfile.mkdtemp())
    cluster = Cluster(hetrun, network, folder)
    try:
        before = train_until_loss(cluster, scenario, scenario.words(), lambda: cluster.until_stored(scenario.machines))
        began = time.monotonic()
        for machine in scenario.lost:
            cluster.kill(machine)
        ours, timelines = 0, []
        if scenario.lost:
            now, timeline = cluster.until(lambda each: 'timeline' in each, 'a step after the loss')
            ours += now - began
            timelines.append(timeline)
        for machine in scenario.new:
            cluster.start(machine, ['--join', f'{network.address[0]}:{PORT}'])
            now, timeline = cluster.until(lambda each: 'timeline' in each and each['joined'] > 0, 'a step with the new one')
            ours += timeline['first_step_seconds']
            timelines.append(timeline)
        received = received_since(network, before)
        tensors = difference.tensors_of(hetrun, cluster.bucket.glob('*/*'))
        cluster.end()
        cluster.settle()
        newest = cluster.newest
        # All processes end, and begin again on the machines that are there: what they have is in the cloud.
        began = time.monotonic()
        cluster.begin(scenario.after, [*scenario.words(), '--resume'], least=len(scenario.after))
        now, first = cluster.until(is_step, 'a step after the restart')
        theirs = now - began
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
    bound = max(max(peers / peer_rate, cloud / cloud_rate) for peers, cloud in received.values())
    lacking = lacking_of(scenario, timelines, tensors)
    moving = sum(timeline['restored_seconds'] - timeline['planned_seconds'] for timeline in timelines)
    return {'name': scenario.name, 'seconds': ours, 'restart_seconds': theirs, 'speedup': theirs / ours,
            'bytes': {tier: sum((timeline.get('bytes') or {}).get(tier, 0) for timeline in timelines)
                      for tier in ('live', 'memory', 'disk', 'store')},
            'lacking': lacking, 'moves_what_is_lacking': lacking == [
                {'store': bytes_of(timeline, 'store'), 'near': bytes_of(timeline, 'live', 'memory', 'disk')} for timeline in timelines],
            'steps_repeated': sum(timeline['steps_repeated'] for timeline in timelines),
            'restart_steps_repeated': newest - (first['step'] - 1), 'moving_seconds': moving, 'bound_seconds': bound,
            'received': received, 'timelines': timelines}


def measure_moving(hetrun, network, scenario, peer_rate):
    """Seconds of moving after a loss alone, and what the busiest link takes for all that came: no store, no restart."""
    folder = Path(tempfile.mkdtemp())
    cluster = Cluster(hetrun, network, folder)
    try:
        before = train_until_loss(cluster, scenario, [f'--way={scenario.way}', '--every=100000'])
        for machine in scenario.lost:
            cluster.kill(machine)
        _, timeline = cluster.until(lambda each: 'timeline' in each, 'a step after the loss')
        bound = max(peers for peers, _ in received_since(network, before).values()) / peer_rate
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
    return timeline['restored_seconds'] - timeline['planned_seconds'], bound


def moving_of(hetrun, only, runs):
    """Of scenarios that lose machines and gain none."""
    for scenario in SCENARIOS:
        if only not in scenario.name or scenario.new or not scenario.memory:
            continue
        network = Network(6, '1gbit', '100mbit')
        try:
            for _ in range(runs):
                moving, bound = measure_moving(hetrun, network, scenario, 125e6)
                print(f'{scenario.name}: moving {moving:.2f} s, bound {bound:.2f} s: {moving / bound:.2f}', flush=True)
        finally:
            network.remove()


def measure_all(hetrun, only=None):
    """Every scenario; 1 Gb/s between machines, 100 Mb/s to the cloud."""
    rows = []
    for scenario in SCENARIOS:
        if only and only not in scenario.name:
            continue
        network = Network(6, '1gbit', '100mbit')
        try:
            rows.append(measure(hetrun, network, scenario, 125e6, 12.5e6))
            print(f"{rows[-1]['name']}: {rows[-1]['seconds']:.2f} s, restart {rows[-1]['restart_seconds']:.2f} s, "
                  f"{rows[-1]['speedup']:.2f} times", file=sys.stderr, flush=True)
        finally:
            network.remove()
    return rows


if __name__ == '__main__':   # HETRUN [TEXT of a scenario's name [RUNS: of its moving alone]]
    program, text = str(Path(sys.argv[1]).resolve()), sys.argv[2] if len(sys.argv) > 2 else None
    if len(sys.argv) > 3:
        moving_of(program, text, int(sys.argv[3]))
    else:
        print(json.dumps(measure_all(program, text), indent=1))
