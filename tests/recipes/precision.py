#!/usr/bin/env python3
"""The precision that models are saved in: that of the folder they come from, or the one that the recipe names; a run that goes on has f32.

usage: precision.py HETRUN [unittest arguments]
"""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
CALLED = {'F32': 'float32', 'BF16': 'bfloat16', 'F16': 'float16'}


class Precision(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        draw = random.Random(5)
        (self.folder / 'text.txt').write_text(''.join(draw.choice('ab cd. ') for _ in range(3000)))
        (self.folder / 'precision.lua').write_text((HERE / 'precision.lua').read_text())

    def hetrun(self, *words, code=0):
        done = subprocess.run([HETRUN, *words], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done.stdout + done.stderr

    def train(self, *words, workers=()):
        """What it prints, and the loss of each step."""
        said = self.hetrun(*workers, '--trust', 'precision.lua', *words, '--metrics=metrics.jsonl')
        lines = [json.loads(line) for line in (self.folder / 'metrics.jsonl').read_text().splitlines()]
        return said, [line['loss'] for line in lines if 'gradient_norm' in line]

    def stored(self, folder, file='model.safetensors'):
        """The dtypes in a file of weights, its values by name, and what config.json says."""
        data = (self.folder / folder / file).read_bytes()
        size = struct.unpack('<Q', data[:8])[0]
        about = {name: each for name, each in json.loads(data[8:8 + size]).items() if name != '__metadata__'}
        values = {}
        for name, each in about.items():
            raw = data[8 + size:][slice(*each['data_offsets'])]
            if each['dtype'] == 'BF16':   # the upper halves of f32
                raw = b''.join(b'\0\0' + raw[i:i + 2] for i in range(0, len(raw), 2))
            form = 'e' if each['dtype'] == 'F16' else 'f'
            values[name] = struct.unpack(f'<{len(raw) // struct.calcsize(form)}{form}', raw)
        config = self.folder / folder / 'config.json'
        return {each['dtype'] for each in about.values()}, values, json.loads(config.read_text()).get('torch_dtype')

    def assert_saved(self, folder, dtype):
        dtypes, values, said = self.stored(folder)
        self.assertEqual((dtypes, said), ({dtype}, CALLED[dtype]), folder)
        return values

    def base(self, dtype='bf16'):
        self.train('--save=wide')
        self.hetrun('convert', 'wide', dtype, f'--precision={dtype}')
        return dtype

    def test_a_model_is_saved_as_it_was_found(self):
        said, _ = self.train('--save=new')
        self.assertIn('saved after step 4 in new\n', said)
        self.assert_saved('new', 'F32')
        for dtype in ('bf16', 'f16'):
            with self.subTest(dtype=dtype):
                self.hetrun('convert', 'new', dtype, f'--precision={dtype}')
                said, _ = self.train(f'--load={dtype}', f'--save={dtype}-on', f'--best={dtype}-best')
                self.assertIn(f'saved after step 4 in {dtype}-on, the model in {dtype}\n', said)
                self.assert_saved(f'{dtype}-on', dtype.upper())
                self.assert_saved(f'{dtype}-best', dtype.upper())
                self.train(f'--from={dtype}', f'--save={dtype}-from')
                self.assert_saved(f'{dtype}-from', dtype.upper())
                self.train(f'--load={dtype}', f'--save={dtype}-as-said', '--precision=f32')
                whole = self.assert_saved(f'{dtype}-as-said', 'F32')
                # Nearest: at most half a unit of the last place, and not all alike.
                rounded, apart = self.stored(f'{dtype}-on')[1], 0
                for name, values in whole.items():
                    for a, b in zip(values, rounded[name], strict=True):
                        self.assertLessEqual(abs(a - b), abs(a) * 2 ** (-8 if dtype == 'bf16' else -11) + 1e-7, name)
                        apart += a != b
                self.assertGreater(apart, 100)
        self.train('--save=narrow', '--precision=bf16')
        self.assert_saved('narrow', 'BF16')
        self.assertIn('perplexity', self.hetrun('eval', 'bf16-on', '--text=text.txt'))
        self.hetrun('generate', 'bf16-on', '--prompt=ab', '--tokens=3')

    def test_a_run_goes_on_exactly_whatever_its_model_is_saved_in(self):
        self.base()
        for words in ((), ('--ema', '--best=best')):
            with self.subTest(words=words):
                whole = self.train('--load=bf16', '--steps=8', *words, *(('--best=best-whole',) if words else ()))[1]
                self.train('--load=bf16', '--steps=4', f'--save=run{len(words)}', *words)
                self.assert_saved(f'run{len(words)}', 'BF16')
                for plan in ('one', 'tensor'):
                    save = f'run{len(words)}-{plan}'
                    subprocess.run(['cp', '-r', f'run{len(words)}', save], cwd=self.folder, check=True)
                    rest = self.train('--load=bf16', '--steps=8', f'--save={save}', '--resume', f'--plan={plan}',
                                      *(('--ema', f'--best=best-{plan}') if words else ()),
                                      workers=('--workers=2',) if plan == 'tensor' else ())[1][-4:]
                    for a, b in zip(whole[4:], rest, strict=True):
                        self.assertAlmostEqual(a, b, delta=0 if plan == 'one' else 1e-5)

    def test_a_run_that_went_on_from_the_saved_weights_would_show(self):
        """The comparison above can fail: weights that were rounded have other losses."""
        self.base()
        whole = self.train('--load=bf16', '--steps=8')[1]
        self.train('--load=bf16', '--steps=4', '--save=run')
        self.assertNotEqual(whole[4], self.train('--load=run', '--steps=1')[1][0])

    def test_snapshots_of_a_saved_run_have_its_f32(self):
        self.base()
        self.train('--load=bf16', '--save=on')
        self.train('--load=bf16', '--save=exact', '--precision=f32')
        for place in ('on', 'exact'):
            self.hetrun('snapshot', 'export', place, f'{place}-out')
        self.assertEqual(self.assert_saved('on-out', 'F32'), self.assert_saved('exact-out', 'F32'))

    def test_adapters_are_f32_and_merge_into_the_precision_of_their_base(self):
        self.base()
        self.train('--load=bf16', '--rank=2', '--save=adapters', '--merge=merged')
        self.assertEqual(self.stored_adapters('adapters'), {'F32'})
        self.assert_saved('merged', 'BF16')
        self.assertIn('with its adapters merged, in bf16', self.hetrun('merge', 'adapters', 'again'))
        self.assertEqual(self.assert_saved('merged', 'BF16'), self.assert_saved('again', 'BF16'))
        self.hetrun('merge', 'adapters', 'whole', '--precision=f32')
        self.assert_saved('whole', 'F32')
        whole = self.train('--load=bf16', '--rank=2', '--steps=8')[1]
        self.train('--load=bf16', '--rank=2', '--save=narrow', '--precision=bf16')
        self.assertEqual(self.stored_adapters('narrow'), {'BF16'})
        self.assertEqual(self.train('--load=bf16', '--rank=2', '--save=narrow', '--steps=8', '--resume', '--precision=bf16')[1], whole)
        self.train('--load=narrow', '--save=more')
        self.assertEqual(self.stored_adapters('more'), {'BF16'})

    def stored_adapters(self, folder):
        data = (self.folder / folder / 'adapter_model.safetensors').read_bytes()
        about = json.loads(data[8:8 + struct.unpack('<Q', data[:8])[0]])
        return {each['dtype'] for name, each in about.items() if name != '__metadata__'}

    def test_what_f16_does_not_hold_is_saved_in_f32(self):
        self.train('--save=wide')
        path = self.folder / 'wide/model.safetensors'
        data = bytearray(path.read_bytes())
        size = struct.unpack('<Q', data[:8])[0]
        first = 8 + size + json.loads(data[8:8 + size])['model.norm.weight']['data_offsets'][0]
        data[first:first + 4] = struct.pack('<f', 1e6)
        path.write_bytes(data)
        said, _ = self.train('--load=wide', '--save=on', '--precision=f16')
        self.assertIn("'model.norm.weight' has the value 1e+06, and f16 holds 65504 at most: the model is saved in f32", said)
        self.assertRegex(said, r'saved after step \d+ in on\n')
        self.assert_saved('on', 'F32')

    def test_adapters_of_layers_of_a_recipe_are_merged_by_the_recipe(self):
        (self.folder / 'own.lua').write_text('''local het = require "het"
local nn, x = het.nn, het.randn({ 64, 8 }, "f32", 1)
return het.train { model = nn.lora { model = nn.sequential { nn.linear(8, 8) }, rank = 2, targets = { "linear" } }, save = "own",
  data = het.data.pairs { inputs = x, labels = x }, batch = 8, steps = 2, optimizer = het.optim.adamw { lr = 0.1 },
  after = function(run) run:save("merged", { merge = true }) end }''')
        self.hetrun('own.lua', '--allow-write=own', '--allow-write=merged')
        self.assertIn('own holds adapters of a model that only a recipe describes: run:save("whole", { merge = true }) in that recipe',
                      self.hetrun('merge', 'own', 'whole', code=2))

    def test_a_precision_that_there_is_not_is_refused(self):
        self.assertIn("save_precision = 'f8'", self.hetrun('precision.lua', '--save=runs/x', '--precision=f8', code=2).replace('"', "'"))
        self.base()
        self.train('--load=bf16', '--rank=2', '--save=adapters')
        self.assertIn('--precision=f8 is not f32, bf16 or f16', self.hetrun('merge', 'adapters', 'merged', '--precision=f8', code=2))


if __name__ == '__main__':
    unittest.main()
