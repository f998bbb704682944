#!/usr/bin/env python3
"""Recovery, measured: python3 tests/bench/recovery/run.py build/lua/hetrun [--json] [--trials=100] [--only=PART]

Parts: `pauses` (a rank is lost or silent), `plans` (its next plan, made ahead or not), `scenarios` (from the loss of
machines to the next step, against a restart from the cloud), `overhead` (of snapshots in memory), `resting` (the same
where hosts rest, as beside GPUs), `disk` and `peers` (snapshot files against the raw disk and plain TCP), `day` (a
recorded day of spot machines), `chaos` (random faults).
Those that need network namespaces are skipped by name without root. A quiet machine is needed: figures of a busy one are not worth keeping."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import costs
import network
import pauses
import plans
import scenarios
import spot_day

TESTS = Path(__file__).resolve().parents[2]


def tool(hetrun, name):
    """A benchmark of the build that hetrun is of."""
    path = Path(hetrun).parents[1] / 'tests' / 'bench' / name
    return str(path) if path.exists() else None


def measure_pauses(hetrun, trials):
    crash = pauses.measure(hetrun, trials)
    silent = pauses.measure(hetrun, max(1, trials // 4), silent=2)
    met = pauses.measure(hetrun, max(1, trials // 4), silent=2, etcd=True) if shutil.which('etcd') else None
    middle = len(crash['noticed']) // 2
    return {'detect_p99_ms': pauses.p99(crash['noticed']), 'detect_ms': crash['noticed'][middle],
            'reform_ms': crash['connected'][middle] - crash['noticed'][middle],
            'next_step_ms': crash['two steps'][middle], 'next_step_p99_ms': pauses.p99(crash['two steps']),
            'silent_timeout_ms': 2000, 'silent_detect_p99_ms': pauses.p99(silent['noticed']),
            'silent_detect_with_etcd_p99_ms': met and pauses.p99(met['noticed']), 'losses': trials}


def measure_scenarios(hetrun, _):
    rows = scenarios.measure_all(hetrun)
    local = [row for row in rows if sum(row['bytes'].values()) > row['bytes']['store']]
    # Of one change of ranks: between two the machines train, which is no part of the bound. Without bytes to move there is none.
    bounds = [row['moving_seconds'] / row['bound_seconds'] for row in rows
              if sum(row['bytes'].values()) > 0 and len(row['timelines']) == 1]
    return {'best_speedup': max(row['speedup'] for row in rows), 'worst_speedup': min(row['speedup'] for row in local),
            'bound_ratio': max(bounds, default=None),
            'moves_what_is_lacking': all(row['moves_what_is_lacking'] for row in rows), 'scenarios': rows}


def measure_disk(hetrun, _):
    writer = tool(hetrun, 'disk_speed')
    if not writer:
        return {'skipped': 'there is no tests/bench/disk_speed beside this hetrun'}
    with tempfile.TemporaryDirectory(dir='/var/tmp') as folder:
        return costs.disk(writer, folder)


def measure_peers(hetrun, _):
    """Between two machines with 1 Gb/s, where the link is what limits."""
    program = tool(hetrun, 'exchange')
    if not program:
        return {'skipped': 'there is no tests/bench/exchange beside this hetrun'}
    two = network.Network(2, '1gbit', '1gbit')
    try:
        server = subprocess.Popen(two.inside(0, [program, 'serve', two.address[0], '256']), stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        peer, file = server.stdout.readline().split()
        done = subprocess.run(two.inside(1, [program, 'measure', two.address[1], peer, file, '3']),
                              capture_output=True, text=True, check=True)
        server.communicate('')
    finally:
        two.remove()
    found = json.loads(done.stdout)
    return {'peer_fraction': found['fetch']['of plain'], 'exchange': found}


def measure_chaos(hetrun, trials):
    done = subprocess.run([sys.executable, str(TESTS / 'chaos' / 'run.py'), hetrun, f'--runs={trials}', '--json'],
                          capture_output=True, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1])


PARTS = {
    'pauses': (measure_pauses, False),
    'plans': (lambda hetrun, trials: plans.measure(hetrun, max(1, trials // 10)), False), 'scenarios': (measure_scenarios, True),
    'overhead': (lambda hetrun, _: {'snapshot_overhead': costs.overhead(hetrun)}, True),
    'resting': (lambda hetrun, _: {'snapshot_overhead_of_a_resting_host': costs.overhead(hetrun, rest=costs.REST)}, True),
    'disk': (measure_disk, False), 'peers': (measure_peers, True),
    'day': (lambda hetrun, _: {'spot_day': spot_day.measure(hetrun)}, True), 'chaos': (measure_chaos, False),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('hetrun')
    parser.add_argument('--trials', type=int, default=100)
    parser.add_argument('--json', action='store_true')
    parser.add_argument('--only', choices=PARTS, action='append')
    given = parser.parse_args()
    hetrun, found = str(Path(given.hetrun).resolve()), {}
    namespaces = network.problem()
    for name, (measure, needs_namespaces) in PARTS.items():
        if given.only and name not in given.only:
            continue
        why = namespaces if needs_namespaces else None
        if name == 'day' and not spot_day.TRACE.exists():
            why = f'there is no {spot_day.TRACE.name}'
        if why:
            print(f'{name}: skipped: {why}', file=sys.stderr)
            continue
        print(f'{name} ...', file=sys.stderr, flush=True)
        part = measure(hetrun, given.trials)
        found.update(part)
        if not given.json:
            print(json.dumps(part, indent=1), file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps(found, indent=1))


if __name__ == '__main__':
    main()
