#!/usr/bin/env python3
"""Sharding programs for HAP's four workloads: by the cost model, on its cluster of V100 and P100, against data parallelism, ZeRO,
Megatron's tensor parallelism and HAP's published rules, with the proven bound and the seconds of the searches (each plan is found in
a separate process; nothing is trained); and small ones run for real on slowed devices (sharding_runs.py), `meshes` those of machines
whose devices are closer to each other than the machines are. The last line is one JSON object.

usage: hap.py HETRUN [--json] [--part=model|runs|meshes|gains|growth] [--gpus=8,16,32,64] [--only=WORKLOAD] [--trials=1]
"""
import json
import pathlib
import statistics
import sys
import tempfile

import sharding_runs
from runs import failure, run, say

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The machines of that paper: 2 with V100 and 6 with P100 at 10.4 Gb/s, here with 1 to 8 devices each.
CLUSTER = '''local het = require "het"
return het.cluster {{ bandwidth = "10.4 Gbit/s", latency = "30 us",
  het.node {{ name = "v", type = "V100-16", devices = {0}, count = 2 }},
  het.node {{ name = "p", type = "P100", devices = {0}, count = 6 }} }}
'''
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 400
LAYERS = 12
TRANSFORMER = ['--width=768', '--heads=12', f'--layers={LAYERS}']


def workloads(gpus):
    text = ['--context=128', '--vocab=33280', '--text=text.txt', *TRANSFORMER]
    return {
        'vgg19': ['vgg19.lua', '--width=64', '--hidden=4096', '--pool=7', '--samples=1000'],
        'vit': ['vit.lua', '--patch=4', '--samples=1000', *TRANSFORMER],
        'bert': ['bert_base.lua', *text],
        'moe': ['bert_moe.lua', f'--experts={2 * gpus}', *text],
    }


def plan(hetrun, folder, words, gpus):
    recipe, *options = words
    command = [hetrun, 'plan', ROOT / 'recipes' / recipe, f'--batch={32 * gpus}', *options, '--cluster=cluster.lua',
               '--policy=hap', '--json', '--quiet']
    code, out, err = run(command, folder)
    if code:
        return None, failure(command, code, out, err)
    return json.loads(out.splitlines()[-1])['report'], ''


def reports(hetrun, given, settings, *options):
    """(workload, GPUs, layers, what was found) of each setting (GPUs, layers) and workload; what cannot be planned is said."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / 'text.txt').write_text(TEXT)
        for gpus, layers in settings:
            (folder / 'cluster.lua').write_text(CLUSTER.format(gpus // 8))
            for workload, words in workloads(gpus).items():
                if given.get('only', workload) != workload or (workload == 'vgg19' and layers != LAYERS):
                    continue
                words = [word.replace(f'--layers={LAYERS}', f'--layers={layers}') for word in words]
                report, problem = plan(hetrun, folder, [*words, *options], gpus)
                if report:
                    yield workload, gpus, layers, report
                else:
                    say(f'{workload:<8} {layers:>6} {gpus:>4} {problem}')


def sizes_of(given):
    return [(int(n), LAYERS) for n in given.get('gpus', '8,16,32,64').split(',')]


def gains(hetrun, given):
    """What each addition to HAP's published rules gains, alone and beside all others."""
    found = {}
    say(f'{"workload":<8} {"GPUs":>4} {"all":>6}  each: alone over the published rules, all over all but it')
    for workload, gpus, _, report in reports(hetrun, given, sizes_of(given), '--gains'):
        each = {gain['name']: (gain['published_seconds'] / gain['alone_seconds'], gain['without_seconds'] / gain['all_seconds'])
                for gain in report['gains']}
        every = report['gains'][0]['published_seconds'] / report['gains'][0]['all_seconds']
        say(f'{workload:<8} {gpus:>4} {every:>6.3f}  '
            + '; '.join(f'{name} {alone:.3f} {without:.3f}' for name, (alone, without) in each.items()))
        found[f'{workload}_{gpus}'] = {'all': every, **{name: list(both) for name, both in each.items()}}
    return {'gains': found}


