#!/usr/bin/env python3
"""Make one relocatable archive of a build.

usage: bundle.py BUILD VERSION OUT.tar.xz
"""
import contextlib
import lzma
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ['lua/hetrun', 'tests/unit/unit_tests', 'tests/ops/ops_tests', 'tests/ops/ops_gpu_tests',
            'tests/bench/planner_exhaustive', 'tests/bench/planner_table', 'tests/bench/collectives',
            'tests/bench/exchange', 'tests/bench/disk_speed']
SOURCES = ['README.md', 'CHANGELOG.md', 'LICENSE', 'recipes', 'lua/het', 'tests/bench', 'tests/chaos', 'tests/errors', 'tests/gpu',
           'tests/launch', 'tests/planning', 'tests/prompt', 'tests/recipes', 'tests/reference', 'tests/ops/golden']
# What glibc itself consists of: its parts have to be of one version, and that is the machine's.
GLIBC = re.compile(r'^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|nsl|BrokenLocale|thread_db|nss_\w+))\.so')
LIMIT = 60_000_000   # bytes of the archive
OLDEST_GLIBC = (2, 36)   # of the machines that it is to run on


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def libraries_of(program):
    """{name: file} of all that the program loads, beyond glibc."""
    found = {}
    for line in run('ldd', str(program)).splitlines():
        parts = re.match(r'\s*(\S+) => (\S+)', line)
        if not parts:
            continue
        name, path = parts.groups()
        if path == 'not':
            sys.exit(f'bundle: {program} needs {name}, which is not on this machine')
        if not GLIBC.match(name):
            found[name] = pathlib.Path(path).resolve()
    return found


def newest_glibc(file):
    """The glibc that a program or library asks for, as (2, 34)."""
    asked = re.findall(r' GLIBC_(\d+)\.(\d+)', run('objdump', '-p', str(file)))
    return max(((int(major), int(minor)) for major, minor in asked), default=(0, 0))


def copyright_of(library):
    """The package of a library and its copyright file; None where no package has it."""
    for path in (str(library), str(library).removeprefix('/usr')):
        asked = subprocess.run(['dpkg', '-S', path], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            package = asked.stdout.split(':')[0]
            text = pathlib.Path('/usr/share/doc', package, 'copyright')
            return (package, text) if text.is_file() else None
    return None


def fill(folder, build):
    """Lay out the archive's content."""
    libraries = {}
    for program in PROGRAMS:
        to = folder / 'bin' / pathlib.Path(program).name
        to.parent.mkdir(parents=True, exist_ok=True)
        run('strip', '-o', str(to), str(build / program))
        libraries |= libraries_of(build / program)
    (folder / 'lib').mkdir()
    for name, path in sorted(libraries.items()):
        run('strip', '--strip-unneeded', '-o', str(folder / 'lib' / name), str(path))
        found = copyright_of(path)
        if found:
            text = folder / 'licenses' / found[0]
            text.parent.mkdir(exist_ok=True)
            shutil.copyfile(found[1], text)
    (folder / 'lib' / 'emulated').mkdir()   # what unit_tests take for NCCL
    run('strip', '--strip-unneeded', '-o', str(folder / 'lib' / 'emulated' / 'libnccl.so.2'),
        str(build / 'tests' / 'emulated_cuda' / 'libnccl.so.2'))
    for file in [*(folder / 'bin').iterdir(), *(folder / 'lib').rglob('*.so*')]:
        if newest_glibc(file) > OLDEST_GLIBC:
            sys.exit('bundle: {} needs glibc {}.{}, newer than {}.{}'.format(file.name, *newest_glibc(file), *OLDEST_GLIBC))
    ignored = shutil.ignore_patterns('__pycache__', 'meson.build', '*.cpp')
    for source in SOURCES:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / source, ignore=ignored)
        else:
            (folder / source).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / source, folder / source)


@contextlib.contextmanager
def compressed(path):
    """A stream whose bytes are written to `path`, compressed: by xz on every core, or by Python's module where it is missing."""
    if shutil.which('xz') is None:
        with lzma.open(path, 'wb', preset=6) as packed:
            yield packed
        return
    with open(path, 'wb') as file, subprocess.Popen(['xz', '-6', '--threads=0', '--stdout'], stdin=subprocess.PIPE,
                                                    stdout=file) as process:
        yield process.stdin
        process.stdin.close()
        if process.wait() != 0:
            sys.exit(f'bundle: xz ended with exit code {process.returncode}')


def main():
    """Make the archive, and say how large it is."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    build, version, out = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    name = f'hetrun-{version}-x86_64'

    def plain(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = 'root'
        return entry

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / name
        fill(folder, build)
        partial = out.with_name(out.name + '.part')
        with compressed(partial) as packed, tarfile.open(fileobj=packed, mode='w|') as archive:
            archive.add(folder, name, filter=plain)
    size = partial.stat().st_size
    if size > LIMIT:
        partial.unlink()
        sys.exit(f'bundle: the archive has {size / 1e6:.1f} MB, above the limit of {LIMIT / 1e6:.0f}')
    partial.rename(out)
    print(f'{out}: {size / 1e6:.1f} MB')


if __name__ == '__main__':
    main()
