#!/usr/bin/env python3
"""Run a comparison with a Python that has what it needs, or skip it: the exit code is then 77, which Meson calls a skip.

usage: run.py SCRIPT HETRUN [arguments of SCRIPT]
The Python is that of HETRUN_PYTHON, of .venv (made by `./dev reference`), or the one that runs this.
"""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NEEDED = ('torch', 'transformers', 'safetensors', 'numpy')


def has_what_it_needs(python):
    try:
        done = subprocess.run([python, '-c', f'import {", ".join(NEEDED)}'], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def main():
    given = os.environ.get('HETRUN_PYTHON')
    candidates = [given] if given else [str(ROOT / '.venv' / 'bin' / 'python'), sys.executable]
    for python in candidates:
        if has_what_it_needs(python):
            os.execv(python, [python, *sys.argv[1:]])
    print(f'skipped: {" and ".join(candidates)} cannot import {", ".join(NEEDED)}; `./dev reference` installs them, '
          'HETRUN_PYTHON names another Python')
    return 77


if __name__ == '__main__':
    sys.exit(main())
