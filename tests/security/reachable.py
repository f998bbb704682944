#!/usr/bin/env python3
"""Nothing that a recipe reaches is more than it may hold, and hostile calls of it are refused: reachable.py HETRUN.

The process has bounded memory, so that tensors of absurd sizes are refused at once.
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
        done = subprocess.run([HETRUN, '--trust', str(HERE / 'reachable.lua'), *sys.argv[2:]], cwd=folder, preexec_fn=bound,
                              timeout=500, check=False)
    print(f'exit code {done.returncode}')
    return 1 if done.returncode else 0


if __name__ == '__main__':
    sys.exit(main())
