#!/usr/bin/env python3
"""Ranks that PyTorch's torchrun starts meet, and train as ranks of `hetrun --workers` do: torchrun's own agent listens at the
MASTER_PORT that it hands out.

usage: torchrun.py HETRUN    (exit code 77: PyTorch is not installed)
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import torch.distributed.run

RECIPE = '''
local het = require "het"
return het.train {
  model = het.nn.linear(8, 4), batch = 8, steps = 3, evaluate = { batches = 1 }, optimizer = het.optim.sgd { lr = 0.1 },
  data = het.data.pairs { inputs = het.randn({ 64, 8 }, "f32", 1), labels = het.randn({ 64, 4 }, "f32", 2),
    holdout = 0.25 },
}
'''


def free_port():
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return found.getsockname()[1]


def losses_of(words, folder):
    """Of each rank that says it: behind `hetrun --workers` the first, else all."""
    done = subprocess.run([*map(str, words), 'recipe.lua', '--quiet', '--json', '--threads=1'], cwd=folder, text=True, timeout=120,
                          capture_output=True, check=False, env={**os.environ, 'HETRUN_SECRET': 'x' * 32, 'OMP_NUM_THREADS': '1'})
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]
    if not lines or any(len(line['ranks']) != 2 for line in lines):
        raise RuntimeError(f'these are no two ranks: {done.stdout}')
    return {line['validation_loss'] for line in lines}


def main():
    hetrun, failed = pathlib.Path(sys.argv[1]).resolve(), 0
    torchrun = [sys.executable, torch.distributed.run.__file__, '--no-python', '--nproc-per-node=2']
    launchers = {'alone on this machine': ['--standalone'],
                 'with an address': ['--master-addr=127.0.0.1', f'--master-port={free_port()}'],
                 'with a rendezvous': ['--rdzv-backend=c10d', f'--rdzv-endpoint=127.0.0.1:{free_port()}', '--rdzv-id=7']}
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / 'recipe.lua').write_text(RECIPE)
        expected = losses_of([hetrun, '--workers=2'], folder)
        for name, words in launchers.items():
            try:
                found = losses_of([*torchrun, *words, hetrun], folder)
            except RuntimeError as error:
                found = error
            print(f'{"ok  " if found == expected else "FAIL"}  torchrun {name}: {found}, --workers: {expected}')
            failed += found != expected
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
