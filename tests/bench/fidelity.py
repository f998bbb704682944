#!/usr/bin/env python3
"""Steps of plans on paced ranks and shaped links against what the simulator says of them: pipelines by depth by links by how
ranks wait for each other. Prints a line for each setting; the last line is one JSON object with --json, else a table.

usage: fidelity.py HETRUN [--json] [--trials N] [--only TEXT]   (N: of the settings below, the first so many; TEXT: those whose
name has it, or one of several apart by |)
"""
import itertools
import json
import pathlib
import statistics
import sys
import tempfile

from runs import last_json, named, say

HETRUN = pathlib.Path(sys.argv[1]).resolve()


def option(name, default):
    given = [word.partition('=')[2] for word in sys.argv if word.startswith(f'--{name}=')]
    return given[0] if given else default


TRIALS = int(option('trials', 0)) or None
ONLY = option('only', '').split('|')

# All devices of a setting together: far below what two cores compute, so that ranks, which are more, seldom wait for one.
TOTAL_GFLOPS = 20
LAYERS = 10
MICROBATCHES, MICROBATCH = 12, 4
STEPS = 7
# Between any two devices. A boundary has 131 kB and a device's gradients up to 6.6 MB.
LINKS = {'fast': ('80 MB/s', '1 ms'), 'slow': ('4 MB/s', '2 ms')}
RUNTIMES = ('overlapping', 'blocking,late-reduction')
# Pipelines and their depth, by devices: plans of one cluster and batch, whose order is judged.
SHAPES = ((1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (2, 2), (4, 1), (2, 3), (3, 2), (2, 4), (4, 2))
# A run whose steps differ by more than this was disturbed: it is repeated, and the calmest counts.
CALM, RUNS = 0.03, 3

RECIPE = '''
local het = require "het"
local corpus = het.data.text {{ path = "text.txt", tokenizer = "char" }}
{cluster}
return het.train {{
  model = het.nn.gpt {{ vocab = corpus.vocab, context = 64, width = 128, layers = {blocks}, heads = 4 }},
  data = corpus, batch = {batch}, steps = {steps}, evaluate = {{ every = 0 }}, optimizer = het.optim.adamw {{ lr = 1e-3 }},
  plan = {plan}, pace = cluster, runtime = "{runtime}",
}}
'''


def cluster_text(devices, link):
    bandwidth, latency = LINKS[link]
    nodes = '\n'.join(f'  het.node {{ name = "n{i}", type = "paced", devices = 1 }},' for i in range(devices))
    return (f'local cluster = het.cluster {{ bandwidth = "{bandwidth}", latency = "{latency}", all_reduce = "mesh",\n'
            f'  het.device_type {{ name = "paced", f32 = "{TOTAL_GFLOPS / devices} GFLOP/s", memory = "1 GiB", '
            f'memory_bandwidth = "1 TB/s", efficiency = 1, bandwidth = "{bandwidth}", latency = "{latency}" }},\n{nodes}\n}}\n')


def plan_text(pipelines, depth):
    sizes = [LAYERS // depth + (s < LAYERS % depth) for s in range(depth)]
    lines = []
    for p in range(pipelines):
        stages = ', '.join(f'het.stage {{ "n{p * depth + s}:0"{f", layers = {size}" if depth > 1 else ""} }}'
                           for s, size in enumerate(sizes))
        lines.append(f'het.pipeline {{ microbatches = {MICROBATCHES // pipelines}, {stages} }}')
    return f'het.plan {{ microbatch = {MICROBATCH}, {", ".join(lines)} }}'


def steps_of(folder, ranks):
    """The steps of a run without its first two: their median, and by how much they differ."""
    metrics = folder / 'metrics.jsonl'
    metrics.unlink(missing_ok=True)
    last_json([HETRUN, '--workers', ranks, 'recipe.lua', '--threads=1', '--quiet', '--json', f'--metrics={metrics}'], folder)
    times = [line['seconds'] for line in map(json.loads, metrics.read_text().splitlines()) if 'loss' in line]
    steps = [b - a for a, b in zip(times[1:], times[2:])]
    return statistics.median(steps), max(steps) / min(steps) - 1


def measure(folder, ranks):
    runs = []
    while len(runs) < RUNS and (not runs or min(scatter for _, scatter in runs) > CALM):
        runs.append(steps_of(folder, ranks))
    return (*min(runs, key=lambda run: run[1]), len(runs))


def compare(folder, pipelines, depth, link, runtime):
    cluster = cluster_text(pipelines * depth, link)
    (folder / 'cluster.lua').write_text(f'local het = require "het"\n{cluster}return cluster\n')
    (folder / 'recipe.lua').write_text(RECIPE.format(cluster=cluster, plan=plan_text(pipelines, depth), runtime=runtime, steps=STEPS,
                                                     blocks=LAYERS - 2, batch=MICROBATCHES * MICROBATCH))
    answer = last_json([HETRUN, 'simulate', 'recipe.lua', '--cluster=cluster.lua', '--quiet', '--json'], folder)
    measured, scatter, runs = measure(folder, pipelines * depth)
    predicted, spread = answer['report']['step_seconds'], answer['link_spread']
    return {'pipelines': pipelines, 'depth': depth, 'link': link, 'runtime': runtime, 'predicted': predicted, 'measured': measured,
            'error': predicted / measured - 1, 'scatter': scatter, 'runs': runs,
            'least': spread['least'], 'most': spread['most']}


def ordered_pairs(found):
    """Of two settings of one cluster that differ by 2 % or more: whether the simulator knows which is faster."""
    return [(one['measured'] < other['measured']) == (one['predicted'] < other['predicted'])
            for one, other in itertools.combinations(found, 2)
            if one['link'] == other['link'] and one['pipelines'] * one['depth'] == other['pipelines'] * other['depth']
            and abs(one['measured'] / other['measured'] - 1) >= 0.02]


def summary(found):
    errors = [abs(one['error']) for one in found]
    pairs = ordered_pairs(found)
    return {'settings': len(found), 'median_error': statistics.median(errors), 'worst_error': max(errors),
            'pair_order': statistics.mean(pairs) if pairs else None, 'pairs': len(pairs), 'of_each': found}


def name_of(setting):
    pipelines, depth, link, runtime = setting
    return f'{pipelines} x {depth} {link} {runtime}'


def main():
    every = [(*shape, link, runtime) for shape in SHAPES for link in LINKS for runtime in RUNTIMES]
    wanted = named(every, name_of, ONLY)[:TRIALS]
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 60)
        for setting in wanted:
            one = compare(folder, *setting)
            found.append(one)
            say(f'{name_of(setting)}: {one["predicted"]:.3f} s by the simulator, {one["measured"]:.3f} s measured: '
                f'{100 * one["error"]:+.1f} %; links: {one["least"]:.3f} to {one["most"]:.3f} s'
                + (f' (steps differ by {100 * one["scatter"]:.1f} %)' if one['scatter'] > CALM else ''))
    whole = summary(found)
    if '--json' in sys.argv:
        print(json.dumps(whole))
    else:
        order = 'none' if whole['pair_order'] is None else f'{whole["pair_order"]:.3f} of {whole["pairs"]}'
        print(f'{whole["settings"]} settings: median error {100 * whole["median_error"]:.1f} %, worst '
              f'{100 * whole["worst_error"]:.1f} %, pairs in order: {order}')


if __name__ == '__main__':
    main()
