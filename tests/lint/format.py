#!/usr/bin/env python3
"""C++ files are as clang-format 14 writes them, and luacheck has nothing to say of the Lua files.

usage: format.py ROOT
Exits 77, skipped, where a tool is not installed and the others find nothing.
"""
import pathlib
import re
import shutil
import subprocess
import sys

CLANG_FORMAT = '14'   # others write some lines in other ways


def clang_format():
    """Its path, of the version that counts; None when it is not installed."""
    for name in (f'clang-format-{CLANG_FORMAT}', 'clang-format'):
        path = shutil.which(name)
        version = path and subprocess.run([path, '--version'], capture_output=True, text=True, check=True).stdout
        if version and re.search(rf'version {CLANG_FORMAT}\.', version):
            return path
    return None


def tracked(root, *patterns):
    """Files of the repository; none where this is no checkout."""
    git = shutil.which('git')
    if not git or not (root / '.git').exists():
        return []
    listed = subprocess.run([git, '-c', f'safe.directory={root}', 'ls-files', '-z', *patterns], cwd=root, check=True,
                            capture_output=True, text=True)
    return [name for name in listed.stdout.split('\0') if name and (root / name).is_file()]


def main(root):
    wrong, missing = False, []
    formatter, files = clang_format(), tracked(root, '*.cpp', '*.h', '*.cu')
    if formatter and files:
        done = subprocess.run([formatter, '--dry-run', '--Werror', *files], cwd=root, check=False)
        wrong = done.returncode != 0
    else:
        missing.append(f'clang-format {CLANG_FORMAT}' if files else 'a git checkout')
    if shutil.which('luacheck'):
        done = subprocess.run(['luacheck', '--no-color', '--quiet', 'lua/het', 'recipes', 'tests'], cwd=root, check=False)
        wrong = wrong or done.returncode != 0
    else:
        missing.append('luacheck')
    if wrong:
        print('./dev format and ./dev lint show details')
    elif missing:
        print('not installed:', ', '.join(missing))
    return 1 if wrong else 77 if missing else 0


if __name__ == '__main__':
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
