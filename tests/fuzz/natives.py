#!/usr/bin/env python3
"""Run natives.lua: random calls of the engine's functions, in a separate folder and with bounded memory.

usage: natives.py HETRUN [--seconds=N] [--seed=S] [--unbounded]

--unbounded: for programs with an address sanitizer, which reserves more addresses than there is memory.
"""
import pathlib
import resource
import subprocess
import sys
import tempfile

MEMORY = 6 << 30


def bound():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    words = [word for word in sys.argv[2:] if word != '--unbounded']
    script = pathlib.Path(__file__).resolve().with_suffix('.lua')
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([hetrun, '--quiet', '--trust', '--threads=2', str(script), *words], cwd=folder, check=False,
                              preexec_fn=None if '--unbounded' in sys.argv else bound)
    if done.returncode < 0:
        print(f'hetrun ended by signal {-done.returncode}')
    return 0 if done.returncode == 0 else 1


if __name__ == '__main__':
    sys.exit(main())
