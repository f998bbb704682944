#!/usr/bin/env python3
"""Nothing that a recipe reaches is more than it may hold, and hostile calls of it are refused.

usage: reachable.py HETRUN [--unbounded]

The process has bounded memory, so that tensors of absurd sizes are refused at once. --unbounded: for programs with an
address sanitizer, which reserves more addresses than there is memory.
"""
import pathlib
import resource
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = str(pathlib.Path(sys.argv[1]).resolve())
MEMORY = 5 << 30


def bound():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main():
    with tempfile.TemporaryDirectory() as folder:
        words = [word for word in sys.argv[2:] if word != '--unbounded']
        done = subprocess.run([HETRUN, '--trust', str(HERE / 'reachable.lua'), *words], cwd=folder, check=False,
                              preexec_fn=None if '--unbounded' in sys.argv else bound)
    print(f'exit code {done.returncode}')
    return 1 if done.returncode else 0


if __name__ == '__main__':
    sys.exit(main())
