"""Synthesised sharding programs run for real, on ranks that are slowed to the devices of mixed clusters, against data
parallelism, ZeRO, Megatron's tensor parallelism, HAP's published rules and the planner's pipelines; and what was predicted."""
import json
import re
import statistics

from runs import failure, last_json, run, say, step_seconds

# Rates sum to well under what two cores compute; links are slower than the loopback.
# All rates below are divided by this, and latencies multiplied: the same plans, slower, so that the ranks, more than there are
# processors, seldom wait for a processor.
SLOWER = 4
TYPES = {'fast': 4, 'middle': 2, 'slow': 1, 'old': 0.5}   # GFLOP/s
CLUSTERS = {
    '2 fast + 2 slow': [('fast', 2), ('slow', 2)],
    '1 fast + 3 old': [('fast', 1), ('old', 3)],
    '2 middle + 6 slow': [('middle', 2), ('slow', 6)],
    '4 middle + 4 slow': [('middle', 4), ('slow', 4)],
}
TRANSFORMER = 'width = 64, heads = 4, layers = 4'
# Models of HAP's four workloads, scaled down until a step takes a second or two at these rates; batch; MB/s between devices.
WORKLOADS = {
    'vgg19': ('nn.vgg { classes = 10, width = 8, hidden = 512, pool = 4 }', 'data.shapes { samples = 1000, holdout = 0.1 }'),
    'vit': (f'nn.vit {{ classes = 10, image = 32, patch = 8, {TRANSFORMER} }}', 'data.shapes { samples = 1000, holdout = 0.1 }'),
    'bert': (f'nn.bert {{ vocab = 2048, context = 32, {TRANSFORMER} }}', None),
    'moe': ('''nn.bert { vocab = 2048, context = 32, %s, block = function(width, heads, index)
        if index %% 2 ~= 0 then return nn.bert_block { width = width, heads = heads } end
        return nn.bert_block { width = width, heads = heads, mlp = nn.experts { width = width, experts = 16, top = 2 } }
      end }''' % TRANSFORMER, None),
}
MASKED = 'data.masked { path = "text.txt", tokenizer = "char" }'
SETTINGS = [
    ('vgg19', '2 fast + 2 slow', 32, 200), ('vgg19', '2 middle + 6 slow', 32, 20), ('vgg19', '1 fast + 3 old', 32, 200),
    ('vit', '2 fast + 2 slow', 32, 200), ('vit', '2 middle + 6 slow', 32, 10), ('vit', '1 fast + 3 old', 32, 200),
    ('bert', '2 fast + 2 slow', 32, 200), ('bert', '2 middle + 6 slow', 32, 10), ('bert', '1 fast + 3 old', 32, 200),
    ('moe', '2 fast + 2 slow', 32, 200), ('moe', '2 middle + 6 slow', 32, 10), ('moe', '1 fast + 3 old', 32, 200),
]
# Where devices of a machine are closer to each other than machines are: MB/s inside and between.
MESHES = [
    ('vgg19', '2 fast + 2 slow', 32, (200, 10)), ('vgg19', '4 middle + 4 slow', 32, (200, 20)),
    ('vit', '2 fast + 2 slow', 32, (200, 10)), ('vit', '4 middle + 4 slow', 32, (200, 20)),
    ('bert', '2 fast + 2 slow', 32, (200, 10)), ('bert', '4 middle + 4 slow', 32, (200, 20)),
    ('moe', '2 fast + 2 slow', 32, (200, 10)), ('moe', '4 middle + 4 slow', 32, (200, 20)),
]
RECIPE = '''
local het = require "het"
local nn, data = het.nn, het.data
local plan
%s
return het.train {
  model = %s, data = %s, batch = %d, steps = 8, evaluate = { every = 0 },
  optimizer = het.optim.adamw { lr = 1e-3, clip = 1 }, plan = plan, pace = plan and cluster or nil,
}
'''
TEXT = ''.join(f'{chr(32 + i % 90)}{chr(32 + i // 90)} the quick brown fox jumps over the lazy dog.\n' for i in range(900))


