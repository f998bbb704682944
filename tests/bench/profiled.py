#!/usr/bin/env python3
"""Steps of this machine's own processes against what the simulator says of them from the profile that `hetrun profile` writes: once
measured by one process alone, once by as many processes at once as the step has. Nothing is slowed down. Profiles and runs take
turns; the median of all rounds counts. A trace of each run says why they differ: what layers computed (each instruction by its
median, as in a profile), what the processors gave to other work meanwhile, and what ranks waited for each other. Prints a line for
each setting; the last line is one JSON object with --json.

usage: profiled.py HETRUN [--json] [--trials=N] [--only=TEXT]   (N: rounds; TEXT: settings whose name has it, or one of several
apart by |)
"""
import collections
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile

from runs import last_json, named, option, output, say, step_seconds

HETRUN = pathlib.Path(sys.argv[1]).resolve()

ROUNDS = int(option('trials', 0)) or 3
ONLY = option('only', '').split('|')

LAYERS = 10
MICROBATCHES, MICROBATCH = 12, 4
STEPS = 7
# Pipelines, their depth, and the ranks that share each stage's layers.
SHAPES = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (4, 1, 1), (2, 2, 1), (1, 4, 1))
TIMES = ('forward', 'input', 'weight', 'update', 'recompute')

RECIPE = '''
local het = require "het"
local corpus = het.data.text {{ path = "text.txt", tokenizer = "char" }}
return het.train {{
  model = het.nn.gpt {{ vocab = corpus.vocab, context = 64, width = 128, layers = {blocks}, heads = 4 }},
  data = corpus, batch = {batch}, steps = {steps}, evaluate = {{ every = 0 }}, optimizer = het.optim.adamw {{ lr = 1e-3 }},
  plan = {plan},
}}
'''


