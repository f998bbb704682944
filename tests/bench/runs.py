"""What the benchmarks of whole runs share: which settings are asked for, starting hetrun, and the median step of a run."""
import json
import os
import pathlib
import statistics
import subprocess
import sys


def say(words):
    print(words, file=sys.stderr, flush=True)


def option(name, default=''):
    """What --NAME=VALUE of the command line says."""
    given = [word.partition('=')[2] for word in sys.argv if word.startswith(f'--{name}=')]
    return given[0] if given else default


def run(words, folder, **environment):
    done = subprocess.run([str(word) for word in words], cwd=folder, text=True, capture_output=True, check=False,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def failure(words, code, out, err):
    """A command that failed, how it ended, and what it printed."""
    printed = '\n'.join(text.strip() for text in (out, err) if text.strip())
    return f'{" ".join(map(str, words))}: {f"signal {-code}" if code < 0 else f"exit code {code}"}\n{printed or "it printed nothing"}'


def output(words, folder):
    code, out, err = run(words, folder)
    if code != 0:
        sys.exit(failure(words, code, out, err))
    return out


def last_json(words, folder):
    return json.loads(output(words, folder).splitlines()[-1])


def named(settings, name_of, texts):
    """Those that have one of the texts in their name."""
    found = [setting for setting in settings if any(text in name_of(setting) for text in texts)]
    if not found:
        sys.exit(f'no setting has {"|".join(texts)} in its name; the first is "{name_of(settings[0])}"')
    return found


def program_of(hetrun, path):
    """A program that was built with this hetrun: in the archive both lie in bin, else `path` is its place in the build."""
    name = pathlib.PurePath(path).name
    for program in (hetrun.parent / name, hetrun.parent.parent / path):
        if program.is_file():
            return program
    sys.exit(f'there is no {name} beside {hetrun}: ./dev build makes it')


def step_seconds(hetrun, ranks, recipe, folder, *words):
    """The median step of a run, without its first two, and its results."""
    metrics = folder / 'metrics.jsonl'
    result = last_json([hetrun, '--workers', ranks, recipe, *words, '--threads=1', '--quiet', '--json',
                        f'--metrics={metrics}'], folder)
    times = [line['seconds'] for line in map(json.loads, metrics.read_text().splitlines()) if 'loss' in line]
    return statistics.median(b - a for a, b in zip(times[2:], times[3:])), result
