#!/usr/bin/env python3
"""Parameters that begin with a tensor, or with what a function returns: initial.py HETRUN [unittest arguments]."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())


class Initial(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog.\n' * 20)
        self.recipe((HERE / 'initial.lua').read_text())

    def recipe(self, text):
        (self.folder / 'initial.lua').write_text(text)

    def run_recipe(self, *words, code=0, workers=(), **environment):
        done = subprocess.run([HETRUN, *workers, 'initial.lua', *words, '--quiet'], cwd=self.folder, capture_output=True,
                              text=True, timeout=120, check=False, env={**os.environ, **environment})
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stderr

    def test_they_have_these_values(self):
        self.run_recipe()
        self.run_recipe('--save=frozen', '--frozen')
        self.run_recipe('--save=half', '--precision=bf16', '--frozen')
        self.run_recipe('--save=returned', '--returns=f64')

    def test_each_plan_has_the_same(self):
        for plan in ('data', 'tensor', 'pipeline'):
            self.run_recipe(f'--plan={plan}', f'--save={plan}', workers=('--workers=2',))
        self.run_recipe('--save=elastic', '--checked=false', workers=('--workers=3', '--elastic=1:3'),
                        HETRUN_FAULT='rank=1 step=1 at=0.5')

    def test_what_was_saved_counts(self):
        trained = ('--rate=1', '--checked=false')
        self.run_recipe(*trained, '--steps=4', '--save=whole')
        self.run_recipe(*trained, '--steps=2')
        first = (self.folder / 'runs/mine/model.safetensors').read_bytes()
        self.run_recipe(*trained, '--steps=4', '--resume')
        whole, parts = ((self.folder / name / 'model.safetensors').read_bytes() for name in ('whole', 'runs/mine'))
        self.assertEqual(whole, parts)
        self.assertNotEqual(whole, first)

    def test_ranks_that_begin_with_other_values_are_refused(self):
        text = (self.folder / 'initial.lua').read_text()
        self.recipe(text.replace('"f32", 7)', '"f32", tonumber(os.getenv "RANK"))'))
        err = self.run_recipe('--trust', code=2, workers=('--workers=2',))
        self.assertIn('rank 1 begins with other values of parameters than rank 0: a function `init` has to return the same '
                      'on all ranks, as het.randn does with a seed', err)

    def test_what_is_no_tensor_of_the_shape_is_refused(self):
        text = (self.folder / 'initial.lua').read_text()
        for returned, sentence in (('nil', 'returned nothing'), ('het.randn(3)', 'returned a tensor f32[3]'), ('7', 'returned 7')):
            self.recipe(text.replace('return (het.randn(shape, "f32", 7) * opt.factor):to(opt.returns)', f'return {returned}'))
            err = self.run_recipe(code=2)
            self.assertIn(f'the function `init` {sentence}; floating-point numbers in the shape [8] are needed', err)

    def test_constants_stay_and_are_saved(self):
        self.recipe((HERE / 'constants.lua').read_text())
        for plan in ('one', 'data', 'tensor', 'pipeline'):
            self.run_recipe(f'--plan={plan}', f'--save={plan}', workers=() if plan == 'one' else ('--workers=2',))
        self.run_recipe('--save=half', '--precision=bf16')
        self.run_recipe('--save=one', '--resume', '--steps=5')
        self.run_recipe('--save=other', '--factor=2', '--saved=2')
        self.run_recipe('--save=more', '--from=other', '--saved=2')   # the saved one counts
        self.recipe((HERE / 'constants.lua').read_text().replace('nn.constant(mix * opt.factor)', 'nn.constant(het.arange(4, "i32"))'))
        self.assertIn('nn.constant: a tensor i32[4] was given; a tensor of floating-point numbers with a dimension or more is '
                      'needed', self.run_recipe(code=2))

    def test_layers_at_the_prompt_have_them(self):
        lines = ('l = het.nn.layer { name = "l", parameters = { w = { 2, init = het.tensor { 3, 4 } }, '
                 'v = { 2, init = function(shape) return het.randn(shape) * 0 + 5 end } }, '
                 'forward = function(self, x) return x * self.w + self.v end }\nprint(table.concat(l(het.tensor { 1, 10 }):tolist(), " "))\n')
        done = subprocess.run([HETRUN], cwd=self.folder, input=lines, capture_output=True, text=True, timeout=60, check=False)
        self.assertIn('8 45', done.stdout)


if __name__ == '__main__':
    unittest.main()