def growth(hetrun, given):
    """Seconds of a search, of all of them, and of those along two axes, by depth and by devices: medians of --trials."""
    found = {}
    say(f'{"workload":<8} {"layers":>6} {"GPUs":>4} {"table":>8} {"search":>8} {"searches":>8} {"all":>8} {"two axes":>9}')
    settings = [(8, 12), (16, 12), (32, 12), (64, 12), (64, 6), (64, 24), (64, 48)]
    taken = {}
    for _ in range(int(given.get('trials', 1))):
        for workload, gpus, layers, report in reports(hetrun, given, settings):
            taken.setdefault((workload, layers, gpus), []).append(report)
    for (workload, layers, gpus), several in taken.items():
        def median(name, several=several):
            return statistics.median(report[name] for report in several)
        searches, every, mesh = several[0]['searches'], median('search_seconds'), median('mesh_search_seconds')
        say(f'{workload:<8} {layers:>6} {gpus:>4} {median("table_seconds"):>6.3f} s {every / searches:>6.3f} s {searches:>8} '
            f'{every:>6.2f} s {f"{mesh:.2f} s" if several[0]["meshes"] else "none":>9}')
        found[f'{workload}_{layers}_{gpus}'] = {'search_seconds': every / searches, 'all_seconds': every, 'mesh_seconds': mesh}
    return {'growth': found}


def by_model(hetrun, given):
    ratios, worst, search, gaps, published = {}, {}, {}, {}, {}
    say(f'{"workload":<8} {"GPUs":>4} {"step":>9} {"bound":>9} {"gap":>6} {"search":>8}  times as fast as the best of even, '
        'proportional, ZeRO; Megatron; HAP')
    for workload, gpus, _, report in reports(hetrun, given, sizes_of(given)):
        # Simulated, communication beside computing.
        found = {other['name']: other for other in report['baselines'] if other['found']}
        seconds = {name: other['step_seconds'] for name, other in found.items()}
        own = report['step_seconds']
        names = [name for name in ('even data parallelism', 'proportional data parallelism', 'data parallelism in part', 'ZeRO')
                 if name in found]
        first = min((seconds[name] for name in names), default=own)
        fits = any(found[name]['fits'] for name in names)
        megatron = seconds.get('Megatron tensor parallelism')
        hap = seconds.get("HAP's published rules")
        each = report['search_seconds'] / report['searches']
        shown = [f'{other / own:.3f}' if other else 'cannot' for other in (megatron, hap)]
        say(f'{workload:<8} {gpus:>4} {own * 1e3:>6.1f} ms {report["bound_seconds"] * 1e3:>6.1f} ms {report["gap"]:>6.1%} '
            f'{each:>6.3f} s  {first / own:.3f}{"" if fits else " (none fits)"}; {"; ".join(shown)}')
        ratios[f'{workload}_{gpus}'] = first / own
        published[f'{workload}_{gpus}'] = hap and hap / own
        worst[f'{workload}_{gpus}'] = min((seconds[name] for name, other in found.items() if other['fits']), default=own) / own
        search[workload] = max(search.get(workload, 0), each)
        gaps[workload] = max(gaps.get(workload, 0), report['gap'])
    return {'model_best_ratio': max(ratios.values(), default=0), 'model_worst_ratio': min(worst.values(), default=0),
            'over_published': published, 'ratios': ratios, 'search_seconds': search, 'bound_gap': gaps}


def main():
    hetrun = pathlib.Path(sys.argv[1]).resolve()
    given = dict(word.lstrip('-').partition('=')[::2] for word in sys.argv[2:])
    found = {}
    if given.get('part', 'model') == 'model':
        found.update(by_model(str(hetrun), given))
    if given.get('part') == 'gains':
        found.update(gains(str(hetrun), given))
    if given.get('part') == 'growth':
        found.update(growth(str(hetrun), given))
    part = given.get('part', 'runs')
    if part in ('runs', 'meshes'):
        settings = sharding_runs.SETTINGS if part == 'runs' else sharding_runs.MESHES
        with tempfile.TemporaryDirectory() as name:
            found.update(sharding_runs.summary(sharding_runs.measure_all(hetrun, pathlib.Path(name), settings, given.get('only', ''),
                                                                         int(given.get('trials', 1)))))
    print(json.dumps(found))


if __name__ == '__main__':
    main()
