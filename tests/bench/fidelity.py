#!/usr/bin/env python3
"""Steps of plans on paced ranks against what the simulator says of them: pipelines by depth by links by how ranks wait for
each other. Over shaped links, where every rank has an interface to itself; and between network namespaces whose links are
token buckets, where the ranks of a machine share its interface (for root, with iproute2; else these are left out). Prints a
line for each setting; the last line is one JSON object with --json, else a table.

usage: fidelity.py HETRUN [--json] [--trials=N] [--only=TEXT]   (N: of the settings below, the first so many; TEXT: those whose
name has it, or one of several apart by |)
"""
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from runs import last_json, named, option, say

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'chaos'))
import network  # noqa: E402

HETRUN = pathlib.Path(sys.argv[1]).resolve()

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
# Of machines whose ranks share an interface: pipelines, depth, and what a machine has: the same stage of all pipelines, so that
# their transfers meet; a pipeline, so that the sums of its stages meet; or of each pipeline another stage, so that both do.
SHARED = ((2, 2, 'stages'), (4, 2, 'stages'), (3, 3, 'stages'), (2, 2, 'pipelines'), (2, 4, 'pipelines'), (3, 2, 'pipelines'),
          (2, 2, 'turned'), (3, 3, 'turned'))
SHARED_LINKS = {'shared slow': 4e6, 'shared': 12e6}   # bytes a second of a machine's interface
# Bytes that the token bucket counts for one of payload: a frame of Ethernet, and half of the acknowledgement of two frames of the
# other direction. So an interface has its bandwidth both ways at once, as hetrun measures links.
FRAME, PAYLOAD, ACKNOWLEDGEMENT = 1514, 1448, 66
WIRE = (FRAME + ACKNOWLEDGEMENT / 2) / PAYLOAD
# Of a message between two namespaces, and within one: half of a round trip of hetrun's messages, about.
SHARED_LATENCY, INSIDE = '200 us', ('1 GB/s', '100 us')
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


def machines_of(pipelines, depth, link, placement):
    """The devices of each machine: pipeline and stage."""
    if placement == 'own':
        return [[(p, s)] for p in range(pipelines) for s in range(depth)]
    if placement == 'stages':
        return [[(p, s) for p in range(pipelines)] for s in range(depth)]
    if placement == 'pipelines':
        return [[(p, s) for s in range(depth)] for p in range(pipelines)]
    return [[(p, (m + p) % depth) for p in range(pipelines)] for m in range(depth)]


def cluster_text(machines, devices, between, inside):
    (bandwidth, latency), (inside_bandwidth, inside_latency) = between, inside
    shared = 'interfaces = 1, ' if max(map(len, machines)) > 1 else ''
    nodes = '\n'.join(f'  het.node {{ name = "n{i}", type = "paced", {shared}devices = {len(own)} }},'
                      for i, own in enumerate(machines))
    return (f'local cluster = het.cluster {{ bandwidth = "{bandwidth}", latency = "{latency}", all_reduce = "mesh",\n'
            f'  het.device_type {{ name = "paced", f32 = "{TOTAL_GFLOPS / devices} GFLOP/s", memory = "1 GiB", '
            f'memory_bandwidth = "1 TB/s", efficiency = 1, launch = "0 us", bandwidth = "{inside_bandwidth}", latency = "{inside_latency}" }},\n'
            f'{nodes}\n}}\n')


def plan_text(machines, pipelines, depth):
    sizes = [LAYERS // depth + (s < LAYERS % depth) for s in range(depth)]
    device = {place: f'n{m}:{i}' for m, own in enumerate(machines) for i, place in enumerate(own)}
    lines = []
    for p in range(pipelines):
        stages = ', '.join(f'het.stage {{ "{device[p, s]}"{f", layers = {size}" if depth > 1 else ""} }}'
                           for s, size in enumerate(sizes))
        lines.append(f'het.pipeline {{ microbatches = {MICROBATCHES // pipelines}, {stages} }}')
    return f'het.plan {{ microbatch = {MICROBATCH}, {", ".join(lines)} }}'


def times_of(folder):
    times = [line['seconds'] for line in map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines()) if 'loss' in line]
    steps = [b - a for a, b in zip(times[1:], times[2:])]
    return statistics.median(steps), max(steps) / min(steps) - 1


