#!/usr/bin/env python3
"""Samples of unequal length: no token attends to padding, under any plan. padding.py HETRUN [unittest arguments]"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
CHECKS = '''local het = require "het"
local nn, op = het.nn, het.op
local function part(x) return op.slice(op.slice(x, { dim = 0, start = 0, length = 1 }), { dim = 1, start = 0, length = 3 }) end
local function worst(a, b) return op.max(op.reshape(op.abs(a - b), { shape = { -1 } })):item() end
local mask = het.tensor({ { 1, 1, 1, 0, 0 }, { 1, 1, 1, 1, 1 } }, "i32")
for _, size in ipairs { 1, 6, 8, 64 } do
  local q, k, v = het.randn({ 2, 5, 4, size }, "f32", 1), het.randn({ 2, 5, 2, size }, "f32", 2), het.randn({ 2, 5, 2, size }, "f32", 3)
  local y = op.masked_attention(30 * q, 30 * k, v, mask)
  assert(worst(part(y), op.attention(30 * part(q), 30 * part(k), part(v), { causal = false })) < 1e-5)
  assert(worst(op.masked_attention(q, k, v, op.not_equal(op.cast(mask, { dtype = "f32" }), 7)), op.attention(q, k, v, { causal = false })) < 1e-5)
  local unseen = op.masked_attention(q, k, v, het.zeros({ 2, 5 }, "i32"))   -- all keys are masked: it sees all
  assert(worst(unseen, op.attention(q, k, v, { causal = false })) < 4e-3)
end
local x = het.randn({ 2, 5, 16 }, "f32", 4)
for _, layer in ipairs { nn.attention { width = 16, heads = 2, causal = false }, nn.attention { width = 16, heads = 4, kv_heads = 2, rotary = true },
  nn.bert_block { width = 16, heads = 2 }, nn.gpt_block { width = 16, heads = 2 }, nn.llama_block { width = 16, heads = 2 } } do
  assert(worst(part(layer(x, mask)), layer(part(x))) < 1e-5, tostring(layer))
end
local changed = x + het.tensor({ { { 0 }, { 0 }, { 0 }, { 9 }, { 9 } }, { { 0 }, { 0 }, { 0 }, { 0 }, { 0 } } })
local block = nn.bert_block { width = 16, heads = 2 }
assert(worst(part(block(x, mask)), part(block(changed, mask))) == 0)
local function fails(words, f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok and tostring(problem):find(words, 1, true), tostring(problem))
end
fails("the mask is [5]; a number for each key is needed, [2, 5]", block, x, het.zeros({ 5 }))
fails("nn.linear takes one value; it was given 2", nn.linear(16, 2), x, mask)
fails("takes one value and a mask; it was given 3", block, x, mask, mask)
fails("score_cap does not work with a mask", nn.attention { width = 16, heads = 2, score_cap = 30 }, x, mask)
print "alike"
'''


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name in ('padding.lua', 'inputs.lua'):
            (self.folder / name).write_text((HERE / name).read_text())

    def run_recipe(self, *words, workers=0, recipe='padding.lua'):
        """The losses of the steps and of the evaluations; `self.output` is what the recipe printed."""
        metrics = self.folder / 'metrics.jsonl'
        metrics.unlink(missing_ok=True)
        done = subprocess.run([HETRUN, *([f'--workers={workers}'] if workers else []), recipe, *words, '--quiet',
                               f'--metrics={metrics}'], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, f'{words}\n{done.stdout}\n{done.stderr}')
        self.output = done.stdout
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [line.get('loss', line.get('validation_loss')) for line in lines if 'loss' in line or 'validation_loss' in line]

    def assert_alike(self, found, wanted, delta, message=None):
        self.assertEqual(len(found), len(wanted))
        for a, b in zip(found, wanted):
            self.assertAlmostEqual(a, b, delta=delta, msg=message)


class Padding(Case):
    def test_a_masked_key_is_as_one_that_is_not_there(self):
        (self.folder / 'checks.lua').write_text(CHECKS)
        done = subprocess.run([HETRUN, 'checks.lua'], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        self.assertIn('alike\n', done.stdout, done.stderr)

    def test_every_plan_trains_the_same_model(self):
        for own in ('--own=false', '--own'):
            wanted = self.run_recipe(own)
            self.assertEqual(len(wanted), 8)
            for plan, workers in (('data', 2), ('tensor', 2), ('pipeline', 2), *([('three', 3)] if own != '--own' else [])):
                self.assert_alike(self.run_recipe(own, f'--plan={plan}', workers=workers), wanted, 1e-5, (own, plan))
            self.assert_alike(self.run_recipe(own, '--precision=bf16'), wanted, 0.03, own)
        self.assertNotEqual(self.run_recipe('--padded=false'), self.run_recipe())

    def test_a_saved_model_knows_its_padding(self):
        wanted = self.run_recipe('--save=model')
        self.assertEqual(json.loads((self.folder / 'model' / 'config.json').read_text())['hetrun_padding'], 0)
        through = self.run_recipe('--save=other', '--steps=9')
        self.assertEqual(self.run_recipe('--save=model', '--steps=9', '--resume')[-4:], through[-4:])
        # One more step with a rate of next to nothing: the loss of the loaded model is that of the saved one.
        (self.folder / 'padding.lua').write_text((HERE / 'padding.lua').read_text().replace('lr = 1e-2', 'lr = 1e-30'))
        self.assert_alike(self.run_recipe('--load=other', '--steps=1')[-1:], through[-1:], 1e-6)
        self.assertNotIn(through[-1], wanted)


class Inputs(Case):
    """Samples of several inputs by name."""

    def losses(self, *words, workers=0):
        return self.run_recipe(*words, workers=workers, recipe='inputs.lua')

    def test_they_are_as_one_tensor_under_every_plan(self):
        wanted = self.losses('--named=false')
        self.assertEqual(len(wanted), 9)
        called = self.output   # what the trained model gives for the first sample
        self.assertRegex(called, r'^first\s+-?[0-9.]+\n$')
        self.assertEqual(self.losses(), wanted)
        self.assertEqual(self.output, called)
        self.assertEqual(self.losses('--apart'), wanted)
        for plan in ('data', 'tensor', 'pipeline'):
            self.assert_alike(self.losses(f'--plan={plan}', workers=2), wanted, 1e-5, plan)

    def test_a_run_goes_on_with_them(self):
        through = self.losses('--save=whole', '--steps=9')
        self.losses('--save=part')
        self.assertEqual(self.losses('--save=part', '--steps=9', '--resume')[-4:], through[-4:])
        self.assertFalse(self.notes('--save=part', '--steps=10'))
        text = (self.folder / 'inputs.lua').read_text()
        (self.folder / 'inputs.lua').write_text(text.replace('math.cos(i)', 'math.cos(i + 1)'))
        self.assertIn('was trained on other data (30 samples then, 30 now)', self.notes('--save=part', '--steps=11'))

    def notes(self, *words):
        done = subprocess.run([HETRUN, 'inputs.lua', *words, '--resume'], cwd=self.folder, capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return '\n'.join(line for line in done.stderr.splitlines() if line.startswith('note:'))

    def test_batches_have_them_by_name(self):
        (self.folder / 'batches.lua').write_text('''local het = require "het"
local pairs_of = het.data.pairs { inputs = { a = het.arange(8), b = het.ones(8, 3) }, labels = het.arange(8), holdout = 0 }
local batch = pairs_of:sampler { batch = 4, microbatch = 2 }:next()
for i = 1, 2 do
  assert(batch.inputs[i].a[1] == batch.labels[i][1] and batch.inputs[i].b.shape[2] == 3)
end
print "by name"''')
        done = subprocess.run([HETRUN, 'batches.lua'], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        self.assertIn('by name', done.stdout, done.stderr)


if __name__ == '__main__':
    unittest.main()
