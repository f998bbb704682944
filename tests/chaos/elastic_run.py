"""One run of a schedule: its processes, and what is done to them."""

import hashlib
import hmac
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / 'bench/recovery'))
import bucket  # noqa: E402
import network  # noqa: E402

RECIPE = Path(__file__).resolve().parent.parent / 'launch' / 'lopsided.lua'
PATIENCE = 120   # seconds of one run


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def write_text(folder):
    words = ['the', 'quick', 'brown', 'fox', 'jumps', 'over', 'a', 'lazy', 'dog']
    draw = random.Random(3)
    (folder / 'text.txt').write_text(' '.join(draw.choice(words) for _ in range(3000)))
    shutil.copy(RECIPE, folder)


def alive(pid):
    return Path(f'/proc/{pid}/stat').exists()


class Process:
    """A launcher and its ranks, or with `rank` one rank without a launcher. Keeps what it says."""

    def __init__(self, words, folder, environment, rank=None):
        self.rank, self.lines = rank, []
        self.process = subprocess.Popen(words, cwd=folder, text=True, env={**os.environ, **environment},
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self.reader.start()

    def said(self):
        return ''.join(self.lines)

    def children(self):
        return [int(pid) for pid in subprocess.run(['pgrep', '-P', str(self.process.pid)], capture_output=True, text=True)
                .stdout.split()]

    def ranks(self):
        """Process ids, in the order of the ranks that they were started as."""
        if self.rank is not None:
            return [self.process.pid] if self.process.poll() is None else []
        found = {}
        for pid in self.children():
            try:
                values = Path(f'/proc/{pid}/environ').read_bytes().split(b'\0')
            except OSError:   # it has ended since
                continue
            rank = next((value for value in values if value.startswith(b'RANK=')), None)
            if rank:
                found[int(rank.split(b'=')[1])] = pid
        return [found[rank] for rank in sorted(found)]

    def signal_ranks(self, number):
        for pid in self.ranks():
            os.kill(pid, number)

    def kill(self):
        pids = self.children() + [self.process.pid]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.reader.join(timeout=10)


class Etcd:
    def __init__(self, folder):
        self.client, peer = (f'http://127.0.0.1:{free_port()}' for _ in range(2))
        self.words = ['etcd', '--name', 'one', '--data-dir', folder / 'etcd', '--listen-client-urls', self.client,
                      '--advertise-client-urls', self.client, '--listen-peer-urls', peer, '--initial-advertise-peer-urls', peer,
                      '--initial-cluster', f'one={peer}']
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_until_there(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(self.client + '/health', timeout=1) as reply:
                    if json.load(reply).get('health') == 'true':
                        return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError('etcd does not begin')

    def kill(self):
        self.process.kill()
        self.process.wait()


class Run:
    """Its folder, processes and faults. go() returns the exit code and what was said; close() ends all that is left."""

    def __init__(self, hetrun, schedule, folder):
        self.hetrun, self.schedule, self.folder = hetrun, schedule, folder
        self.secret = f'a secret of the test with seed {schedule.seed}, {os.getpid()}'
        self.metrics = [folder / 'metrics.jsonl']   # of each start
        self.damaged, self.processes, self.timers, self.terminated, self.seen_memories = False, [], [], set(), set()
        self.network = self.etcd = self.resumed_with = self.place = None
        self.mounted, self.bucket = False, None
        self.gates = {step: folder / f'gate-{step}' for step in schedule.events}
        self.deadline = time.monotonic() + PATIENCE

    # How it is started.

    def environment(self, host, workers, faults=True):
        holds = [f'rank={rank} step={step} hold={gate}' for step, gate in self.gates.items() for rank in range(workers)]
        return {**(self.bucket.variables if self.bucket else {}), 'HETRUN_SECRET': self.secret, 'HETRUN_HOST': host,
                'HETRUN_FAULT': ', '.join(holds + self.schedule.faults) if faults else ''}

    def launch(self, words, host, workers, under=(), faults=True):
        command = [*under, self.hetrun, '--workers', str(workers), *words, 'lopsided.lua',
                   f'--metrics={self.metrics[-1].name}', *self.schedule.words()]
        self.processes.append(Process(command, self.folder, self.environment(host, workers, faults)))
        return self.processes[-1]

    def start(self):
        schedule = self.schedule
        most = max(schedule.workers, 6)
        if 'fill disk' in schedule.kinds:
            (self.folder / 'kept').mkdir()
            subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=6m', 'tmpfs', self.folder / 'kept'], check=True)
            self.mounted = True
        if schedule.store:
            draw = random.Random(schedule.seed)
            self.bucket = bucket.SlowBucket(self.folder / 'bucket', lambda _: time.sleep(draw.uniform(0, 0.6)))
        if schedule.world == 'etcd':
            self.start_with_etcd()
        elif schedule.world == 'hosts':
            self.start_hosts(most)
        elif schedule.world == 'joins':
            self.place = f'127.0.0.1:{free_port()}'
            self.launch(['--elastic', f'1:{most}', f'--listen={self.place}'], 'alpha', schedule.workers)
        else:
            respawn = ['--respawn'] if schedule.world == 'launcher' else []
            self.launch(['--elastic', f'1:{schedule.workers}', *respawn], 'alpha', schedule.workers)

    def start_with_etcd(self):
        self.etcd = Etcd(self.folder)
        self.etcd.wait_until_there()
        workers = self.schedule.workers
        for rank in range(workers):
            words = [self.hetrun, '--elastic', f'1:{workers}', '--rendezvous', self.etcd.client.replace('http', 'etcd'),
                     'lopsided.lua', '--metrics=metrics.jsonl', *self.schedule.words()]
            self.processes.append(Process(words, self.folder, {
                **self.environment('alpha', workers), 'RANK': str(rank), 'LOCAL_RANK': str(rank), 'WORLD_SIZE': str(workers),
                'OMP_NUM_THREADS': '1'}, rank))

    def start_hosts(self, most):
        """The machines join the first one before its step 4."""
        machines = self.schedule.machines
        self.network = network.Network(len(machines))
        self.gates[4] = self.folder / 'gate-4'
        place = self.place = f'{self.network.address(0)}:{free_port()}'
        self.launch(['--elastic', f'1:{most}', f'--listen={place}'], 'host0', machines[0], self.network.within(0))
        if self.until(lambda: self.come_to(4)):
            others = [self.launch([f'--join={place}'], f'host{host}', machines[host], self.network.within(host))
                      for host in range(1, len(machines))]
            self.until(lambda: all('waits to join' in other.said() for other in others))
        self.gates[4].touch()

    # What is watched.

    def over(self):
        first = [self.processes[0]] if self.schedule.world != 'etcd' else self.processes
        return all(each.process.poll() is not None for each in first)

    def until(self, is_it):
        """Whether it came while the run went on."""
        while not is_it():
            if self.over() or time.monotonic() > self.deadline:
                return False
            time.sleep(0.005)
        return True

    def come_to(self, step):
        return any(path.exists() and re.search(rf'"step":{step - 1}\b', path.read_text()) for path in self.metrics)

    def ranks(self):
        """Process ids of all ranks that live."""
        return [pid for process in self.processes for pid in process.ranks()]

    def send(self, rank, number):
        """To one of those that live; the last one is spared where none is started again."""
        pids = self.ranks()
        if len(pids) > (self.schedule.world != 'launcher'):
            os.kill(pids[rank % len(pids)], number)
            return pids[rank % len(pids)]
        return None

    def all_lost(self):
        """Whether every rank that was started was killed."""
        if self.etcd:
            return all(each.process.poll() == -signal.SIGKILL for each in self.processes)
        said = ''.join(each.said() for each in self.processes)
        started = sum(len(pids.split(',')) for pids in re.findall(r"process ids of this machine's ranks: (.*)", said))
        return said.count('was killed by signal 9') >= started + said.count('is started again')

    def later(self, seconds, act):
        self.timers.append(threading.Timer(seconds, act))
        self.timers[-1].start()

    def memories(self):
        """The folders in memory of the launchers, as their ranks know them."""
        for pid in self.ranks():
            try:
                values = Path(f'/proc/{pid}/environ').read_bytes().decode().split('\0')
            except OSError:   # it has ended since
                continue
            self.seen_memories |= {Path(value[len('HETRUN_MEMORY='):]) for value in values if value.startswith('HETRUN_MEMORY=')}
        return self.seen_memories

    def memory_folder(self, host):
        """Of ranks that know the secret from the environment; where a launcher serves the store, its port tells runs apart."""
        what = f'snapshots in the memory of {host}' + (f' by {self.place.rpartition(":")[2]}' if self.place else '')
        digest = hmac.new(self.secret.encode(), what.encode(), hashlib.sha256)
        return Path(f'/dev/shm/hetrun-{os.geteuid()}-{digest.hexdigest()[:24]}')

    # What is done.

    def act(self, step):
        what, rank, draw = self.schedule.events[step]
        {'kill': self.kill, 'kill two': self.kill_two, 'kill again': self.kill_again, 'stop': self.stop, 'pause store': self.pause_store,
         'damage': self.damage_memory, 'terminate': self.terminate, 'fill disk': self.fill_disk, 'empty disk': self.empty_disk,
         'join': self.join, 'cut': self.cut, 'part': self.part, 'slow': self.slow, 'kill host': self.kill_host,
         'restart store': self.restart_store, 'wait': lambda *_: time.sleep(0.6)}.get(what, lambda *_: self.end_and_resume(what, draw))(rank, draw)

    def kill(self, rank, _):
        self.send(rank, signal.SIGKILL)

    def kill_two(self, rank, draw):
        pids = self.ranks()
        first = rank % max(1, len(pids))
        for pid in {pids[at] for at in (first, (first + 1 + draw % max(1, len(pids) - 1)) % len(pids))} if pids else ():
            os.kill(pid, signal.SIGKILL)

    def kill_again(self, rank, draw):
        """The second one while the others make good for the first."""
        self.kill(rank, 0)
        self.later(0.02 + draw % 150 / 1000, lambda: self.kill(draw, 0))

    def stop(self, rank, _):
        pid = self.send(rank, signal.SIGSTOP)
        self.later(3, lambda: pid and alive(pid) and os.kill(pid, signal.SIGCONT))

    def pause_store(self, rank, _):
        """The launcher serves it."""
        self.kill(rank, 0)
        launcher = self.processes[0].process
        launcher.send_signal(signal.SIGSTOP)
        self.later(1, lambda: launcher.send_signal(signal.SIGCONT))

    def terminate(self, rank, _):
        """A second notice would end the run."""
        pids = [pid for pid in self.ranks() if pid not in self.terminated]
        if len(pids) > 1:
            self.terminated.add(pids[rank % len(pids)])
            os.kill(pids[rank % len(pids)], signal.SIGTERM)

    def damage_memory(self, rank, draw):
        """Flip a bit of a snapshot in memory, and kill a rank."""
        files = sorted(path for folder in self.memories() for path in folder.rglob('*.snapshot'))
        if files:
            self.damaged = flip_a_bit(files[draw % len(files)], draw)
        self.kill(rank, draw)

    def fill_disk(self, *_):
        with open(self.folder / 'kept' / 'filler', 'wb', buffering=0) as file:
            try:
                for _ in range(1 << 12):
                    file.write(b'x' * 4096)
            except OSError:
                pass

    def empty_disk(self, *_):
        (self.folder / 'kept' / 'filler').unlink(missing_ok=True)

    def join(self, rank, draw):
        """A machine comes with one or two ranks; half of the time a rank is lost at once."""
        new = self.launch([f'--join={self.place}'], f'beta{len(self.processes)}', 1 + draw % 2, faults=False)
        self.until(lambda: 'waits to join' in new.said() or new.process.poll() is not None)
        if draw // 2 % 2:
            self.kill(rank, draw)

    def cut(self, rank, draw):
        host = rank % len(self.schedule.machines)
        self.network.cut(host)
        if draw % 2:
            self.later(0.5 + draw % 7, lambda: self.network and self.network.heal(host))

    def part(self, rank, draw):
        """Two that joined; both reach the store."""
        self.network.part(1, 2)
        if draw % 2:
            self.later(1 + draw % 5, lambda: self.network and self.network.rejoin(1, 2))

    def slow(self, rank, draw):
        host = rank % len(self.schedule.machines)
        self.network.slow(host, ('10mbit', '50mbit')[draw % 2])
        self.later(2, lambda: self.network and self.network.fast(host))

    def kill_host(self, rank, draw):
        """One that joined, all its ranks at once."""
        for pid in self.processes[1 + draw % (len(self.processes) - 1)].ranks():
            os.kill(pid, signal.SIGKILL)

    def restart_store(self, rank, draw):
        """Half of the time a rank is lost while it is away."""
        self.etcd.kill()
        if draw % 2:
            self.kill(rank, draw)

        def begin():
            if self.etcd:
                self.etcd.start()
        self.later(0.2 + draw % 3, begin)

    def end_and_resume(self, damage, draw):
        """All processes are killed, the newest snapshot on the disk is damaged, and the run goes on from the disk."""
        self.until(lambda: list((self.folder / 'kept').glob('*.snapshot')))
        self.processes[0].kill()
        newest = self.listed('kept')
        if newest:
            files = [self.folder / 'kept' / Path(name).name for name in newest[0]['files']]
            damage_file(files[draw % len(files)], damage, draw)
        workers = self.schedule.workers if draw % 2 else 2 + draw // 2 % 4
        self.resumed_with = workers
        self.metrics.append(self.folder / 'metrics-again.jsonl')
        self.gates = {}
        self.processes = []
        self.launch(['--resume', '--elastic', f'1:{workers}'], 'alpha', workers, faults=False)

    def command(self, *words):
        return subprocess.run([self.hetrun, *words], cwd=self.folder, capture_output=True, text=True, check=False,
                              timeout=PATIENCE)

    def listed(self, folder):
        """The snapshots in a folder, the newest first: each with `step`, `files` and a `problem` when it is not whole."""
        done = self.command('snapshot', 'list', folder, '--json')
        return json.loads(done.stdout.splitlines()[-1])['snapshots'] if done.returncode == 0 else []

    # How it goes on and ends.

    def go(self):
        self.start()
        for step in self.schedule.events:
            gate = self.gates[step]
            if self.until(lambda step=step: self.come_to(step)):
                self.memories()
                self.act(step)
            gate.touch()
        self.until(lambda: False)
        for timer in self.timers:
            timer.cancel()
        timed_out = not self.over()
        codes = [each.process.poll() for each in self.processes]
        for each in self.processes:
            if each.process.poll() is None:
                each.kill()   # a machine that the others went on without, or all of them
        said = ''.join(each.said() for each in self.processes)
        if timed_out:
            return None, said
        return (0 if 0 in codes else max(code for code in codes if code is not None)) if self.etcd else codes[0], said

    def left_behind(self):
        """Folders in memory that launchers leave nothing of."""
        ended = self.seen_memories if self.schedule.world == 'launcher' else ()
        return [str(folder) for folder in ended if folder.exists()]

    def close(self):
        for timer in self.timers:
            timer.cancel()
        for each in self.processes:
            each.kill()
        if self.network:
            self.network.close()
        if self.etcd:
            self.etcd.kill()
        if self.bucket:
            self.bucket.close()
        self.network = self.etcd = self.bucket = None
        if self.mounted:
            subprocess.run(['umount', '-l', self.folder / 'kept'], check=False)
        for folder in self.seen_memories:
            shutil.rmtree(folder, ignore_errors=True)
        for host in ('alpha', *(f'beta{at}' for at in range(1, 9)), *(f'host{at}' for at in range(6))):
            shutil.rmtree(self.memory_folder(host), ignore_errors=True)


def flip_a_bit(path, draw):
    """Whether it was done: the file may be replaced meanwhile."""
    try:
        with open(path, 'r+b') as file:
            size = os.fstat(file.fileno()).st_size
            at = 4096 + draw % max(1, size - 8192)
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 4]))
        return True
    except OSError:
        return False


def damage_file(path, damage, draw):
    if damage == 'flip a bit':
        flip_a_bit(path, draw)
    elif damage == 'truncate':
        os.truncate(path, draw % path.stat().st_size)
    elif damage == 'empty':
        os.truncate(path, 0)
    elif damage == 'remove':
        path.unlink()