def plan_text(pipelines, depth, tensor):
    sizes = [LAYERS // depth + (s < LAYERS % depth) for s in range(depth)]
    lines = []
    for p in range(pipelines):
        firsts = [(p * depth + s) * tensor for s in range(depth)]
        stages = ', '.join('het.stage {{ {}{} }}'.format(', '.join(f'"here:{first + t}"' for t in range(tensor)),
                                                         f', layers = {size}' if depth > 1 else '')
                           for first, size in zip(firsts, sizes))
        lines.append(f'het.pipeline {{ microbatches = {MICROBATCHES // pipelines}, {stages} }}')
    return f'het.plan {{ tensor = {tensor}, microbatch = {MICROBATCH}, {", ".join(lines)} }}'


def type_of(ranks):
    return 'cpu' if ranks == 1 else f'cpu/{ranks}'


def profile(folder, ranks, tensor, together):
    """One process alone, or all ranks of the step at once; the file's content."""
    out = folder / 'measured.json'
    out.unlink(missing_ok=True)
    workers = ['--workers', ranks] if together and ranks > 1 else []
    kind = [] if together else [f'--type={type_of(ranks)}']
    output([HETRUN, *workers, 'profile', 'recipe.lua', f'--microbatches={MICROBATCH}', f'--tensor={tensor}', '--threads=1', '--quiet',
            f'--out={out}', *kind], folder)
    return json.loads(out.read_text())


def median_profile(profiles):
    """One profile whose every figure is the median of these."""
    merged = json.loads(json.dumps(profiles[0]))
    for p, point in enumerate(merged['points']):
        for name in TIMES:
            if point.get(name) is not None:
                point[name] = statistics.median(each['points'][p][name] for each in profiles)
    for k, link in enumerate(merged['links']):
        for m, message in enumerate(link['messages']):
            message['seconds'] = statistics.median(each['links'][k]['messages'][m]['seconds'] for each in profiles)
    return merged


def layers_of(content):
    """Seconds of all layers for one micro-batch, forward and backward."""
    counts = {'embedding': 1, 'blocks': LAYERS - 2, 'head': 1}
    return sum(counts[p['kind']] * (p['forward'] + p['input'] + p['weight']) for p in content['points'])


def traced(path):
    """Of one step, means over the ranks: seconds of forward and backward with every instruction at its median, and as they were;
    seconds that ranks waited."""
    spans = [event for event in json.loads(path.read_text())['traceEvents'] if event.get('ph') == 'X']
    ranks = len({event['pid'] for event in spans})
    alike, computed, waited = collections.defaultdict(list), 0, 0
    for event in spans:
        seconds = event['dur'] * 1e-6
        if event['cat'] in ('forward', 'backward'):
            layer = re.sub(r'\.\d+', '', event['args'].get('layer', ''))
            alike[event['pid'], event['cat'], layer, event['name']].append(seconds)
            computed += seconds
        elif event['cat'] in ('wait', 'bubble'):
            waited += seconds
    undisturbed = sum(statistics.median(times) * len(times) for times in alike.values())
    return undisturbed / ranks, computed / ranks, waited / ranks


def predict(folder, ranks, content):
    (folder / 'profile.json').write_text(json.dumps(content))
    answer = last_json([HETRUN, 'simulate', 'recipe.lua', f'--devices={ranks}', '--profile=profile.json', '--quiet', '--json'], folder)
    report = answer['report']
    if report['layers_measured'] == 0:
        sys.exit(f'the profile was not used: {report["sources"]}')
    return report['step_seconds']


def compare(folder, pipelines, depth, tensor):
    ranks = pipelines * depth * tensor
    (folder / 'recipe.lua').write_text(RECIPE.format(plan=plan_text(pipelines, depth, tensor), steps=STEPS, blocks=LAYERS - 2,
                                                     batch=MICROBATCHES * MICROBATCH))
    alone, together, steps, traces = [], [], [], []
    for _ in range(ROUNDS):
        alone.append(profile(folder, ranks, tensor, False))
        if ranks > 1:
            together.append(profile(folder, ranks, tensor, True))
        steps.append(step_seconds(HETRUN, ranks, 'recipe.lua', folder, f'--trace={folder / "step.json"}')[0])
        traces.append(traced(folder / 'step.json'))
    alone, together = median_profile(alone), median_profile(together) if ranks > 1 else None
    measured = statistics.median(steps)
    undisturbed, computed, waited = (statistics.median(values) for values in zip(*traces))
    share = MICROBATCHES / (pipelines * depth)  # of the micro-batches and layers, a rank's
    found = {'pipelines': pipelines, 'depth': depth, 'tensor': tensor, 'measured': measured,
             'scatter': max(steps) / min(steps) - 1, 'undisturbed': undisturbed, 'computed': computed, 'waited': waited,
             'alone': predict(folder, ranks, alone), 'alone_layers': share * layers_of(alone)}
    found['together'] = predict(folder, ranks, together) if together else found['alone']
    found['together_layers'] = share * layers_of(together) if together else found['alone_layers']
    # Ranks that are more than cores take turns, which a profile of all at once has in it.
    turns = ranks > len(os.sched_getaffinity(0))
    for name, layers in (('alone', undisturbed), ('together', computed if turns else undisturbed)):
        found[f'{name}_error'] = found[name] / measured - 1
        found[f'{name}_layers_error'] = found[f'{name}_layers'] / layers - 1
    return found


def name_of(shape):
    pipelines, depth, tensor = shape
    return f'{pipelines} x {depth}' + (f' tensor {tensor}' if tensor > 1 else '')


def summary(found):
    whole = {'settings': len(found), 'rounds': ROUNDS, 'cores': len(os.sched_getaffinity(0)), 'load': os.getloadavg()[1]}
    for name in ('alone', 'together'):
        for what in ('error', 'layers_error'):
            errors = [abs(one[f'{name}_{what}']) for one in found]
            whole.setdefault(name, {}).update({f'median_{what}': statistics.median(errors), f'worst_{what}': max(errors)})
    return {**whole, 'of_each': found}


def main():
    wanted = named(SHAPES, name_of, ONLY)
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 60)
        for shape in wanted:
            one = compare(folder, *shape)
            found.append(one)
            say(f'{name_of(shape)}: {one["measured"]:.3f} s measured (rounds differ by {100 * one["scatter"]:.0f} %); by the profile of '
                f'one process {one["alone"]:.3f} s ({100 * one["alone_error"]:+.0f} %), of all at once {one["together"]:.3f} s '
                f'({100 * one["together_error"]:+.0f} %). Layers of a rank {one["undisturbed"]:.3f} s, by the profiles '
                f'{one["alone_layers"]:.3f} and {one["together_layers"]:.3f} s; {one["computed"] - one["undisturbed"]:.3f} s more '
                f'while other work ran; waits {one["waited"]:.3f} s')
    whole = summary(found)
    if '--json' in sys.argv:
        print(json.dumps(whole))
    else:
        say(f'{whole["settings"]} settings, {ROUNDS} rounds, {whole["cores"]} cores, load {whole["load"]:.1f}')
        for name, words in (('alone', 'one process'), ('together', 'all at once')):
            of = whole[name]
            say(f'profile of {words}: steps median error {100 * of["median_error"]:.0f} %, worst {100 * of["worst_error"]:.0f} %; '
                f'layers median {100 * of["median_layers_error"]:.0f} %, worst {100 * of["worst_layers_error"]:.0f} %')


if __name__ == '__main__':
    main()
