"""Hosts of a run on one machine: network namespaces on a bridge, whose links can be cut and slowed down. For root, with
iproute2."""

import os
import shutil
import subprocess

NET = '10.213.77'   # addresses: .1 is the first host's


def ip(*words, check=True):
    return subprocess.run(['ip', *words], check=check, capture_output=True, text=True)


def missing():
    """Why there are no namespaces here; empty: there are."""
    if os.geteuid() != 0:
        return 'not root'
    if not shutil.which('ip') or not shutil.which('tc'):
        return 'no iproute2'
    name = f'hetchaos-{os.getpid()}-try'
    try:
        made = ip('netns', 'add', name, check=False).returncode == 0
        return '' if made else 'no network namespaces'
    finally:
        ip('netns', 'del', name, check=False)


class Network:
    """`hosts` namespaces that reach each other: the bridge is in one more. Nothing of it outlives close()."""

    def __init__(self, hosts):
        self.names = [f'hetchaos-{os.getpid()}-{host}' for host in range(hosts)]
        self.hub = f'hetchaos-{os.getpid()}-hub'
        for name in (self.hub, *self.names):
            ip('netns', 'add', name)
        ip('-n', self.hub, 'link', 'add', 'bridge', 'type', 'bridge')
        ip('-n', self.hub, 'link', 'set', 'bridge', 'up')
        for host, name in enumerate(self.names):
            ip('-n', self.hub, 'link', 'add', f'to{host}', 'type', 'veth', 'peer', 'name', 'eth', 'netns', name)
            ip('-n', self.hub, 'link', 'set', f'to{host}', 'master', 'bridge', 'up')
            ip('-n', name, 'addr', 'add', f'{self.address(host)}/24', 'dev', 'eth')
            ip('-n', name, 'link', 'set', 'lo', 'up')
            ip('-n', name, 'link', 'set', 'eth', 'up')

    @staticmethod
    def address(host):
        return f'{NET}.{host + 1}'

    def within(self, host):
        """The words that start a program there."""
        return ['ip', 'netns', 'exec', self.names[host]]

    def cut(self, host):
        """It reaches no other host."""
        ip('-n', self.hub, 'link', 'set', f'to{host}', 'down')

    def heal(self, host):
        ip('-n', self.hub, 'link', 'set', f'to{host}', 'up')

    def part(self, one, other):
        """These two reach each other no more; they reach all others."""
        for here, there in ((one, other), (other, one)):
            ip('-n', self.names[here], 'route', 'replace', 'blackhole', f'{self.address(there)}/32')

    def rejoin(self, one, other):
        for here, there in ((one, other), (other, one)):
            ip('-n', self.names[here], 'route', 'del', 'blackhole', f'{self.address(there)}/32', check=False)

    def slow(self, host, rate, burst='32kb', latency='200ms'):
        """Its link has this rate both ways, such as 20mbit; `burst`: what passes at once after a pause; `latency`: how long
        packets may queue."""
        for place, device in ((self.names[host], 'eth'), (self.hub, f'to{host}')):
            subprocess.run(['tc', '-n', place, 'qdisc', 'replace', 'dev', device, 'root', 'tbf', 'rate', rate, 'burst', burst,
                            'latency', latency], check=True, capture_output=True)

    def fast(self, host):
        for place, device in ((self.names[host], 'eth'), (self.hub, f'to{host}')):
            subprocess.run(['tc', '-n', place, 'qdisc', 'del', 'dev', device, 'root'], check=False, capture_output=True)

    def close(self):
        for name in (*self.names, self.hub):
            ip('netns', 'del', name, check=False)
