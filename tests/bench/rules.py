#!/usr/bin/env python3
"""The sharding rules of all operators, executed over random uneven parts by tests/ops/sharding.cpp. The last line is one JSON
object: operators, rules, executed, of each device the trials and the worst error, and the operators without rules.

usage: rules.py HETRUN
"""
import json
import pathlib
import subprocess
import sys

from runs import say


def main():
    folder = pathlib.Path(sys.argv[1]).resolve().parent
    places = [folder.parent / 'tests' / 'ops' / 'ops_tests', folder / 'ops_tests']   # of a build, of the archive
    program = next((place for place in places if place.exists()), None)
    if program is None:
        sys.exit(f'the tests of the operators are not built: there is no {places[0]}')
    done = subprocess.run([program, '[sharding]'], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{')]
    if not lines:
        sys.exit(done.stdout[-2000:])
    reply = json.loads(lines[-1])
    say(f'{reply["executed"]} of {reply["rules"]} rules of {reply["operators"]} operators executed')
    for device in reply['devices']:
        say(f'{device["name"]} in {device["dtype"]}: {device["trials"]} trials, worst error {device["worst_error"]:.1e}')
    say(f'without rules: {", ".join(reply["without_rules"])}')
    print(lines[-1])
    return 1 if done.returncode else 0


if __name__ == '__main__':
    sys.exit(main())
