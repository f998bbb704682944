#!/usr/bin/env python3
"""The planner, measured by the planner's simulator: auto against the baselines over the combinations, against brute force on random
small clusters (wide_*: with tensor parallelism and two hosts of a type), and how long it plans. The last line is one JSON
object; its seconds_* are by the wall clock, which counts beside other work, its processor_seconds_* of the processors that
planning keeps busy.

usage: planner.py HETRUN [--trials=N]
"""
import json
import os
import pathlib
import subprocess
import sys

from runs import option, program_of, say

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = pathlib.Path(sys.argv[1]).resolve()
TRIALS = int(option('trials', 300))
FIRST_SEED = 50001


def start(*words):
    return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)


def finish(process):
    """What a benchmark's last line says; what it printed before goes to stderr. Exit code 1: it says that auto lost."""
    lines = process.communicate()[0].splitlines()
    if process.returncode not in (0, 1) or not lines:
        sys.exit(f'{process.args} ended with {process.returncode}')
    say('\n'.join(lines[:-1]))
    return json.loads(lines[-1])


def exhaustive(*words):
    """Shared out over the processors; the seeds of each a thousand apart."""
    workers = min(os.cpu_count() or 1, TRIALS)
    shares = [TRIALS // workers + (i < TRIALS % workers) for i in range(workers)]
    program = program_of(HETRUN, 'tests/bench/planner_exhaustive')
    running = [start(program, share, FIRST_SEED + 1000 * i, *words) for i, share in enumerate(shares)]
    parts = [finish(process) for process in running]
    solved = sum(part['solved'] for part in parts)
    total = {name: sum(part[name] for part in parts)
             for name in ('exhaustive_trials', 'left_out', 'solved', 'infeasible_for_both', 'missed',
                          'feasible_only_for_auto')}
    total['exhaustive_mean_gap'] = sum(part['exhaustive_mean_gap'] * part['solved'] for part in parts) / max(solved, 1)
    total['exhaustive_worst_gap'] = max(part['exhaustive_worst_gap'] for part in parts)
    return total


def main():
    table, combinations = program_of(HETRUN, 'tests/bench/planner_table'), HERE / 'planner/combinations.json'
    results = finish(start(table, combinations, 'seconds'))
    results |= finish(start(table, combinations))
    results |= exhaustive()
    results |= {f'wide_{name}': value for name, value in exhaustive('wide').items()}
    print(json.dumps(results))


if __name__ == '__main__':
    main()
