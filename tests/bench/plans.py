#!/usr/bin/env python3
"""Plans of four policies, run for real on ranks that are slowed to the devices of mixed clusters: which is faster, and does
the simulator say so beforehand? The last line is one JSON object.

usage: plans.py HETRUN [--trials=N] [--slower=S] [--only=TEXT]   (N: of the shapes below, the first so many; S: 3; TEXT: those
whose name has it, or one of several apart by |)
"""
import itertools
import json
import pathlib
import statistics
import sys
import tempfile

from runs import last_json, option, output, say, step_seconds

HETRUN = pathlib.Path(sys.argv[1]).resolve()
TRIALS = int(option('trials', 0)) or None
# Rates below are divided by this and latencies multiplied by it: the same plans, run slower, so that the ranks, more than
# there are processors, seldom wait for a processor; no model of a cluster has such waits.
SLOWER = float(option('slower', 3))
ONLY = option('only').split('|')
POLICIES = ('megatron', 'whale', 'autohet', 'auto')

# Written down before they were run. Rates sum to well under half of what two cores compute, and links are slower than what
# eight processes on them exchange through the loopback: devices and links can only be slowed down.
TYPES = {'fast': 24, 'middle': 12, 'slow': 6, 'old': 3}   # GFLOP/s
# Devices, MB/s between them, and memory.
SHAPES = {
    '3 fast + 1 slow': ([('fast', 3), ('slow', 1)], 250, '1 GiB'),
    '1 fast + 5 slow': ([('fast', 1), ('slow', 5)], 250, '1 GiB'),
    '2 fast + 2 middle + 3 slow': ([('fast', 2), ('middle', 2), ('slow', 3)], 250, '1 GiB'),
    '1 fast + 7 old': ([('fast', 1), ('old', 7)], 250, '1 GiB'),
    '2 fast + 6 old, no device holds the model': ([('fast', 2), ('old', 6)], 250, '24 MiB'),
    '3 middle + 2 old, no device holds the model': ([('middle', 3), ('old', 2)], 250, '24 MiB'),
    '2 fast + 3 middle over 40 MB/s': ([('fast', 2), ('middle', 3)], 40, '1 GiB'),
    '4 middle + 3 slow over 20 MB/s': ([('middle', 4), ('slow', 3)], 20, '1 GiB'),
    # The lopsided ones: counts that no degree divides, devices far apart.
    '4 fast + 3 slow over 20 MB/s': ([('fast', 4), ('slow', 3)], 20, '1 GiB'),
    '4 fast + 3 slow, no device holds the model': ([('fast', 4), ('slow', 3)], 250, '24 MiB'),
    '3 fast + 4 old, no device holds the model': ([('fast', 3), ('old', 4)], 250, '24 MiB'),
}

RECIPE = '''
local het = require "het"
local corpus = het.data.text { path = "text.txt", tokenizer = "char" }
local plan
%s
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 64, width = 128, layers = 10, heads = 4 },
  data = corpus, batch = 48, steps = 8, evaluate = { every = 0 }, optimizer = het.optim.adamw { lr = 1e-3 },
  plan = plan, pace = plan and cluster or nil,
}
'''


def cluster_text(nodes, link, memory):
    latency = f'{300 * SLOWER} us'
    types = '\n'.join(
        f'  het.device_type {{ name = "{name}", f32 = "{TYPES[name] / SLOWER} GFLOP/s", memory = "{memory}", '
        f'memory_bandwidth = "1 TB/s", efficiency = 1, launch = "0 us", bandwidth = "{250 / SLOWER} MB/s", latency = "{latency}" }},'
        for name, _ in nodes)
    places = '\n'.join(f'  het.node {{ name = "{name}", type = "{name}", devices = {count} }},' for name, count in nodes)
    return (f'local het = require "het"\nlocal cluster = het.cluster {{ bandwidth = "{link / SLOWER} MB/s", '
            f'latency = "{latency}", all_reduce = "mesh",\n{types}\n{places}\n}}\n')


def compare(folder, name, nodes, link, memory):
    """Of each policy: what its plan takes by the simulator, and for real. Equal plans are run once."""
    cluster = cluster_text(nodes, link, memory)
    (folder / 'cluster.lua').write_text(cluster + 'return cluster\n')
    (folder / 'plain.lua').write_text(RECIPE % '')
    taken, found = {}, {}
    for policy in POLICIES:
        answer = last_json([HETRUN, 'plan', 'plain.lua', '--cluster=cluster.lua', f'--policy={policy}', '--quiet', '--json'],
                           folder)
        plan, predicted = answer['lua'], answer['report']['step_seconds']
        if plan not in taken:
            (folder / 'planned.lua').write_text(RECIPE % (cluster + 'plan = ' + plan))
            ranks = sum(1 for device in answer['report']['devices'])
            taken[plan] = min(step_seconds(HETRUN, ranks, 'planned.lua', folder)[0] for _ in range(2))
        found[policy] = {'predicted': predicted, 'measured': taken[plan]}
        say(f'{name}, {policy}: {predicted:.4f} s by the simulator, {taken[plan]:.4f} s measured')
    return found


def main():
    wanted = {shape: about for shape, about in SHAPES.items() if any(text in shape for text in ONLY)}
    shapes = dict(itertools.islice(wanted.items(), TRIALS))
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 60)
        output([HETRUN, '--version'], folder)
        for shape, about in shapes.items():
            found[shape] = compare(folder, shape, *about)
    ratios = {shape: min(of['megatron']['measured'], of['whale']['measured']) / of['auto']['measured']
              for shape, of in found.items()}
    errors = [abs(one['predicted'] / one['measured'] - 1) for of in found.values() for one in of.values()]
    # Does the simulator know which of two plans is faster? Of all pairs, and of those that differ by 2 % or more.
    right = {0: [], 0.02: []}
    for of in found.values():
        for one, other in itertools.combinations(of.values(), 2):
            for least, answers in right.items():
                if one['measured'] != other['measured'] and abs(one['measured'] / other['measured'] - 1) >= least:
                    answers.append((one['measured'] < other['measured']) == (one['predicted'] < other['predicted']))
    order = {least: statistics.mean(answers) if answers else None for least, answers in right.items()}
    print(json.dumps({'shapes': len(found), 'best_ratio': max(ratios.values()), 'mean_ratio': statistics.mean(ratios.values()),
                      'worst_ratio': min(ratios.values()), 'simulator_median_error': statistics.median(errors),
                      'simulator_worst_error': max(errors), 'pair_order': order[0.02], 'pairs': len(right[0.02]),
                      'pair_order_all': order[0], 'pairs_all': len(right[0]),
                      'ratios': ratios, 'of_each': found}))


if __name__ == '__main__':
    main()
