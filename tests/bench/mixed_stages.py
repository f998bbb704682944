#!/usr/bin/env python3
"""Where `hetrun plan` (auto) takes sharding programs in a stage that holds unlike devices, and what that gains over the best plan without
such a stage, by the simulator: pipelines of layers' times, programs of stages of one kind each, and one program over all devices.
Nothing is trained. The last line is one JSON object.

usage: mixed_stages.py HETRUN [--only=CLUSTER]
"""
import json
import pathlib
import re
import sys
import tempfile

from runs import failure, run, say

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Two zones, each with devices of both kinds and fast links; slow links between the zones.
TWO_ZONES = '''local het = require "het"
local function device(name, rate)
  return het.device_type {{ name = name, f32 = rate, memory = "{memory}", memory_bandwidth = "300 GB/s", efficiency = 0.6, launch = "0 us",
    bandwidth = "{inside}", latency = "10 us" }}
end
return het.cluster {{ bandwidth = "{between}", latency = "50 us", device("fast", "{fast} TFLOP/s"), device("slow", "{slow} TFLOP/s"),
  het.node {{ name = "a", type = "fast", devices = {n}, zone = "x" }}, het.node {{ name = "b", type = "slow", devices = {m}, zone = "x" }},
  het.node {{ name = "c", type = "fast", devices = {n}, zone = "y" }}, het.node {{ name = "d", type = "slow", devices = {m}, zone = "y" }},
  het.link {{ from = "x", to = "x", bandwidth = "{inside}", latency = "10 us" }},
  het.link {{ from = "y", to = "y", bandwidth = "{inside}", latency = "10 us" }} }}
'''
# "1 x 6 + 2 x 2, 1 Gbit/s": in each zone a device of 6 TFLOP/s and two of 2, 1 Gbit/s between the zones.
CLUSTERS = {f'{n} x {fast} + {m} x {slow}, {between} Gbit/s':
            dict(fast=fast, slow=slow, n=n, m=m, memory='24 GiB', between=f'{between} Gbit/s', inside='200 Gbit/s')
            for n, fast, m, slow, between in ((1, 6, 2, 2, 1), (1, 6, 2, 2, 0.5), (1, 6, 3, 2, 1), (2, 3, 2, 1, 1), (1, 2, 1, 1, 1))}
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 400
WORKLOADS = {
    'bert': ['bert_base.lua', '--context=128', '--vocab=33280', '--text=text.txt', '--width=768', '--heads=12', '--layers=12', '--batch=32'],
    'vgg19': ['vgg19.lua', '--width=64', '--hidden=4096', '--pool=7', '--samples=1000', '--batch=64'],
}


def is_mixed(name, types):
    """Whether a stage of several that a candidate's name lists ("{ a:0, b:0-1 } { c:0 }, 4 micro-batches") holds unlike devices."""
    stages = [{types[node] for node in re.findall(r'(\w+):', stage)} for stage in re.findall(r'\{ ([^}]*) \}', name)]
    return len(stages) > 1 and any(len(kinds) > 1 for kinds in stages)


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    given = dict(word.lstrip('-').partition('=')[::2] for word in sys.argv[2:])
    found = {}
    say(f'{"cluster":<28} {"workload":<8} {"pipelines":>10} {"program over all":>17} {"unmixed stages":>15} {"mixed stages":>13}  gain')
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / 'text.txt').write_text(TEXT)
        for cluster, settings in CLUSTERS.items():
            if given.get('only', cluster) != cluster:
                continue
            text = TWO_ZONES.format(**settings)
            (folder / 'cluster.lua').write_text(text)
            types = dict(re.findall(r'name = "(\w+)", type = "([^"]+)"', text))
            for workload, (recipe, *options) in WORKLOADS.items():
                command = [hetrun, 'plan', ROOT / 'recipes' / recipe, *options, '--cluster=cluster.lua', '--json', '--quiet']
                code, out, err = run(command, folder)
                if code:
                    say(f'{cluster:<28} {workload:<8} {failure(command, code, out, err)}')
                    continue
                programs = json.loads(out.splitlines()[-1]).get('programs', {'candidates': [], 'rival_seconds': 0})
                best = {'pipelines': programs['rival_seconds'] or None}
                for each in programs['candidates']:
                    stages = each['name'].count('{')
                    kind = 'all' if stages < 2 else 'mixed' if is_mixed(each['name'], types) else 'unmixed'
                    if each['fits']:
                        best[kind] = min(best.get(kind) or each['step_seconds'], each['step_seconds'])
                others = [best[kind] for kind in ('pipelines', 'all', 'unmixed') if best.get(kind)]
                gain = min(others) / best['mixed'] if best.get('mixed') and others else None
                shown = [f'{best[kind] * 1e3:.1f} ms' if best.get(kind) else 'none' for kind in ('pipelines', 'all', 'unmixed', 'mixed')]
                say(f'{cluster:<28} {workload:<8} {shown[0]:>10} {shown[1]:>17} {shown[2]:>15} {shown[3]:>13}  '
                    f'{f"{gain:.3f}" if gain else "none"}')
                found[f'{cluster}: {workload}'] = {**best, 'gain': gain}
    print(json.dumps(found))


if __name__ == '__main__':
    main()
