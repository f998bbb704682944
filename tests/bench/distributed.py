#!/usr/bin/env python3
"""Training over several ranks, measured: against one device, against what a schedule allows, against plain sockets, and what
happens when a rank is killed. The last line is one JSON object.

usage: distributed.py HETRUN [--trials=N]
"""
import json
import pathlib
import re
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / 'launch'))
import leftovers
from runs import last_json, option, program_of, run, say, step_seconds

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HETRUN = pathlib.Path(sys.argv[1]).resolve()
TRIALS = int(option('trials', 300))
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 60
RANKS = {'dp2': 2, 'pp4': 4, 'asymmetric': 5, 'tp2': 2, 'exchange': 2}


def measured(folder, setting, link='4 GB/s'):
    return step_seconds(HETRUN, RANKS[setting], folder / 'paced.lua', folder, f'--setting={setting}', f'--link={link}')


def simulated(folder, setting):
    cluster = (folder / 'paced.lua').read_text()
    cluster = re.sub(r'local opt = het.options \{.*?\n\}', 'local opt = { link = "4 GB/s" }', cluster, flags=re.S)
    (folder / 'cluster.lua').write_text(cluster[:cluster.index('return het.train')] + 'return cluster\n')
    return last_json([HETRUN, 'simulate', folder / 'paced.lua', f'--setting={setting}', '--cluster=cluster.lua', '--json',
                      '--quiet'], folder)


def paced(folder):
    ideal, memory = {}, 0
    for setting in ('dp2', 'pp4', 'asymmetric', 'tp2'):
        plan = simulated(folder, setting)['report']
        taken, result = min((measured(folder, setting) for _ in range(2)), key=lambda pair: pair[0])
        ideal[setting] = plan['step_seconds'] / taken
        for device, rank in zip(plan['devices'], result['ranks'], strict=True):
            memory = max(memory, abs(device['memory_bytes'] / rank['memory_bytes'] - 1))
        say(f'{setting}: a step takes {taken:.4f} s, the plan allows {plan["step_seconds"]:.4f} s: {ideal[setting]:.3f}')
    return ideal, memory


def hidden(folder):
    """Of the time that gradients take on a link that is busy for 60 % of a backward pass, what no step is longer for."""
    plan = simulated(folder, 'exchange')
    free, _ = measured(folder, 'exchange', '40 GB/s')
    backward = 2 / 3 * plan['report']['step_seconds']
    gradients = 4 * plan['model']['parameters']  # of two ranks each sends as much as it has
    wanted = 0.6 * backward
    shaped, _ = measured(folder, 'exchange', f'{gradients / wanted / 1e6:.3f} MB/s')
    part = 1 - (shaped - free) / wanted
    say(f'exchange: {wanted:.3f} s of traffic in {backward:.3f} s of backward makes a step {shaped - free:.3f} s longer')
    return part


def main():
    results = {}
    code, out, _ = run([program_of(HETRUN, 'tests/unit/unit_tests'), 'random plans train the model that one device trains'], ROOT,
                       HETRUN_PLAN_TRIALS=str(TRIALS), OMP_NUM_THREADS='1')
    results['plan_trials'] = TRIALS
    results['plan_max_error'] = max(float(x) for x in re.findall(r'in f32: ([0-9.e+-]+)', out)) if code == 0 else None
    say(f'{TRIALS} random plans: {results["plan_max_error"]}')
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / 'text.txt').write_text(TEXT)
        (folder / 'paced.lua').write_text((HERE / 'paced.lua').read_text())
        ideal, memory = paced(folder)
        results['ideal_fraction'] = min(ideal.values())
        results['ideal_fractions'] = ideal
        results['hidden_fraction'] = hidden(folder)
        results['memory_max_error'] = memory
    collectives = last_json([program_of(HETRUN, 'tests/bench/collectives'), 4, 64], ROOT)
    results['allreduce_fraction'] = collectives['allreduce_fraction']
    results['uneven_gather_fraction'] = collectives['padded_allgather_s'] / collectives['uneven_allgather_s']
    watch = leftovers.Watch()
    kills = max(1, TRIALS // 3)
    code, out, err = run([sys.executable, ROOT / 'tests/launch/run.py', HETRUN, 'Deaths'], ROOT, HETRUN_KILL_TRIALS=str(kills),
                         HETRUN_STOP_TRIALS=str(max(1, kills // 5)))
    results['kill_trials'] = kills
    # A launcher ends who is left after a while; by hand the ranks have to notice by themselves.
    slowest = {}
    for name, words in (('by_hand', 'without a launcher, '), ('launched', '')):
        found = re.search(f'^{words}from the kill to the end of all, at most: ([0-9.]+) s', out, re.MULTILINE)
        slowest[name] = float(found.group(1)) if found else None
        results[f'kill_max_seconds_{name}'] = slowest[name]
    results['kill_max_seconds'] = None if None in slowest.values() else max(slowest.values())
    for name, words in (('kills_by_phase', 'kills by phase'), ('stops_by_phase', 'stops by phase'),
                        ('survivors_by_phase', 'kills while a rank was in a phase')):
        phases = re.search(f'{words}: (.*)', out)
        results[name] = json.loads(phases.group(1)) if phases else None
    left = watch.found()
    results['leftovers'] = len(left)
    if code != 0:
        say(err)
    for sentence in left:
        say(sentence)
    print(json.dumps(results))


if __name__ == '__main__':
    main()
