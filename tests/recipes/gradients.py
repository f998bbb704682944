#!/usr/bin/env python3
"""Functions with a gradient of their own: gradients.py HETRUN [unittest arguments]."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())

CHECK = '''
close(het.grad(function(a) return op.sum(rounded(a) * w) end)(x), w)
close(rounded(x), op.greater(x, 0.5))
'''


class Gradients(unittest.TestCase):
    def guide(self):
        """The block of the guide that has a gradient of its own."""
        page = (HERE.parent.parent / 'recipes' / 'guide' / 'write_a_layer.md').read_text()
        found = [block for block in re.findall(r'```lua\n(.*?)```', page, re.DOTALL) if 'custom_gradient' in block]
        self.assertEqual(len(found), 1)
        return found[0]

    def losses(self, *words, workers=()):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            (folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 20)
            text = (HERE / 'gradients.lua').read_text()
            self.assertEqual(text.count("-- The guide's.\n"), 1)
            (folder / 'gradients.lua').write_text(text.replace("-- The guide's.\n", self.guide() + CHECK))
            done = subprocess.run([HETRUN, *workers, 'gradients.lua', *words, '--quiet', '--metrics=metrics.jsonl'],
                                  cwd=folder, capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, f'{words}\n{done.stdout}\n{done.stderr}')
            lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
            return [line['loss'] for line in lines if 'loss' in line]

    def test_models_train_alike_under_any_plan(self):
        wanted = self.losses('--own=false')
        self.assertEqual(len(wanted), 5)
        self.assertLess(wanted[-1], wanted[0])
        for plan in ('one', 'data', 'tensor', 'pipeline'):
            workers = () if plan == 'one' else ('--workers=2',)
            for a, b in zip(wanted, self.losses(f'--plan={plan}', workers=workers), strict=True):
                self.assertAlmostEqual(a, b, delta=1e-5 * a, msg=plan)


if __name__ == '__main__':
    unittest.main()
