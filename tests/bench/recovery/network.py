"""Machines of a test on one machine: network namespaces, joined by two switches. Over one they reach each other, over the
other a machine with the cloud's store; each machine's links are shaped with tc's token buckets, in both directions.

Needs root, `ip` and `tc` (Debian: iproute2)."""

import itertools
import os
import shutil
import subprocess
import sys

PEERS, CLOUD = '10.99.1', '10.99.2'


def problem():
    """Why there can be no such machines here; None: there can."""
    if os.geteuid() != 0:
        return 'network namespaces need root'
    for program in ('ip', 'tc'):
        if not shutil.which(program):
            return f'there is no {program} (apt-get install iproute2)'
    done = subprocess.run(['ip', 'netns', 'add', 'hetrun-try'], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f'network namespaces cannot be made: {done.stderr.strip()}'
    subprocess.run(['ip', 'netns', 'del', 'hetrun-try'], check=False)
    return None


def do(words):
    done = subprocess.run(words.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f'{words}: {done.stderr.strip()}')


counter = itertools.count()   # what a network had may take a moment to go


class Network:
    """`machines` of them, numbered from 0; rates in bits a second, as tc writes them ("1gbit")."""

    def __init__(self, machines, peer_rate, cloud_rate):
        self.name = f'hr{os.getpid() % 1000}{chr(97 + next(counter) % 26)}'
        self.machines = [f'{self.name}n{i}' for i in range(machines)]
        self.cloud = f'{self.name}cloud'
        self.bridges = [f'{self.name}p', f'{self.name}c']
        self.address = [f'{PEERS}.{i + 1}' for i in range(machines)]
        self.store_address = f'{CLOUD}.250'
        try:
            self.make(peer_rate, cloud_rate)
        except BaseException:
            self.remove()
            raise

    def make(self, peer_rate, cloud_rate):
        for bridge in self.bridges:
            do(f'ip link add {bridge} type bridge')
            do(f'ip link set {bridge} up')
        for i, machine in enumerate(self.machines):
            do(f'ip netns add {machine}')
            do(f'ip -n {machine} link set lo up')
            self.plug(machine, 'peers', self.bridges[0], f'{self.name}p{i}', f'{PEERS}.{i + 1}', peer_rate)
            self.plug(machine, 'cloud', self.bridges[1], f'{self.name}c{i}', f'{CLOUD}.{i + 1}', cloud_rate)
        do(f'ip netns add {self.cloud}')
        do(f'ip -n {self.cloud} link set lo up')
        self.plug(self.cloud, 'cloud', self.bridges[1], f'{self.name}cs', self.store_address, None)

    def plug(self, machine, inside, bridge, outside, address, rate):
        do(f'ip link add {outside} type veth peer name {inside} netns {machine}')
        do(f'ip link set {outside} master {bridge} up')
        do(f'ip -n {machine} addr add {address}/24 dev {inside}')
        do(f'ip -n {machine} link set {inside} up')
        if rate:   # a full queue of 20 ms: enough for TCP to fill the link
            shape = f'root tbf rate {rate} burst 256kb latency 20ms'
            do(f'tc qdisc add dev {outside} {shape}')
            do(f'tc -n {machine} qdisc add dev {inside} {shape}')

    def inside(self, machine, words):
        """The words of a command on a machine: its number, or the name of the cloud."""
        name = machine if isinstance(machine, str) else self.machines[machine]
        return ['ip', 'netns', 'exec', name, *words]

    def received(self, machine):
        """Bytes that have come to a machine: over the links to its peers, and from the cloud."""
        counts = []
        for link in ('peers', 'cloud'):
            out = subprocess.run(self.inside(machine, ['cat', f'/sys/class/net/{link}/statistics/rx_bytes']),
                                 capture_output=True, text=True, check=True).stdout
            counts.append(int(out))
        return counts

    def kill(self, machine):
        """All processes of a machine vanish at once."""
        pids = subprocess.run(['ip', 'netns', 'pids', self.machines[machine]], capture_output=True, text=True,
                              check=False).stdout.split()
        for pid in pids:
            try:
                os.kill(int(pid), 9)
            except ProcessLookupError:
                pass

    def remove(self):
        for machine in [*self.machines, self.cloud]:
            for pid in subprocess.run(['ip', 'netns', 'pids', machine], capture_output=True, text=True,
                                      check=False).stdout.split():
                try:
                    os.kill(int(pid), 9)
                except ProcessLookupError:
                    pass
            subprocess.run(['ip', 'netns', 'del', machine], capture_output=True, check=False)
        for bridge in self.bridges:
            subprocess.run(['ip', 'link', 'del', bridge], capture_output=True, check=False)