def cluster_text(nodes, inside, between):
    types = '\n'.join(f'  het.device_type {{ name = "{name}", f32 = "{TYPES[name] / SLOWER} GFLOP/s", memory = "2 GiB", memory_bandwidth = '
                      f'"1 TB/s", efficiency = 1, launch = "0 us", bandwidth = "{inside / SLOWER} MB/s", latency = "{200 * SLOWER} us" }},' for name, _ in nodes)
    places = '\n'.join(f'  het.node {{ name = "{name}", type = "{name}", devices = {count} }},' for name, count in nodes)
    return (f'local cluster = het.cluster {{ bandwidth = "{between / SLOWER} MB/s", latency = "{200 * SLOWER} us", all_reduce = "mesh",\n{types}\n'
            f'{places}\n}}\n')


def measure(hetrun, folder, workload, nodes, batch, links, trials):
    """By name of the plan: what it takes by the prediction, and for real. Equal plans are run once."""
    model, images = WORKLOADS[workload]
    cluster = cluster_text(nodes, *links)
    (folder / 'cluster.lua').write_text(f'local het = require "het"\n{cluster}return cluster\n')
    (folder / 'plain.lua').write_text(RECIPE % ('', model, images or MASKED, batch))
    words = [hetrun, 'plan', 'plain.lua', '--cluster=cluster.lua', '--quiet', '--json']
    answer = last_json([*words, '--policy=hap'], folder)
    report = answer['report']
    plans = {'synthesised': (answer['lua'], report['step_seconds'])}
    plans.update({other['name']: (other['lua'], other['step_seconds']) for other in report['baselines'] + report['meshes']
                  if other['found']})
    code, out, err = run([*words, '--policy=auto'], folder)
    if code == 0:
        auto = json.loads(out.splitlines()[-1])
        plans['auto'] = (auto['lua'], auto['step_seconds'])
    else:
        say(failure([*words, '--policy=auto'], code, out, err))
    taken, found = {}, {}
    for name, (plan, predicted) in plans.items():
        if plan not in taken:
            (folder / 'planned.lua').write_text(RECIPE % (cluster + 'plan = ' + plan, model, images or MASKED, batch))
            ranks = len(set(devices_of(plan)))
            taken[plan] = statistics.median(step_seconds(hetrun, ranks, 'planned.lua', folder)[0] for _ in range(trials))
        found[name] = {'predicted': predicted, 'measured': taken[plan], 'error': predicted / taken[plan] - 1}
        say(f'  {name:<30} {predicted:7.3f} s predicted {taken[plan]:7.3f} s measured {found[name]["error"]:+7.1%}')
    return found


def devices_of(plan):
    """Names of the devices in the text of a plan: "fast:0", "slow:0-3"."""
    for node, first, last in re.findall(r'"(\w+):(\d+)(?:-(\d+))?"', plan):
        for number in range(int(first), int(last or first) + 1):
            yield f'{node}:{number}'


def measure_all(hetrun, folder, settings, only='', trials=1):
    (folder / 'text.txt').write_text(TEXT)
    found = {}
    for workload, cluster, batch, link in settings:
        inside, between = link if isinstance(link, tuple) else (link, link)
        name = f'{workload}, {cluster}, {inside} MB/s' if inside == between else f'{workload}, {cluster}, {inside} and {between} MB/s'
        if only not in name:
            continue
        say(name)
        found[name] = measure(hetrun, folder, workload, CLUSTERS[cluster], batch, (inside, between), trials)
    return found


BASELINES = ('even data parallelism', 'proportional data parallelism', 'data parallelism in part', 'ZeRO',
             'Megatron tensor parallelism')


def summary(found):
    """Of all settings: how much faster than even data parallelism at most, how much slower than the best baseline at most, and how
    far predictions by simulated programs were off."""
    over_even, over_best, errors = {}, {}, {}
    for setting, plans in found.items():
        if 'even data parallelism' not in plans:
            continue
        own = plans['synthesised']['measured']
        over_even[setting] = plans['even data parallelism']['measured'] / own
        over_best[setting] = own / min(plans[name]['measured'] for name in BASELINES if name in plans)
        errors.update({f'{setting}: {name}': abs(plan['error']) for name, plan in plans.items() if name != 'auto'})
    return {'best_over_even': max(over_even.values(), default=0), 'worst_over_best_baseline': max(over_best.values(), default=0),
            'prediction_error': max(errors.values(), default=0), 'median_prediction_error': statistics.median(errors.values() or [0]),
            'over_even': over_even, 'over_best_baseline': over_best, 'runs': found}
