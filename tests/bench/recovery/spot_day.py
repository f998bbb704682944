"""A recorded day of spot machines (../shared/data/traces/g4dn-trace.csv, from uclasystem/bamboo, MIT licence), replayed with its
time compressed: by a run that goes on with what is left, and by one that is started again from the cloud's store after each
change, as Varuna does it. Every fourth machine of the trace takes part, beside one that stays and serves the rendezvous."""

import csv
import shutil
import tempfile
import time
from pathlib import Path

from network import Network
from scenarios import Cluster, is_step, PORT

TRACE = Path(__file__).resolve().parents[4] / 'shared' / 'data' / 'traces' / 'g4dn-trace.csv'
FASTER = 250
PRICE = 0.3   # dollars an hour of a machine, about a g4dn.xlarge on the spot market: both ways pay the same
WORDS = ['--width=256', '--layers=6', '--every=10', '--snapshots=kept', '--store=s3://bucket/run']


def events():
    """(seconds of the replay, 'add' or 'remove', machine from 1)."""
    numbers, found = {}, []
    with open(TRACE) as file:
        for at, what, node in csv.reader(file):
            if int(node.removeprefix('node')) % 4 == 0:
                found.append((int(at) / 1000 / FASTER, what, node))
    start, free, changes = found[0][0], [], []
    for at, what, node in found:   # a machine of the network is used again when its node has gone
        if what == 'add':
            numbers[node] = free.pop(0) if free else len(set(numbers.values())) + 1
        changes.append((at - start, what, numbers[node]))
        if what == 'remove':
            free.append(numbers[node])
    return changes


class Watch:
    """Steps that a run has done, from its metrics, also across restarts."""

    def __init__(self):
        self.newest, self.repeated = 0, 0

    def read(self, cluster):
        while seen := cluster.metrics.next():
            record = seen[1]
            if is_step(record):
                self.repeated += record['step'] <= self.newest
                self.newest = max(self.newest, record['step'])
            self.repeated += record.get('steps_repeated', 0) if 'generation' in record else 0


def replay(hetrun, restarts):
    changes = events()
    count = max(machine for _, _, machine in changes) + 1
    network, folder = Network(count, '1gbit', '100mbit'), Path(tempfile.mkdtemp())
    cluster, watch, alive, machine_seconds = Cluster(hetrun, network, folder), Watch(), [0], 0
    try:
        cluster.begin([0], WORDS, least=1)
        began = last = time.monotonic()
        for at, what, machine in changes:
            while time.monotonic() < began + at:
                watch.read(cluster)
                time.sleep(min(0.05, max(0.0, began + at - time.monotonic())))
            machine_seconds += len(alive) * (time.monotonic() - last)
            last = time.monotonic()
            if what == 'add':
                alive.append(machine)
            else:
                alive.remove(machine)
            if restarts:
                watch.read(cluster)
                cluster.end()
                cluster.begin(alive, [*WORDS, '--resume'], least=min(6, len(alive)))
            elif what == 'add':
                cluster.start(machine, ['--join', f'{network.address[0]}:{PORT}'])
            else:
                cluster.kill(machine)
        watch.read(cluster)
        seconds = time.monotonic() - began
    finally:
        cluster.close()
        network.remove()
        shutil.rmtree(folder, ignore_errors=True)
    cost = PRICE * machine_seconds * FASTER / 3600
    return {'changes': len(changes), 'most_machines': count, 'seconds': seconds, 'steps': watch.newest,
            'steps_repeated': watch.repeated, 'steps_per_s': watch.newest / seconds,
            'dollars_of_a_thousand_steps': 1000 * cost / max(1, watch.newest) / FASTER}


def measure(hetrun):
    ours, theirs = replay(hetrun, False), replay(hetrun, True)
    return {'ours': ours, 'restarts': theirs, 'goodput': ours['steps_per_s'] / max(1e-9, theirs['steps_per_s'])}
