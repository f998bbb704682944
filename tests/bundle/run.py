#!/usr/bin/env python3
"""Make the archive, unpack it beside nothing but glibc, and train there: run.py BUILD. Changing the root needs
rights that not every test machine gives: without them it is skipped, in words."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SKIPPED = 77   # to Meson
GLIBC = ['libc.so.6', 'libm.so.6', 'libdl.so.2', 'librt.so.1', 'libpthread.so.0', 'libresolv.so.2']


def bare_root(folder):
    """A tree with the dynamic loader, glibc and what a kernel shows under /proc and /dev; nothing else."""
    loader = pathlib.Path('/lib64/ld-linux-x86-64.so.2')
    here = loader.resolve().parent
    libraries = folder / here.relative_to('/')   # where this loader looks
    (folder / 'lib64').mkdir(parents=True)
    libraries.mkdir(parents=True, exist_ok=True)
    shutil.copy(loader.resolve(), folder / 'lib64' / loader.name)
    for name in GLIBC:
        shutil.copy((here / name).resolve(), libraries / name)
    for name in ('proc', 'dev', 'tmp'):
        (folder / name).mkdir()


def inside(folder, script):
    """Run a line with the root changed to `folder`, in separate namespaces."""
    mounts = f'mount --rbind /proc {folder}/proc && mount --rbind /dev {folder}/dev'
    own = [] if os.geteuid() == 0 else ['--map-root-user']
    return subprocess.run(['unshare', *own, '--mount', 'sh', '-c',
                           f'{mounts} && exec chroot {folder} {script}'],
                          env={'HOME': '/tmp', 'PATH': os.environ['PATH'], 'OMP_NUM_THREADS': '1'}, cwd='/', text=True,
                          capture_output=True, timeout=300, check=False)


def main():
    """Exit code 0: it works; 1: it does not."""
    build = sys.argv[1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        archive = folder / 'hetrun.tar.xz'
        subprocess.run([sys.executable, ROOT / 'lua' / 'archive' / 'bundle.py', build, 'test', archive], check=True)
        bare = folder / 'bare'
        bare_root(bare)
        with tarfile.open(archive) as packed:
            packed.extractall(bare / 'opt')
        if inside(bare, '/lib64/ld-linux-x86-64.so.2 --version').returncode != 0:
            print('skipped: this machine does not allow chroot')
            return SKIPPED
        home = '/opt/hetrun-test-x86_64'
        done = inside(bare, f'{home}/bin/hetrun --json --quiet {home}/recipes/mlp.lua --steps=200')
        if done.returncode != 0 or not re.search(r'"train_loss"', done.stdout):
            print(done.stdout, done.stderr)
            return 1
        # Ranks are started as processes of the same program.
        done = inside(bare, f'{home}/bin/hetrun --workers 2 --json --quiet {home}/recipes/mlp.lua --steps=20')
        if done.returncode != 0:
            print(done.stdout, done.stderr)
            return 1
        # Tests that read files beside them, or open a library; without a GPU the last says so.
        for program, test in (('unit_tests', '"collectives between GPUs equal plain sums*"'), ('ops_tests', '"*PyTorch*"'),
                              ('ops_gpu_tests', '"*PyTorch*"')):
            done = inside(bare, f'{home}/bin/{program} {test}')
            if done.returncode not in (0, SKIPPED) or done.returncode == 0 and 'All tests passed' not in done.stdout:
                print(program, done.stdout, done.stderr)
                return 1
        # What `hetrun bench` runs beside itself.
        for words in ('collectives 2 1', 'planner_exhaustive 0 1'):
            done = inside(bare, f'{home}/bin/{words}')
            if done.returncode != 0 or not done.stdout.startswith('{'):
                print(words, done.stdout, done.stderr)
                return 1
    print('the archive trains beside nothing but glibc')
    return 0


if __name__ == '__main__':
    sys.exit(main())
