"""Parse the program's files as `./dev run` compiles them: with precompiled headers, and several files at once, where their names can
collide that strict builds compile one by one. joined.py ROOT FOLDER: FOLDER gets a configured build."""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

root, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
if not (folder / 'build.ninja').exists():
    subprocess.run(['meson', 'setup', folder, root, '-Dtests=false', '-Dcuda=disabled', '-Dinstruction_sets=native'], check=True,
                   stdout=subprocess.DEVNULL)
targets = [line.rsplit(':', 1) for line in subprocess.run(['ninja', '-C', folder, '-t', 'targets', 'all'], check=True, text=True,
                                                          capture_output=True).stdout.splitlines() if ': ' in line]
made = [name for name, rule in targets if name.endswith('.gch') or ('/' in name and rule.strip() == 'CUSTOM_COMMAND')]
subprocess.run(['ninja', '-C', folder, *made], check=True, stdout=subprocess.DEVNULL)


def parse(entry):
    words = shlex.split(entry['command'])
    words = [word for word, before in zip(words, ['', *words]) if word not in ('-MD', '-MQ', '-MF', '-o', '-c')
             and before not in ('-MQ', '-MF', '-o')]
    return entry['file'], subprocess.run([*words, '-fsyntax-only'], cwd=entry['directory'], capture_output=True, text=True, check=False)


entries = [entry for entry in json.loads((folder / 'compile_commands.json').read_text())
           if '-include' in shlex.split(entry['command'])]
if not entries:
    sys.exit('no file is compiled with precompiled headers')
failed = 0
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for name, result in pool.map(parse, entries):
        if result.returncode:
            failed += 1
            print(f'{name}:\n{result.stderr}')
print(f'{len(entries)} files, {failed} failed')
sys.exit(1 if failed else 0)
