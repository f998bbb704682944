"""Random faults in elastic runs: python3 tests/chaos/run.py build/lua/hetrun [--runs=30] [--seed=1] [--only=SEED] [--json]

Each run trains a small GPT on 4 to 6 processes under a random plan, with or without a sharded optimizer, while a schedule
of faults that is drawn from the run's seed goes on: ranks are killed before a step or at an instruction of it, stopped until
the others drop them, lost while the others recover; the store pauses; snapshots in memory are damaged. Lost ranks are started
again. Faults are bound to steps, so a seed repeats its run.

A run is right when it ends with 0 and every step has the loss of the undisturbed run; or, where a schedule destroys more
than the copies of the state can make good, when it ends with 75 and names what is lost."""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

RECIPE = Path(__file__).resolve().parent.parent / 'launch' / 'lopsided.lua'
SECRET = 'a secret of these tests alone'
STEPS = 40
PATIENCE = 90   # seconds of one run


def write_text(folder):
    words = ['the', 'quick', 'brown', 'fox', 'jumps', 'over', 'a', 'lazy', 'dog']
    draw = random.Random(3)
    (folder / 'text.txt').write_text(' '.join(draw.choice(words) for _ in range(3000)))
    shutil.copy(RECIPE, folder)


def losses(folder):
    """Losses by step; of a step that was recorded again, the last one."""
    found = {}
    for line in (folder / 'metrics.jsonl').read_text().split('\n')[:-1]:
        record = json.loads(line)
        if 'loss' in record:
            found[record['step']] = record['loss']
    return found


