"""Fails when objects compiled for one instruction set hold a function that the linker may share with other objects.

The linker keeps one copy of each weak function (an instantiated template, an inline function) in the whole program. A
copy compiled for AVX-512 would then run on processors that lack it. Such code belongs in the set's namespace, or in a
file that is compiled once (kernels/cpu/request.cpp). Ordinary symbols outside the namespace would collide and are
refused too.

usage: apart.py NM SET LIBRARY
"""
import re
import subprocess
import sys

# V: weak objects, such as vtables; they hold no instructions, but a weak vtable names weak functions that are listed.
CODE = 'TtWwiu'
SHARED = 'TWwiu'


def shared_functions(listing, isa):
    """Symbols of code that may be shared, and how many symbols of code there are."""
    functions, shared = 0, set()
    for line in listing.splitlines():
        found = re.match(r'[0-9a-f]+ ([A-Za-z]) (.*)', line)
        if not found or found.group(1) not in CODE:
            continue
        functions += 1
        if found.group(1) in SHARED and f'het::cpu::{isa}::' not in found.group(2):
            shared.add(found.group(2))
    return functions, sorted(shared)


def check_itself():
    """The rule on symbols that it has to tell apart."""
    listing = '\n'.join([
        '0000000000000000 W void het::fail_usage<int>(char const*, int)',
        '0000000000000000 T het::cpu::v4::norm_kernels()',
        '0000000000000010 W het::cpu::v4::Kernel<float>::run()',
        '0000000000000010 t helper',
        '0000000000000020 r table'])
    assert shared_functions(listing, 'v4') == (4, ['void het::fail_usage<int>(char const*, int)'])
    assert len(shared_functions(listing, 'v3')[1]) == 3


def main():
    check_itself()
    nm, isa, library = sys.argv[1:]
    listing = subprocess.run([nm, '--demangle', '--defined-only', library], check=True, capture_output=True, text=True)
    functions, shared = shared_functions(listing.stdout, isa)
    if functions == 0:
        sys.exit(f'{library} holds no functions: {nm} could not read it')
    for name in shared:
        print(f'{library}: the linker may share this function of {isa}: {name}')
    return 1 if shared else 0


if __name__ == '__main__':
    sys.exit(main())
