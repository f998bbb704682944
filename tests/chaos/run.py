"""Random faults in elastic runs: python3 tests/chaos/run.py build/lua/hetrun [--runs=30] [--seed=1] [--only=SEED]
[--world=NAME] [--json]

Each run trains a small GPT on 3 to 6 processes under a random plan, with or without a sharded optimizer, while a schedule
of faults that is drawn from the run's seed goes on (schedule.py): ranks are killed, stopped and asked to leave, come later or
at all; machines are cut off; the store pauses or is started again; snapshots are damaged, and disks are full. Faults are bound
to steps, so a seed repeats its run.

A run is right when it ends with 0, each step was decided once and has the loss of the undisturbed run (judge.py); or, where a
schedule destroys more than the copies of the state can make good, when it ends with 75 and names what is lost."""

import argparse
import collections
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import network
from elastic_run import PATIENCE, Run, write_text
from judge import Curve, problem_of, records_of
from schedule import STEPS, WORLDS, Schedule


class Undisturbed:
    """Losses of runs without faults, by their plan; that of one device counts for all."""

    def __init__(self, hetrun):
        self.hetrun, self.known = hetrun, {}

    def losses(self, workers=1, words=()):
        key = (workers, tuple(words))
        if key not in self.known:
            folder = Path(tempfile.mkdtemp())
            write_text(folder)
            several = ['--workers', str(workers)] if workers > 1 else []
            subprocess.run([self.hetrun, *several, 'lopsided.lua', f'--steps={STEPS}', '--every=10', '--metrics=metrics.jsonl',
                            '--quiet', *words], cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
            self.known[key] = [record['loss'] for record in records_of(folder / 'metrics.jsonl') if 'loss' in record]
            shutil.rmtree(folder, ignore_errors=True)
        return self.known[key]

    def by_plan_of(self, schedule):
        if schedule.world in ('hosts', 'joins') and schedule.plan != 'replicas':
            return self.losses()   # they begin by another plan, or go on by one
        return self.losses(schedule.workers, [word for word in schedule.words() if word in ('--spread', '--tensor', '--sharded')])


def missing_for(schedule):
    """What a schedule needs and this machine lacks; empty: nothing."""
    if schedule.world == 'hosts':
        return network.missing()
    if schedule.world == 'etcd' and not shutil.which('etcd'):
        return 'no etcd'
    if 'fill disk' in schedule.kinds:
        return network.missing() and 'not root'
    return ''


def curve_of(run):
    curve, schedule = Curve(), run.schedule
    for start, path in enumerate(run.metrics):
        if start > 0:   # by another plan or the same one
            curve.is_exact = curve.is_exact and run.resumed_with == schedule.workers
            records = records_of(path)
            first = next((record['step'] for record in records if 'loss' in record), len(curve.losses) + 1)
            del curve.losses[first - 1:]
            curve.exact = min(curve.exact, len(curve.losses))
        curve.read(records_of(path), schedule.workers)
    return curve


def go_through(hetrun, schedule, undisturbed):
    """A run: what was wrong with it, its curve, and what it said."""
    folder = Path(tempfile.mkdtemp())
    write_text(folder)
    run = Run(hetrun, schedule, folder)
    if schedule.world == 'hosts':
        exact = []
    else:
        exact = undisturbed.by_plan_of(schedule)
    try:
        code, said = run.go()
        curve = curve_of(run)
        if schedule.world == 'hosts' or (schedule.world == 'joins' and schedule.plan != 'replicas'):
            curve.exact = 0
        return problem_of(run, code, said, curve, undisturbed.losses(), exact), curve, said
    finally:
        run.close()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('hetrun')
    parser.add_argument('--runs', type=int, default=30)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--only', type=int)
    parser.add_argument('--world', choices=list(WORLDS), action='append')
    parser.add_argument('--json', action='store_true')
    given = parser.parse_args()
    hetrun = str(Path(given.hetrun).resolve())
    undisturbed = Undisturbed(hetrun)
    seeds = [given.only] if given.only is not None else range(given.seed, given.seed + given.runs)
    failures, refused, skipped, kinds = [], [], collections.Counter(), collections.Counter()
    repeated, generations, exact, slowest = 0, 0, 0, 0
    for seed in seeds:
        schedule = Schedule(seed, given.world or tuple(WORLDS))
        lack = missing_for(schedule)
        if lack:
            skipped[f'{schedule.world}: {lack}'] += 1
            continue
        started = time.monotonic()
        problem, curve, said = go_through(hetrun, schedule, undisturbed)
        seconds = time.monotonic() - started
        kinds.update(schedule.kinds)
        generations, repeated, exact = generations + curve.generations, repeated + curve.repeated, exact + curve.exact
        slowest = max(slowest, seconds)
        if problem == 'refused':
            refused.append(seed)
        elif problem:
            failures.append(seed)
            print(f'{schedule}\n  {problem}\n{said}', file=sys.stderr, flush=True)
        if not given.json:
            print(f"{schedule}: {problem or 'right'}, {curve.generations} generations, {curve.exact} steps to the bit, "
                  f'{seconds:.1f} s', flush=True)
            if given.only is not None and not problem:
                print(said)
    ran = len(seeds) - sum(skipped.values())
    if given.json:
        print(json.dumps({'chaos_runs': ran, 'chaos_failures': len(failures), 'seeds': failures, 'refused': refused,
                          'kinds': dict(sorted(kinds.items())), 'skipped': dict(skipped), 'generations': generations,
                          'steps_repeated': repeated, 'steps_to_the_bit': exact, 'slowest_s': round(slowest, 1)}))
    else:
        print(f'{ran - len(failures)} of {ran} runs right ({len(refused)} refused), {generations} generations, {repeated} steps '
              f'repeated, {exact} steps the same to the bit; failed: {failures}; skipped: {dict(skipped) or "none"}')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
