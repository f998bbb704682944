"""What the tests of planning share: a folder with a recipe and a cluster, and how hetrun is called."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 60
CLUSTER = '''local het = require "het"
return het.cluster { bandwidth = "10 Gbit/s", latency = "50 us",
  het.node { name = "a", type = "A100-80", devices = 2, price = 8 },
  het.node { name = "t", type = "T4", devices = 2, price = 1 } }
'''
MEASURED = next((path for path in (pathlib.Path(os.environ.get('HETRUN_MEASURED', '/nowhere')),
                                   *(above / 'shared/data/measured' for above in (ROOT, *ROOT.parents)))
                 if (path / 'plans').is_dir()), None)
BROWSER = next((path for name in ('chromium', 'chromium-browser', 'google-chrome') if (path := shutil.which(name))), None)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'text.txt').write_text(TEXT)
        (self.folder / 'cluster.lua').write_text(CLUSTER)
        self.recipe('nil')

    def recipe(self, plan):
        (self.folder / 'small.lua').write_text((HERE / 'small.lua').read_text().replace('nil --[[PLAN]]', plan))

    def hetrun(self, *words, code=0):
        done = subprocess.run([HETRUN, *map(str, words)], cwd=self.folder, text=True, capture_output=True, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stdout, done.stderr

    def refused(self, *words):
        return self.hetrun(*words, code=2)[1]

    def json_of(self, *words):
        return json.loads(self.hetrun(*words, '--json', '--quiet')[0].splitlines()[-1])

    def losses(self, *words):
        metrics = self.folder / 'metrics.jsonl'
        self.hetrun(*words, '--quiet', f'--metrics={metrics}')
        return [line['loss'] for line in map(json.loads, metrics.read_text().splitlines()) if 'loss' in line]