WORDS = ['recipe.lua', '--threads=1', '--quiet', '--json', '--metrics=metrics.jsonl']


def steps_of(folder, ranks):
    """The steps of a run without its first two: their median, and by how much they differ."""
    (folder / 'metrics.jsonl').unlink(missing_ok=True)
    last_json([HETRUN, '--workers', ranks, *WORDS], folder)
    return times_of(folder)


def shared_steps_of(folder, hosts, machines, depth):
    """The same of ranks in namespaces, one for each machine."""
    (folder / 'metrics.jsonl').unlink(missing_ok=True)
    machine_of = {p * depth + s: m for m, own in enumerate(machines) for p, s in own}
    environment = {**os.environ, 'WORLD_SIZE': str(len(machine_of)), 'MASTER_ADDR': hosts.address(machine_of[0]),
                   'MASTER_PORT': '29500', 'HETRUN_SECRET': 'x' * 32, 'OMP_NUM_THREADS': '1'}
    ranks = [subprocess.Popen([*hosts.within(machine_of[rank]), str(HETRUN), *WORDS], cwd=folder, text=True,
                              env={**environment, 'RANK': str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
             for rank in range(len(machine_of))]
    said = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit('\n'.join(out + err for out, err in said))
    return times_of(folder)


def measure(steps):
    runs = []
    while len(runs) < RUNS and (not runs or min(scatter for _, scatter in runs) > CALM):
        runs.append(steps())
    return (*min(runs, key=lambda run: run[1]), len(runs))


def compare(folder, pipelines, depth, link, placement, runtime):
    ranks, shared = pipelines * depth, placement != 'own'
    machines = machines_of(pipelines, depth, link, placement)
    between = (f'{SHARED_LINKS[link] / 1e6} MB/s', SHARED_LATENCY) if shared else LINKS[link]
    cluster = cluster_text(machines, ranks, between, INSIDE if shared else between)
    # In namespaces the links are real ones, and paced devices have others that are never slower.
    pace = cluster_text(machines, ranks, *[('1000 GB/s', '0 s')] * 2) if shared else cluster
    (folder / 'cluster.lua').write_text(f'local het = require "het"\n{cluster}return cluster\n')
    (folder / 'recipe.lua').write_text(RECIPE.format(
        cluster=pace, plan=plan_text(machines, pipelines, depth), runtime=runtime, steps=STEPS, blocks=LAYERS - 2,
        batch=MICROBATCHES * MICROBATCH))
    answer = last_json([HETRUN, 'simulate', 'recipe.lua', '--cluster=cluster.lua', '--quiet', '--json'], folder)
    if shared:
        hosts = network.Network(len(machines))
        try:
            for host in range(len(machines)):
                hosts.slow(host, f'{round(8 * WIRE * SHARED_LINKS[link])}bit', burst='8kb', latency='50ms')
            measured, scatter, runs = measure(lambda: shared_steps_of(folder, hosts, machines, depth))
        finally:
            hosts.close()
    else:
        measured, scatter, runs = measure(lambda: steps_of(folder, ranks))
    predicted, spread = answer['report']['step_seconds'], answer['link_spread']
    return {'pipelines': pipelines, 'depth': depth, 'link': link, 'placement': placement, 'runtime': runtime,
            'predicted': predicted, 'measured': measured, 'error': predicted / measured - 1, 'scatter': scatter, 'runs': runs,
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
    pipelines, depth, link, placement, runtime = setting
    return f'{pipelines} x {depth} {link} {"" if placement == "own" else f"by {placement} "}{runtime}'


def main():
    every = [(*shape, link, 'own', runtime) for shape in SHAPES for link in LINKS for runtime in RUNTIMES]
    if why := network.missing():
        say(f'machines whose ranks share an interface are left out: {why}')
    else:
        control = pathlib.Path('/proc/sys/net/ipv4/tcp_congestion_control').read_text().strip()
        say(f'machines whose ranks share an interface: TCP with {control}')   # which decides how transfers share it
        every += [(pipelines, depth, link, placement, runtime) for pipelines, depth, placement in SHARED
                  for link in SHARED_LINKS for runtime in RUNTIMES]
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
