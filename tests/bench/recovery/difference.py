"""What ranks lack of the state after a change, tensor by tensor, from the plans of scenario.lua: the least that has to move."""

import json
import os
import re
import subprocess
import sys
import tempfile


def tensors_of(hetrun, objects):
    """Of the newest whole snapshot in files with a store's objects: bytes by name."""
    with tempfile.TemporaryDirectory() as folder:
        for path in objects:
            if found := re.search(r'step-.*\.snapshot$', path.name):
                os.link(path, os.path.join(folder, found[0]))
        shown = subprocess.run([hetrun, 'snapshot', 'show', folder, '--json'], capture_output=True, text=True, check=False)
        if shown.returncode != 0:
            sys.exit(f'{shown.stderr}{os.listdir(folder)}')
    return {tensor['name']: tensor['bytes'] for tensor in json.loads(shown.stdout)['tensors']}


def layer_of(name, layers):
    """Layers of a GPT that have a tensor: the table of tokens is the first one's and the last one's."""
    name = re.sub(r'^adamw\.[mv]\.', '', name)
    block = re.match(r'blocks\.(\d+)\.', name)
    if block:
        return {int(block[1]) + 1}
    return {0, layers - 1} if name.startswith('tokens.') else {0} if name.startswith('positions.') else {layers - 1}


def stages(machines, layers):
    """As scenario.lua cuts a pipeline over machines, each a stage: machine_5 and later are of a type half as fast."""
    weights = [1 if machine < 5 else 0.5 for machine in machines]
    cuts = [int(layers * sum(weights[:i]) / sum(weights)) for i in range(len(machines) + 1)]
    return [set(range(first, last)) for first, last in zip(cuts, cuts[1:])]


def held(machines, way, tensors):
    """Names of the state by machine; of ways that do not divide tensors."""
    layers = max(max(layer_of(name, 1 << 30) - {(1 << 30) - 1}, default=0) for name in tensors) + 2
    parts = [machines]
    if way == 'two' and len(machines) == 4:
        parts = [machines[:2], machines[2:]]
    return {machine: {name for name in tensors if layer_of(name, layers) & stage}
            for part in parts for machine, stage in zip(part, stages(part, layers))}


def lacking(before, after, way, tensors, is_back, nearer):
    """Bytes that move from machines `before` to machines `after`: {'store': where nothing nearer has them, 'near': all others}.
    `is_back`: the ranks go back to an older step, and have nothing of it but in their snapshots; `nearer`: whether snapshots in
    memory have what lost machines had."""
    old = {} if is_back else held(before, way, tensors)
    new = held(after, way, tensors)
    lacks = {machine: names - old.get(machine, set()) for machine, names in new.items()}
    alone = set()
    if is_back and not nearer:   # each machine's disk has its part of the plan before
        parts = held(before, way, tensors)
        alone = set(tensors) - set().union(*(parts[machine] for machine in before if machine in after))
    moved = [name for names in lacks.values() for name in names]
    store = sum(tensors[name] for name in moved if name in alone)
    return {'store': store, 'near': sum(tensors[name] for name in moved) - store}