class Schedule:
    """What happens in the run of a seed. `events`: by step, a list of (what, rank)."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.seed = seed
        self.plan = draw.choice(['replicas', 'spread', 'spread', 'tensor'])
        self.sharded = self.plan != 'replicas' and draw.random() < 0.6
        self.workers = {'replicas': draw.choice([4, 5, 6]), 'spread': 5, 'tensor': 6}[self.plan]
        self.disk = draw.random() < 0.3
        self.events, self.faults = {}, []
        for step in sorted(draw.sample(range(4, STEPS - 2), draw.randint(1, 3))):
            rank = draw.randrange(self.workers)
            what = draw.choices(['kill', 'kill at', 'kill two', 'stop', 'pause store', 'damage'], [4, 4, 2, 2, 1, 1])[0]
            if what == 'kill at':   # before an instruction of the step
                self.faults.append(f'rank={rank} step={step} at={draw.random():.3f}')
            else:
                self.events[step] = (what, rank, draw.randrange(1 << 30))

    def words(self):
        words = [f'--steps={STEPS}', '--every=10', '--metrics=metrics.jsonl', '--timeout=20s']
        if self.plan != 'replicas':
            words.append(f'--{self.plan}')
        if self.sharded:
            words.append('--sharded')
        if self.disk:
            words += ['--snapshots=kept', '--snapshot_every=7']
        if any(what == 'stop' for what, *_ in self.events.values()):
            words[3] = '--timeout=5s'
        return words

    def __str__(self):
        parts = [f'step {step}: {what} rank {rank}' for step, (what, rank, _) in self.events.items()]
        parts += [f'fault {fault}' for fault in self.faults]
        return (f'seed {self.seed}: {self.workers} ranks, {self.plan}{", sharded optimizer" if self.sharded else ""}'
                f'{", snapshots on disk" if self.disk else ""}; {"; ".join(parts)}')


class Run:
    def __init__(self, hetrun, schedule, folder):
        self.schedule, self.folder = schedule, folder
        self.lines, self.damaged = [], False
        self.gates = {step: folder / f'gate-{step}' for step in schedule.events}
        holds = [f'rank={rank} step={step} hold={gate}' for step, gate in self.gates.items()
                 for rank in range(schedule.workers)]   # whichever of them comes there
        environment = {**os.environ, 'HETRUN_SECRET': SECRET, 'HETRUN_FAULT': ', '.join(holds + schedule.faults)}
        self.process = subprocess.Popen(
            [hetrun, '--workers', str(schedule.workers), '--elastic', f'1:{schedule.workers}', '--respawn',
             'lopsided.lua', *schedule.words()], cwd=folder, text=True, env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE)
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self.reader.start()
        self.deadline = time.monotonic() + PATIENCE

    def until(self, is_it):
        """Whether it came while the run went on."""
        while not is_it():
            if self.process.poll() is not None or time.monotonic() > self.deadline:
                return False
            time.sleep(0.005)
        return True

    def come_to(self, step):
        path = self.folder / 'metrics.jsonl'
        return path.exists() and re.search(rf'"step":{step - 1}\b', path.read_text()) is not None

    def ranks(self):
        """Process ids by the rank that each was started as."""
        found = {}
        for pid in subprocess.run(['pgrep', '-P', str(self.process.pid)], capture_output=True, text=True).stdout.split():
            try:
                values = Path(f'/proc/{pid}/environ').read_bytes().split(b'\0')
            except OSError:   # it has ended since
                continue
            rank = next((value for value in values if value.startswith(b'RANK=')), None)
            if rank:
                found[int(rank.split(b'=')[1])] = int(pid)
        return found

    def send(self, rank, number):
        pid = self.ranks().get(rank)
        if pid:
            os.kill(pid, number)
        return pid

    def damage(self, draw):
        """Flip a bit of a snapshot in memory."""
        files = [path for path in Path('/dev/shm').glob(f'hetrun-{os.geteuid()}-*/*/*/*.snapshot')]
        if files:
            path = files[draw % len(files)]
            try:
                with open(path, 'r+b') as file:
                    size = os.fstat(file.fileno()).st_size
                    file.seek(4096 + draw % max(1, size - 8192))
                    byte = file.read(1)
                    file.seek(-1, 1)
                    file.write(bytes([byte[0] ^ 4]))
                self.damaged = True
            except OSError:   # it was replaced meanwhile
                pass

    def act(self, step):
        what, rank, draw = self.schedule.events[step]
        if what == 'damage':
            self.damage(draw)
            self.send(rank, signal.SIGKILL)
        if what.startswith('kill'):
            self.send(rank, signal.SIGKILL)
        if what == 'kill two':
            self.send((rank + 1 + draw % (self.schedule.workers - 1)) % self.schedule.workers, signal.SIGKILL)
        if what == 'pause store':   # the launcher serves it
            self.send(rank, signal.SIGKILL)
            os.kill(self.process.pid, signal.SIGSTOP)
            threading.Timer(1.0, lambda: os.kill(self.process.pid, signal.SIGCONT)).start()
        if what == 'stop':
            pid = self.send(rank, signal.SIGSTOP)
            threading.Timer(8.0, lambda: pid and alive(pid) and os.kill(pid, signal.SIGCONT)).start()

    def go(self):
        for step, gate in self.gates.items():
            if self.until(lambda: self.come_to(step)):
                self.act(step)
            gate.touch()
        try:
            self.process.wait(timeout=max(1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            subprocess.run(['pkill', '-CONT', '-P', str(self.process.pid)], check=False)
            self.process.kill()
            for pid in self.ranks().values():
                os.kill(pid, signal.SIGKILL)
        self.reader.join(timeout=10)
        return self.process.returncode, ''.join(self.lines)


def alive(pid):
    return Path(f'/proc/{pid}/stat').exists()


def problem_of(code, err, found, right, run):
    """Why a run was not right; empty: it was."""
    if code == 75 and re.search(r'no (member|tier|snapshot)\b.* has .* of the state', err):
        return '' if run.damaged else 'it gave up though enough was there'
    if code != 0:
        return f'exit code {code}'
    if sorted(found) != sorted(right):
        return f'steps without a loss: {sorted(set(right) - set(found))}'
    far = {step: (found[step], loss) for step, loss in right.items() if abs(found[step] - loss) > 1e-4 * abs(loss)}
    return f'other losses than the undisturbed run: {dict(list(far.items())[:3])}' if far else ''


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('hetrun')
    parser.add_argument('--runs', type=int, default=30)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--only', type=int)
    parser.add_argument('--json', action='store_true')
    given = parser.parse_args()
    hetrun = str(Path(given.hetrun).resolve())
    base = Path(tempfile.mkdtemp())
    write_text(base)
    subprocess.run([hetrun, 'lopsided.lua', f'--steps={STEPS}', '--every=10', '--metrics=metrics.jsonl', '--quiet'], cwd=base,
                   check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
    right = losses(base)
    seeds = [given.only] if given.only is not None else range(given.seed, given.seed + given.runs)
    failures, repeated, generations, slowest = [], 0, 0, 0
    for seed in seeds:
        schedule = Schedule(seed)
        folder = Path(tempfile.mkdtemp())
        write_text(folder)
        started = time.monotonic()
        run = Run(hetrun, schedule, folder)
        code, err = run.go()
        slowest = max(slowest, time.monotonic() - started)
        records = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().split('\n')[:-1]] \
            if (folder / 'metrics.jsonl').exists() else []
        changes = [record for record in records if 'generation' in record]
        generations += len(changes)
        repeated += sum(change['steps_repeated'] for change in changes)
        problem = problem_of(code, err, losses(folder) if records else {}, right, run)
        if problem:
            failures.append(seed)
            print(f'{schedule}\n  {problem}\n{err}', file=sys.stderr)
        elif not given.json:
            print(f"{schedule}: right, {len(changes)} generations, {time.monotonic() - started:.1f} s", flush=True)
            if given.only is not None:
                print(err)
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(base, ignore_errors=True)
    if given.json:
        print(json.dumps({'chaos_runs': len(seeds), 'chaos_failures': len(failures), 'seeds': failures,
                          'generations': generations, 'steps_repeated': repeated, 'slowest_s': round(slowest, 1)}))
    else:
        print(f'{len(seeds) - len(failures)} of {len(seeds)} runs right, {generations} generations, '
              f'{repeated} steps repeated; failed: {failures}')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
