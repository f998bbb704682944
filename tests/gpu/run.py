#!/usr/bin/env python3
"""Training on a GPU against training on the processor: run.py HETRUN [unittest arguments]."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
EMULATED = 'emulated' in pathlib.Path(HETRUN).name
SKIPPED = 77   # to Meson
GPUS = 1       # of this machine; the emulation has one
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 60
STEPS = 6 if EMULATED else 20
# Odd numbers of heads, features and tokens: nothing divides by the width of a vector.
MODELS = {
    'gpt': 'nn.gpt { vocab = corpus.vocab, context = 12, width = 24, layers = 2, heads = 3, dropout = 0.1 }',
    'llama': 'nn.llama { vocab = corpus.vocab, context = 13, width = 32, layers = 2, heads = 4, kv_heads = 2 }',
}
RECIPE = """
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local corpus = data.text {{ path = "text.txt", tokenizer = "char", holdout = 0.1 }}
return het.train {{
  model = {model}, data = corpus, batch = 4, microbatch = 2, steps = {steps}, precision = "{precision}",
  optimizer = optim.adamw {{ lr = 3e-3, weight_decay = 0.1, clip = 1.0, rounding = "{rounding}" }},
  evaluate = {{ every = {steps}, batches = 2 }}, save = "{save}", save_every = {every}, resume = {resume},
  sample = {{ prompt = "the ", tokens = 8 }},
}}
"""


class Training(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'text.txt').write_text(TEXT)
        # The peak that a first run measures is no matter of emulation.
        cache = self.folder / 'cache' / 'hetrun'
        cache.mkdir(parents=True)
        entry = {'flops': 1e30, 'measured': 3, 'at': 0}
        (cache / 'peak.json').write_text(json.dumps({f'emulated GPU, {dtype}': entry for dtype in ('f32', 'bf16')}))
        self.environment = {**os.environ, 'XDG_CACHE_HOME': str(cache.parent)}

    def hetrun(self, *words, code=0):
        done = subprocess.run([HETRUN, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              timeout=500, check=False)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done

    def losses(self, *words):
        """Losses of all steps of a run, and the run."""
        metrics = self.folder / 'metrics.jsonl'
        done = self.hetrun(*words, f'--metrics={metrics}')
        return [entry['loss'] for entry in map(json.loads, metrics.read_text().splitlines()) if 'loss' in entry], done

    def assert_follows(self, gpu, cpu, most):
        """Each loss is the processor's to `most` relative."""
        self.assertEqual(len(gpu), STEPS)
        for there, here in zip(gpu, cpu):
            self.assertLessEqual(abs(there - here), most * here, f'{gpu}\n{cpu}')

    def train(self, name, precision, device, save='model', rounding='nearest', every=0, steps=STEPS, resume=False):
        """Losses of all steps, and the run's result."""
        (self.folder / 'recipe.lua').write_text(
            RECIPE.format(model=MODELS[name], precision=precision, steps=steps, save=f'runs/{save}-{device}',
                          rounding=rounding, every=every, resume=str(resume).lower()))
        losses, done = self.losses('recipe.lua', f'--device={device}', '--json', '--quiet')
        return losses, json.loads(done.stdout.splitlines()[-1])

    def compare(self, name, precision, most, rounding='nearest'):
        cpu, gpu = (self.train(name, precision, device, rounding=rounding) for device in ('cpu', 'cuda'))
        self.assertLess(cpu[0][-1], cpu[0][0])
        self.assert_follows(gpu[0], cpu[0], most)
        self.assertLessEqual(abs(gpu[1]['validation_loss'] - cpu[1]['validation_loss']),
                             most * cpu[1]['validation_loss'])
        self.assertEqual(len(gpu[1]['sample']), len('the ') + 8)

    def test_saves_beside_the_steps_change_nothing_and_are_gone_on_with(self):
        """A save is copied to the host while the next step computes."""
        plain, saved = (self.train('gpt', 'bf16', 'cuda', save, every=every)[0] for save, every in (('plain', 0), ('beside', 1)))
        self.assertEqual(plain, saved)
        one, other = ((self.folder / 'runs' / f'{save}-cuda' / 'training.snapshot').read_bytes() for save in ('plain', 'beside'))
        self.assertEqual(one, other)
        longer, _ = self.train('gpt', 'bf16', 'cuda', 'beside', every=1, steps=STEPS + 2, resume=True)
        through, _ = self.train('gpt', 'bf16', 'cuda', 'through', steps=STEPS + 2)
        self.assertEqual(longer[-2:], through[-2:])

    def test_the_recipe_that_everybody_begins_with(self):
        words = (ROOT / 'recipes' / 'gpt_text.lua', '--text=text.txt', f'--steps={STEPS}', '--batch=2', '--context=16', '--layers=2',
                 '--width=32', '--every=0', '--write=1', '--quiet')
        cpu, gpu, again = (self.losses(*words, f'--device={device}')[0] for device in ('cpu', 'cuda', 'cuda'))
        self.assertEqual(gpu, again)
        self.assert_follows(gpu, cpu, 1e-4)

    def test_gpt_in_f32(self):
        self.compare('gpt', 'f32', 1e-4)

    def test_llama_in_f32(self):
        self.compare('llama', 'f32', 1e-4)

    def test_gpt_in_bf16(self):
        self.compare('gpt', 'bf16', 1e-2)

    def test_llama_in_bf16(self):
        self.compare('llama', 'bf16', 1e-2)

    def test_packed_rows(self):
        """Examples that share rows: `data.jsonl { packing = true }`."""
        (self.folder / 'lines.jsonl').write_text(''.join(json.dumps({'text': TEXT[i:i + 2 + i % 11]}) + '\n' for i in range(60)))
        for name, precision, most in (('gpt', 'f32', 1e-4), ('llama', 'bf16', 1e-2)):
            text = RECIPE.format(model=MODELS[name], precision=precision, steps=STEPS, save=f'runs/packed-{name}', rounding='nearest',
                                 every=0, resume='false')
            packed = text.replace('data.text { path = "text.txt", tokenizer = "char",',
                                  'data.jsonl { path = "lines.jsonl", tokenizer = "char", packing = true,')
            self.assertNotEqual(text, packed)
            (self.folder / 'recipe.lua').write_text(packed)
            words = ('recipe.lua', '--overwrite')
            (cpu, done), (gpu, _) = (self.losses(*words, f'--device={device}') for device in ('cpu', 'cuda'))
            self.assertRegex(done.stderr, r'\d+ examples share \d+ rows of 1[23] tokens')
            self.assert_follows(gpu, cpu, most)

    def test_samples_with_padding(self):
        """op.masked_attention, with heads of 4 elements that become 8, and in bf16 of 128 that become 136."""
        text = (ROOT / 'tests' / 'recipes' / 'padding.lua').read_text()
        wide = text.replace('width = 16, layers = 2, heads = 4', 'width = 256, layers = 1, heads = 2').replace('lr = 1e-2', 'lr = 1e-3')
        self.assertNotEqual(text, wide)
        for recipe, precision, most in ((text, 'f32', 1e-4), (text, 'bf16', 1e-2), (wide, 'bf16', 1e-2)):
            (self.folder / 'recipe.lua').write_text(recipe)
            words = ('recipe.lua', f'--steps={STEPS}', f'--precision={precision}')
            cpu, gpu = (self.losses(*words, f'--device={device}')[0] for device in ('cpu', 'cuda'))
            self.assert_follows(gpu, cpu, most)

    def test_gpt_in_bf16_with_weights_rounded_stochastically(self):
        self.compare('gpt', 'bf16', 1e-2, rounding='stochastic')

    def test_two_runs_give_the_same_weights(self):
        first, second = (self.train('gpt', 'bf16', 'cuda', save)[0] for save in ('one', 'two'))
        self.assertEqual(first, second)
        weights = [(self.folder / 'runs' / f'{save}-cuda' / 'model.safetensors').read_bytes() for save in ('one', 'two')]
        self.assertEqual(*weights)

    def test_one_gpu_and_two_processors_train_as_one_device(self):
        alone = self.train('gpt', 'f32', 'cpu')[0]
        recipe = (self.folder / 'recipe.lua').read_text()
        plan = """plan = het.plan { microbatch = 1,
    het.pipeline { microbatches = 3, het.stage { "here:0", layers = 3 }, het.stage { "here:1" } },
    het.pipeline { microbatches = 1, het.stage { "here:2" } } },"""
        (self.folder / 'recipe.lua').write_text(recipe.replace('microbatch = 2,', plan))
        mixed, done = self.losses('--workers=3', 'recipe.lua', '--device=cuda,cpu,cpu', '--json', '--overwrite')
        self.assertIn('through the memory of hosts', done.stderr)
        self.assert_follows(mixed, alone, 1e-4)

    def test_a_profile_has_every_kind_of_layer(self):
        (self.folder / 'recipe.lua').write_text(
            RECIPE.format(model=MODELS['gpt'], precision='bf16', steps=1, save='runs/model', rounding='nearest', every=0, resume='false'))
        self.hetrun('profile', 'recipe.lua', '--device=cuda', '--microbatches=1', '--tensor=1', '--runs=2', '--out=gpu.json')
        points = json.loads((self.folder / 'gpu.json').read_text())['points']
        self.assertEqual({point['kind'] for point in points}, {'embedding', 'blocks', 'head'})
        for point in points:
            self.assertGreater(point['forward'], 0, point)
            self.assertGreater(point['update'], 0, point)

    @unittest.skipIf(EMULATED, 'the peak of a product is no matter of emulation')
    def test_bench_shows_how_long_no_kernel_runs(self):
        result = json.loads(self.hetrun('bench', 'gpt-nano', '--steps=20', '--device=cuda', '--json', '--quiet').stdout)
        self.assertGreater(result['launch_gap'], 0)
        self.assertLess(result['launch_gap'], 1)

    @unittest.skipUnless(EMULATED, 'the report of a machine that is known')
    def test_doctor_shows_gpus_clocks_links_and_what_is_missing(self):
        lines = [line.rstrip() for line in self.hetrun('doctor', '--quiet').stdout.splitlines()]
        self.assertEqual(lines[lines.index('CUDA         driver for CUDA 13.0, runtime 13.0'):], [
            'CUDA         driver for CUDA 13.0, runtime 13.0',
            'cuda:0       emulated GPU, 140 GiB, 132 multiprocessors, compute capability 9.0, at 0000:01:00.0',
            '             clock 1980 MHz, now 1200; memory\'s 3200 MHz',
            'cuda:1       old GPU, 14.9 GiB, 40 multiprocessors, compute capability 7.5, at 0000:02:00.0; too old for the kernels '
            'here, which need 8.0',
            '             clock unknown; memory\'s unknown',
            'cuBLASLt     libcublasLt.so.13 was not found',
            'NCCL         2.28.3, /opt/libnccl.so.2',
            '             between machines by the interface that --interface names; without it, by one that NCCL chooses',
            'cuda:0-1     18 NVLinks'])

    def test_more_ranks_than_gpus_are_refused(self):
        (self.folder / 'recipe.lua').write_text(
            RECIPE.format(model=MODELS['gpt'], precision='f32', steps=1, save='runs/model', rounding='nearest', every=0, resume='false'))
        words = f'there are {GPUS}' if GPUS > 1 else 'there is 1'
        self.assertIn(f'rank {GPUS} of this machine has no GPU: {words}; start at most {GPUS} here',
                      self.hetrun(f'--workers={GPUS + 1}', 'recipe.lua', '--device=cuda', code=2).stderr)

    def test_a_gpu_that_is_not_there_is_named(self):
        (self.folder / 'recipe.lua').write_text(
            RECIPE.format(model=MODELS['gpt'], precision='f32', steps=1, save='runs/model', rounding='nearest', every=0, resume='false'))
        self.assertIn('GPU 99', self.hetrun('recipe.lua', '--device=cuda:99', code=71).stderr)


def main():
    global GPUS
    if not EMULATED:
        report = subprocess.run([HETRUN, 'doctor'], capture_output=True, text=True, timeout=300, check=True).stdout
        GPUS = len(re.findall(r'^cuda:\d+ ', report, re.MULTILINE))
        if GPUS == 0:
            for name in unittest.TestLoader().getTestCaseNames(Training):
                print(f'{name}: skipped, no GPU')
            return SKIPPED
    unittest.main()
    return 0


if __name__ == '__main__':
    sys.exit(main())
