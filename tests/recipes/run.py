#!/usr/bin/env python3
"""Run every recipe for a few steps through hetrun, and what a run promises: results on the last line, the same
losses twice, going on after a stop, files that survive a full disk.

usage: run.py HETRUN [unittest arguments]
"""
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
TEXT = 'the quick brown fox jumps over the lazy dog.\n' * 60

RESULT_KEYS = {'steps', 'train_loss', 'validation_loss', 'best_validation_loss', 'seconds', 'tokens_per_s', 'mfu',
               'peak_memory_bytes'}
SMALL = ['--width=16', '--layers=2', '--heads=2', '--context=16', '--batch=4']


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / 'text.txt').write_text(TEXT)
        for name in ('resume.lua', 'write.lua', 'long.lua', 'cached.lua', 'progress.lua', 'pairs.lua', 'tokens.lua', 'images.lua',
                     'several.lua'):
            (self.folder / name).write_text((HERE / name).read_text())

    def hetrun(self, *words, code=0, **options):
        done = subprocess.run([HETRUN, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300,
                              check=False, **options)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done

    def again(self, words):
        """A run that goes on, or replaces what the last one saved."""
        return words if '--resume' in words else (*words, '--overwrite')

    def result(self, *words):
        return json.loads(self.hetrun(*self.again(words), '--json', '--quiet').stdout.splitlines()[-1])

    def losses(self, *words):
        metrics = self.folder / 'metrics.jsonl'
        self.hetrun(*self.again(words), '--quiet', f'--metrics={metrics}')
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [line['loss'] for line in lines if 'loss' in line]


class Recipes(Case):
    def check(self, name, *words):
        recipe = ROOT / 'recipes' / f'{name}.lua'
        result = self.result(recipe, *words)
        self.assertLessEqual(RESULT_KEYS, result.keys())
        for key in RESULT_KEYS:
            self.assertTrue(math.isfinite(result[key]), key)
        options = self.hetrun(recipe, '--help').stdout
        self.assertIn('--steps', options)
        return result

    def test_the_rate_that_is_shown_is_a_mean_without_the_first_step(self):
        self.assertEqual(self.hetrun('progress.lua', '--trust').stdout, 'right\n')

    def test_mlp(self):
        result = self.check('mlp', '--steps=200')
        self.assertEqual(result['steps'], 200)
        self.assertLess(result['validation_loss'], 0.05)

    def test_gpt_text(self):
        result = self.check('gpt_text', '--text=text.txt', '--steps=150', '--every=50', '--write=10', *SMALL)
        self.assertLess(result['validation_loss'], 2.6)   # a character of 28 at random: 3.3

    def test_a_text_of_one_line_is_written_without_a_prompt(self):
        (self.folder / 'line.txt').write_text('bca' * 400)
        out = self.hetrun(ROOT / 'recipes' / 'gpt_text.lua', '--text=line.txt', '--steps=2', '--every=0', '--write=20',
                          *SMALL).stdout
        self.assertRegex(out, '^a[abc]{20}\n$')

    def test_rows_of_numbers_are_counted_as_samples(self):
        done = self.hetrun(ROOT / 'recipes' / 'mlp.lua', '--steps=20', '--json')
        self.assertIn('20 steps of 50 samples', done.stderr)
        self.assertIn('samples/s', done.stderr)
        self.assertNotIn('tokens', done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(result['samples_per_s'], result['tokens_per_s'])
        done = self.hetrun(ROOT / 'recipes' / 'bert_base.lua', '--text=text.txt', '--steps=2', '--json', *SMALL)
        self.assertIn('tokens/s', done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        self.assertAlmostEqual(result['tokens_per_s'] / result['samples_per_s'], 16, places=6)

    def test_the_reference_device_gives_the_same_numbers(self):
        words = ['gpt_text', '--text=text.txt', '--steps=2', '--every=2', '--write=1', '--device=reference', *SMALL]
        self.assertGreater(self.check(*words)['mfu'], 0)

    def test_gpt_text_in_bf16(self):
        self.check('gpt_text', '--text=text.txt', '--steps=5', '--every=5', '--write=10', '--precision=bf16', *SMALL)

    def test_spot(self):
        words = [ROOT / 'recipes' / 'spot.lua', '--text=text.txt', '--steps=40', '--width=16', '--layers=1', '--heads=2',
                 '--context=16']
        alone = self.hetrun(*words).stdout
        self.assertIn('greatest difference of losses: 0,', alone)
        done = self.hetrun(*words, '--workers=3', '--elastic=1:3', '--chaos=2', '--json')
        plot, result = done.stdout.split('greatest difference of losses: '), json.loads(done.stdout.splitlines()[-1])
        self.assertRegex(plot[0], r'o loss of this run   - undisturbed   \* together')
        self.assertLess(float(plot[1].split(',')[0]), 1e-4)
        self.assertRegex(plot[1], r'(?m)^ranks: \d went, \d came; steps: \d repeated; 0 samples lost, 0 repeated$')
        self.assertGreater(result['ranks_gone'], 0, done.stderr)
        self.assertEqual((result['samples'], result['samples_lost'], result['samples_repeated']), (40 * 12, 0, 0))
        self.assertIn('chaos: seed 2; of 3 processes 1 or more always stay', done.stderr)

    def test_llama(self):
        self.check('llama_tiny', '--text=text.txt', '--steps=250', '--kv_heads=1', '--microbatch=2', *SMALL)

    def test_bert(self):
        result = self.check('bert_base', '--text=text.txt', '--steps=250', *SMALL)
        self.assertLess(result['validation_loss'], 3.2)   # a character of 29 at random: 3.4

    def test_bert_with_experts(self):
        small = ('--text=text.txt', '--experts=2', '--world=2', *SMALL)
        for top in (1, 2):
            result = self.check('bert_moe', *small, '--steps=250', f'--top={top}')
            self.assertLess(result['validation_loss'], 3.2)
        recipe = ROOT / 'recipes' / 'bert_moe.lua'
        alone = self.losses(recipe, *small, '--steps=20')
        for a, b in zip(alone, self.losses('--workers=2', recipe, *small, '--steps=20', '--parallel'), strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5 * a)

    def test_vgg19(self):
        result = self.check('vgg19', '--samples=400', '--classes=2', '--width=2', '--hidden=16', '--depth=11', '--steps=40',
                            '--every=20', '--precision=bf16')
        self.assertEqual(result['steps'], 40)
        self.assertGreater(result['mfu'], 0)

    def test_vit(self):
        result = self.check('vit', '--samples=1000', '--classes=3', '--width=32', '--layers=2', '--heads=2', '--steps=250',
                            '--every=250')
        self.assertLess(result['train_loss'], 0.9)   # guessing among 3 shapes: 1.1
        self.check('vit', '--samples=400', '--width=16', '--layers=1', '--heads=2', '--steps=4', '--pooling=mean',
                   '--norm=after', '--activation=relu', '--dropout=0.1')

    def test_images_of_cifar10(self):
        folder = self.folder / 'cifar'
        folder.mkdir()
        for name, count in (('data_batch_1', 40), ('test_batch', 40)):
            (folder / f'{name}.bin').write_bytes(b''.join(bytes([i % 10]) + bytes([20 * (i % 10)]) * 3072 for i in range(count)))
        result = self.check('vit', '--cifar10=cifar', '--width=16', '--layers=1', '--heads=2', '--steps=20', '--every=20', '--batch=8')
        self.assertEqual(result['steps'], 20)
        (folder / 'test_batch.bin').unlink()
        self.assertIn("test_batch.bin", self.hetrun(ROOT / 'recipes' / 'vit.lua', '--cifar10=cifar', code=2).stderr)

    def test_images_are_the_same_under_each_plan(self):
        for model in ('vgg', 'vit'):
            alone = self.losses('images.lua', f'--model={model}')
            self.assertEqual(len(alone), 6)
            for words in ((), ('--plan=tensor',), ('--plan=stages',)):
                together = self.losses('images.lua', f'--model={model}', '--workers=2', *words)
                self.assertEqual(len(together), 6)
                for one, other in zip(alone, together):
                    self.assertAlmostEqual(one, other, delta=1e-5, msg=f'{model} {words}')

    def test_gpt2_124m(self):
        """From the weights of a small model in its layout, saved, and gone on with."""
        (self.folder / 'small.lua').write_text('''local het = require "het"
return het.train {
  model = het.nn.gpt { vocab = 300, context = 32, width = 16, layers = 2, heads = 2 }, save = "runs/small",
  data = het.data.text { path = "text.txt", tokenizer = "byte" }, batch = 2, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
}''')
        self.hetrun('small.lua', '--quiet')
        words = ('gpt2_124m', '--text=text.txt', '--context=16', '--batch=4', '--microbatch=2', '--lr=1e-3', '--warmup=2')
        self.assertEqual(self.check(*words, '--model=runs/small', '--steps=50', '--save=more')['steps'], 50)
        self.assertEqual(self.check(*words, '--model=runs/small', '--steps=100', '--save=more', '--resume')['steps'], 100)

    def test_the_layer_of_the_guide_learns(self):
        page = (ROOT / 'recipes' / 'guide' / 'write_a_layer.md').read_text()
        (self.folder / 'layer.lua').write_text(re.search(r'```lua\n(.*?)```', page, re.S)[1])
        result = self.result('layer.lua')
        self.assertEqual(result['steps'], 200)
        self.assertLess(result['validation_loss'], 0.5)   # the labels' variance is 2

    def test_own_layers(self):
        words = ('--text=text.txt', '--steps=40')
        result = self.check('own_layers', *words)
        self.assertLess(result['validation_loss'], 2.6)   # a character of 28 at random: 3.3
        recipe = ROOT / 'recipes' / 'own_layers.lua'
        alone = self.losses(recipe, '--text=text.txt', '--steps=4')
        together = self.losses('--workers=2', recipe, '--text=text.txt', '--steps=4', '--tensor=2')
        self.assertEqual(len(together), 4)
        for one, other in zip(alone, together):
            self.assertAlmostEqual(one, other, delta=1e-4)

    def test_the_layers_that_a_model_of_ones_own_begins_are_placed_on_stages(self):
        page = (ROOT / 'recipes' / 'guide' / 'write_a_layer.md').read_text()
        forward = next(block for block in re.findall(r'```lua\n(.*?)```', page, re.S) if 'begin_layer' in block)
        (self.folder / 'stages.lua').write_text(f'''local het = require "het"
local nn = het.nn
local opt = het.options {{ plan = {{ false, "two stages" }} }}
local depth, layers = 2, {{ embedding = nn.embedding(32, 8), head = nn.linear(8, 32) }}
for i = 1, depth do layers["block_" .. i] = nn.residual {{ nn.layer_norm(8), nn.mlp {{ width = 8 }} }} end
return het.train {{
  model = nn.layer {{ layers = layers, {forward} }},
  data = het.data.text {{ path = "text.txt" }}, context = 8, batch = 4, steps = 4,
  optimizer = het.optim.adamw {{ lr = 1e-2 }},
  plan = opt.plan and het.plan {{ microbatch = 2, het.pipeline {{ microbatches = 2, het.stage {{ "here:0", layers = 2 }},
    het.stage {{ "here:1", layers = 2 }} }} }} or nil,
}}
''')
        alone = self.losses('stages.lua')
        together = self.losses('--workers=2', 'stages.lua', '--plan')
        self.assertEqual(len(together), 4)
        for one, other in zip(alone, together):
            self.assertAlmostEqual(one, other, delta=1e-4)

    def test_own_layers_take_and_return_several_values_and_a_model_a_table(self):
        self.assertEqual(self.hetrun('several.lua', '--quiet').stdout, 'true\t2\ttrue\n')

    def test_the_mixture_of_the_guide_is_trained_on_alike_by_any_ranks_and_resumed(self):
        page = (ROOT / 'recipes' / 'guide' / 'data.md').read_text()
        block = re.search(r'```lua\n(.*?)```', page, re.S)[1]
        for name, text in (('web/a.txt', TEXT), ('web/b.txt', TEXT.upper()), ('code/x', 'int main() {}\n' * 200),
                           ('chats.jsonl', '{"prompt": "say a", "completion": "aaaa"}\n' * 30)):
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
        (self.folder / 'mixed.lua').write_text(f'''local het = require "het"
local data = het.data
{block}
local opt = het.options {{ steps = {{ 8, "steps" }}, ranks = {{ 1, "ranks" }} }}
return het.train {{
  model = het.nn.gpt {{ vocab = corpus.vocab, context = 16, width = 16, layers = 1, heads = 2 }}, data = corpus, batch = 8,
  steps = opt.steps, optimizer = het.optim.adamw {{ lr = 1e-2 }}, evaluate = {{ every = 4 }}, save = "runs/mixed",
  plan = opt.ranks == 2 and het.plan {{ microbatch = 1, het.pipeline {{ microbatches = 5, het.stage {{ "a:0" }} }},
    het.pipeline {{ microbatches = 3, het.stage {{ "a:1" }} }} }} or nil,
}}''')
        alone = self.losses('mixed.lua')
        self.assertEqual(len(alone), 8)
        for one, other in zip(alone, self.losses('--workers=2', 'mixed.lua', '--ranks=2')):
            self.assertAlmostEqual(one, other, delta=1e-5)
        self.losses('mixed.lua', '--steps=5')
        self.assertEqual(self.losses('mixed.lua', '--resume'), alone)   # its metrics go on, too

    def test_the_data_to_evaluate_on_of_the_guide_is_evaluated(self):
        page = (ROOT / 'recipes' / 'guide' / 'data.md').read_text()
        block = re.findall(r'```lua\n(.*?)```', page, re.S)[1]
        (self.folder / 'train.txt').write_text(TEXT)
        (self.folder / 'valid.txt').write_text('zebra' * 20)   # which the training data has not
        small = block.replace('steps = 2000', 'steps = 20').replace('every = 250', 'every = 2').replace('width = 128', 'width = 16')
        (self.folder / 'train.lua').write_text('local het = require "het"\nlocal nn, optim, data = het.nn, het.optim, het.data\n' + small)
        result = self.result('train.lua')
        self.assertEqual(result['steps'], 20)
        self.assertGreater(result['validation_loss'], result['train_loss'] + 0.1)

    def test_the_optimizer_of_the_guide_learns(self):
        page = (ROOT / 'recipes' / 'guide' / 'write_an_optimizer.md').read_text()
        rate, groups, recipe = re.findall(r'```lua\n(.*?)```', page, re.S)
        (self.folder / 'optimizer.lua').write_text(recipe)
        self.assertLess(self.result('optimizer.lua')['validation_loss'], 0.5)   # the labels' variance is 2
        self.assertIn('lr = 1e-2', recipe)
        (self.folder / 'optimizer.lua').write_text(recipe.replace('lr = 1e-2', rate))
        self.assertLess(self.result('optimizer.lua')['validation_loss'], 1)
        (self.folder / 'optimizer.lua').write_text(f'''local het = require "het"
local optim, corpus = het.optim, het.data.text {{ path = "text.txt" }}
local optimizer = optim.adamw {{ lr = optim.linear {{ peak = 1e-2, floor = 0 }}, {groups} }}
assert(optimizer:rate(1, 10, "tokens.weight") == 1e-4 and math.abs(optimizer:rate(6, 10, "tokens.weight") - 5e-5) < 1e-12)
assert(optimizer:rate(6, 10) == 5e-3 and optimizer:rate(6, 10, "blocks.1.mlp.up.weight") == 5e-3)
assert(math.abs(optimizer:rate(6, 10, "blocks.1.mlp_norm.weight") - 6e-4 / 11) < 1e-12)
assert(optimizer:decay_of {{ name = "blocks.0.mlp.up.weight", shape = {{ 2, 2 }} }} == 0.01)
return het.train {{ data = corpus, batch = 4, steps = 4, optimizer = optimizer,
  model = het.nn.gpt {{ vocab = corpus.vocab, context = 16, width = 16, layers = 2, heads = 2 }} }}''')
        self.assertEqual(self.result('optimizer.lua')['steps'], 4)

    def test_the_recipe_of_the_guide_fine_tunes_a_model(self):
        page = (ROOT / 'recipes' / 'guide' / 'fine_tune.md').read_text()
        (self.folder / 'fine_tune.lua').write_text(re.search(r'```lua\n(.*?)```', page, re.S)[1])
        (self.folder / 'begin.lua').write_text("""local het = require "het"
local corpus = het.data.text { path = "text.txt", tokenizer = "bpe", model = "words", holdout = 0.1 }
return het.train { model = het.nn.gpt { vocab = corpus.vocab, context = 32, width = 16, layers = 1, heads = 2 },
  data = corpus, batch = 4, steps = 2, optimizer = het.optim.sgd { lr = 0.1 }, save = "runs/begin" }
""")
        words = self.folder / 'words'
        words.mkdir()
        (words / 'vocab.json').write_text(json.dumps(self.vocabulary_of_bytes()))
        (words / 'merges.txt').write_text('#version: 0.2\n')
        self.hetrun('begin.lua', '--allow-read', 'words')
        self.byte_tokenizer(self.folder / 'runs' / 'begin')
        (self.folder / 'mine.txt').write_text(TEXT * 10)
        short = (self.folder / 'fine_tune.lua').read_text().replace('context = 256', 'context = 32')
        (self.folder / 'fine_tune.lua').write_text(short.replace('"Once"', '"quick"'))
        done = self.hetrun('fine_tune.lua', '--model=runs/begin', '--text=mine.txt')
        self.assertIn('saved after step 50 in runs/mine', done.stderr)

    @staticmethod
    def vocabulary_of_bytes():
        letters = [chr(c) for c in range(33, 127)] + [chr(0x100 + c) for c in range(68)] + [chr(c) for c in range(0xa1, 0x100)]
        return {letter: i for i, letter in enumerate(dict.fromkeys(letters))}

    def byte_tokenizer(self, folder, added=(), special=False):
        """A tokenizer of single bytes, and these tokens from 258 on."""
        (folder / 'tokenizer.json').write_text(json.dumps({
            'added_tokens': [{'id': 258 + i, 'content': token, 'special': special} for i, token in enumerate(added)],
            'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': False}, 'decoder': {'type': 'ByteLevel'},
            'model': {'type': 'BPE', 'vocab': self.vocabulary_of_bytes(), 'merges': []}}))

    def begin_qwen(self, context, added=()):
        """The folder of a small Qwen 2 of single bytes and these tokens, to be trained further."""
        (self.folder / 'begin.lua').write_text(f"""local het = require "het"
return het.train {{ model = het.nn.decoder {{ family = "qwen2", vocab = {258 + len(added)}, context = {context}, width = 16, layers = 2,
    heads = 2 }},
  data = het.data.text {{ path = "text.txt", tokenizer = "byte" }}, batch = 4, steps = 1, optimizer = het.optim.sgd {{ lr = 0.1 }},
  save = "runs/begin" }}
""")
        self.hetrun('begin.lua', '--quiet')
        self.byte_tokenizer(self.folder / 'runs' / 'begin', added)
        return self.folder / 'runs' / 'begin'

    def test_finetune_on_chats(self):
        """A model with a tokenizer of single bytes and a chat template, whose assistant always says the same."""
        model = self.begin_qwen(64, ['<|im_start|>', '<|im_end|>'])
        (model / 'chat_template.jinja').write_text(
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
        lines = [{'messages': [{'role': 'user', 'content': f'question {i}' + '?' * (i % 40)}, {'role': 'assistant', 'content': 'yes'}]}
                 for i in range(40)]
        (self.folder / 'chats.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
        words = ('finetune', '--model=runs/begin', '--data=chats.jsonl', '--context=64', '--batch=4', '--microbatch=2', '--lr=1e-2',
                 '--warmup=5', '--precision=f32', '--save=runs/chat')
        self.assertLess(self.check(*words, '--steps=120', '--holdout=0.2', '--every=40')['validation_loss'], 0.2)
        packed = (*words[:-1], '--packing', '--context=64', '--batch=2', '--microbatch=1', '--steps=60', '--holdout=0.2', '--every=30')
        self.assertLess(self.check(*packed)['validation_loss'], 0.2)
        short = self.hetrun(ROOT / 'recipes' / 'finetune.lua', *words[1:3], '--context=8', '--steps=2', code=2)
        self.assertIn('all 38 examples of chats.jsonl are longer than the 8 tokens of the context, and what is left of them has nothing '
                      'to learn; a longer context is needed', short.stderr)
        # Adapters of the model that says so, which learn another answer.
        (self.folder / 'others.jsonl').write_text((self.folder / 'chats.jsonl').read_text().replace('yes', 'sey'))
        adapted = ('finetune', '--model=runs/chat', '--data=others.jsonl', *words[3:-1], '--holdout=0.2', '--rank=8', '--save=runs/lora')
        before, after = (self.check(*adapted, f'--steps={steps}', *more)['validation_loss']
                         for steps, more in ((1, ()), (120, ('--overwrite',))))
        self.assertLess(after, before / 4)
        self.assertTrue((self.folder / 'runs' / 'lora' / 'adapter_model.safetensors').exists())
        done = self.hetrun(ROOT / 'recipes' / 'finetune.lua', *words[1:], '--steps=130', '--holdout=0.2', '--every=40', '--resume')
        self.assertIn('going on after step 120', done.stderr)
        self.assertRegex(done.stderr, r'\d+ of 32 examples of chats.jsonl have more than the 64 tokens of the context')
        # The model sees 64 tokens, fewer than the recipe's default.
        done = self.hetrun(ROOT / 'recipes' / 'finetune.lua', '--model=runs/begin', '--data=chats.jsonl', '--steps=1', '--batch=2')
        self.assertIn('1 step of 2 x 64 tokens', done.stderr)
        done = self.hetrun(ROOT / 'recipes' / 'finetune.lua', '--data=chats.jsonl', code=2)
        self.assertEqual(done.stderr, 'hetrun: --model=FOLDER is missing: the model to begin with\n')
        done = self.hetrun(ROOT / 'recipes' / 'finetune.lua', '--modl=runs/begin', code=2)
        self.assertRegex(done.stderr, r'^hetrun: \S+:\d+: this recipe has no option --modl; did you mean --model\?\n$')
        (self.folder / 'chats.jsonl').write_text(json.dumps(lines[0]) + '\n{"messages": 7}\n')
        done = self.hetrun(ROOT / 'recipes' / 'finetune.lua', *words[1:-1], '--steps=1', code=2)
        self.assertIn("chats.jsonl:2: 'messages' is not a list of messages", done.stderr)

    def test_adapters_of_other_ranks_and_alphas(self):
        """Adapters of layers, experts and a fused parameter, with ranks and alphas of their own: described, loaded and merged."""
        (self.folder / 'ranks.lua').write_text("""local het = require "het"
local nn = het.nn
local opt = het.options { of = { "", "base, or a folder to load", path = "read" }, from = { "", "folder", path = "read" },
  save = { "", "folder", path = "write" }, fused = { false, "adapters of a fused parameter" }, steps = { 2, "steps" } }
local model
if opt.of == "base" then
  model = nn.decoder { family = "mixtral", vocab = 258, context = 16, width = 16, layers = 2, heads = 2, experts = 2, top = 1 }
elseif opt.of ~= "" then
  model = het.load(opt.of)
elseif opt.fused then
  model = nn.lora { model = het.load "runs/base", rank = 4, alpha = 8, targets = { "q_proj" }, parameters = { "gate_up_proj" },
    ranks = { ["experts.gate_up_proj"] = 3 }, alphas = { ["^model.layers.1.mlp.experts.gate_up_proj"] = 20, q_proj = 2 } }
else
  model = nn.lora { model = het.load "runs/base", rank = 4, alpha = 8, targets = { "q_proj", "v_proj", "w1" },
    ranks = { v_proj = 2, ["layers.0.block_sparse_moe.experts.*.w1"] = 3 },
    alphas = { w1 = 20, ["^model.layers.1.self_attn.q_proj"] = 30 } }
end
return het.train { model = model, data = het.data.text { path = "text.txt", tokenizer = "byte" }, batch = 4, steps = opt.steps,
  optimizer = het.optim.adamw { lr = 1e-2 }, save = opt.save ~= "" and opt.save or nil,
  from = opt.from ~= "" and opt.from or nil }
""")

        def same(fused, folder, ranks, alphas):
            """The losses of the adapters: as described, as loaded, and merged; of the last the first one."""
            own, base = (*fused, '--steps=20', f'--save=runs/{folder}'), self.losses('ranks.lua', '--of=runs/base')
            self.hetrun('ranks.lua', '--quiet', *own)
            described = self.losses('ranks.lua', *fused, f'--from=runs/{folder}')
            self.assertGreater(abs(described[0] - base[0]), 0.02)   # the adapters matter
            self.assertEqual(self.losses('ranks.lua', f'--of=runs/{folder}'), described)
            self.hetrun('merge', f'runs/{folder}', f'merged_{folder}')
            self.assertAlmostEqual(self.losses('ranks.lua', f'--of=merged_{folder}')[0], described[0], delta=1e-4)
            config = json.loads((self.folder / f'runs/{folder}/adapter_config.json').read_text())
            self.assertEqual(config['rank_pattern'], ranks)
            self.assertEqual(config['alpha_pattern'], alphas)
            return config, described

        self.hetrun('ranks.lua', '--quiet', '--of=base', '--steps=10', '--save=runs/base')
        layer = r'^model\.layers\.%d\.'
        same(['--fused'], 'fused', {layer % i + r'mlp\.experts\.gate_up_proj': 3 for i in (0, 1)},
             {layer % 1 + r'mlp\.experts\.gate_up_proj': 20, **{layer % i + r'self_attn\.q_proj': 2 for i in (0, 1)}})
        expert = layer + r'block_sparse_moe\.experts\.%d\.w1'
        config, losses = same(
            [], 'single', {**{layer % i + r'self_attn\.v_proj': 2 for i in (0, 1)}, **{expert % (0, i): 3 for i in (0, 1)}},
            {layer % 1 + r'self_attn\.q_proj': 30, **{expert % (i, j): 20 for i in (0, 1) for j in (0, 1)}})

        loss = self.hetrun('eval', 'runs/single', '--text=text.txt').stdout
        (self.folder / 'runs/base').rename(self.folder / 'moved')
        self.assertIn("which is no folder here; het.load(\"runs/single\", { base = \"folder\" }) says where it is, and --base=folder",
                      self.hetrun('eval', 'runs/single', '--text=text.txt', code=2).stderr)
        self.assertEqual(self.hetrun('eval', 'runs/single', '--text=text.txt', '--base=moved').stdout, loss)
        self.hetrun('generate', 'runs/single', '--prompt=the', '--tokens=2', '--base=moved')
        (self.folder / 'moved').rename(self.folder / 'runs/base')

        def patterns(**fields):
            (self.folder / 'runs/single/adapter_config.json').write_text(json.dumps({**config, **fields}))

        def loaded(**fields):
            patterns(**fields)
            return self.losses('ranks.lua', '--of=runs/single')

        def refused(*words, **fields):
            patterns(**fields)
            error = self.hetrun('merge', 'runs/single', 'other', code=2).stderr
            for word in ('runs/single/adapter_config.json: ', *words):
                self.assertIn(word, error)

        short = {'w1': 20, 'layers.1.self_attn.q_proj': 30}
        self.assertEqual(loaded(alpha_pattern=short), losses)
        self.assertEqual(loaded(alpha_pattern={r'.*\.w1': 20, r'^.*\.layers.1.self_attn.q_proj': 30}), losses)
        # Keys that name no layer in the file: ends after "^", layers without adapters, our names of layers.
        nothing = {'^v_proj': 3, '^layers.0.self_attn.v_proj': 3, 'w2': 9, 'blocks.0.attention.q': 5, '_proj': 7}
        self.assertEqual(loaded(alpha_pattern={**short, **nothing}), losses)
        self.assertEqual(loaded(alpha_pattern={**short, 'self_attn.v_proj': 8, 'v_proj': 8}), losses)   # both the same
        self.assertNotEqual(loaded(alpha_pattern={**short, 'v_proj': 3}), losses)
        refused('alpha_pattern: "q_proj" and "self_attn.q_proj" give model.layers.0.self_attn.q_proj different values',
                alpha_pattern={'q_proj': 2, 'self_attn.q_proj': 3})
        refused('alpha_pattern', '"self_attn.q_proj"', r'"self_attn\.q_proj"', 'different values',
                alpha_pattern={'self_attn.q_proj': 2, r'self_attn\.q_proj': 3})
        refused('alpha_pattern: the experts of model.layers.0.block_sparse_moe.experts.*.w1 have different values',
                alpha_pattern={'experts.1.w1': 2})
        refused('rank_pattern: v_proj = 1.5 is no rank', rank_pattern={'v_proj': 1.5})
        refused('rank_pattern: v_proj = 1.844674407371e+19 is no rank', rank_pattern={'v_proj': 2 ** 64})
        refused('alpha_pattern: w2 = 0 is not above 0', alpha_pattern={'w2': 0})
        refused('alpha_pattern: v_proj = "3" is not above 0', alpha_pattern={'v_proj': '3'})

    def test_special_tokens_are_not_written(self):
        (self.folder / 'text.txt').write_text('ab<|sep|>' * 400)
        (self.folder / 'words').mkdir()
        (self.folder / 'learn.lua').write_text("""local het = require "het"
local corpus = het.data.text { path = "text.txt", tokenizer = "huggingface", model = "words" }
return het.train { model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 16, layers = 1, heads = 2 }, data = corpus,
  batch = 8, steps = 200, optimizer = het.optim.adamw { lr = 1e-2 }, save = "runs/mine" }
""")
        for special, written in ((False, 'ab<|sep|>ab<|sep|>'), (True, 'abab')):
            self.byte_tokenizer(self.folder / 'words', ['<|sep|>'], special=special)
            self.hetrun('learn.lua', '--quiet', '--overwrite')
            done = self.hetrun('generate', 'runs/mine', '--prompt=ab<|sep|>', '--tokens=6', '--temperature=0')
            self.assertEqual(done.stdout, f'ab<|sep|>{written}\n')

    def test_dpo_on_pairs_of_answers(self):
        """A model of single bytes that learns to end what it says with yes."""
        self.begin_qwen(32)
        lines = [{'prompt': f'question {i}', 'chosen': '?' * (i % 5) + ' yes', 'rejected': '?' * (i % 5) + ' no'} for i in range(40)]
        (self.folder / 'pairs.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
        words = ('dpo', '--model=runs/begin', '--data=pairs.jsonl', '--context=32', '--batch=4', '--microbatch=2', '--lr=1e-2', '--warmup=5',
                 '--beta=2', '--precision=f32', '--save=runs/dpo', '--holdout=0.2', '--every=30')
        self.assertLess(self.check(*words, '--steps=120')['validation_loss'], 0.1)
        self.assertTrue((self.folder / 'runs/dpo/adapter_model.safetensors').exists())
        done = self.hetrun(ROOT / 'recipes' / 'dpo.lua', *words[1:], '--steps=122', '--resume')
        self.assertRegex(done.stderr, r'going on after step 120')
        self.assertRegex(done.stderr, r'step 122/122  loss 0\.\d+  accuracy 1  chosen \S+  margin 3\.\S+  rejected \S+')
        self.assertRegex(done.stderr, r'122 steps of 4 x 2 x 32 tokens')
        whole = (*words[:-3], '--save=runs/whole', '--rank=0', '--holdout=0.2', '--every=30')
        self.assertLess(self.check(*whole, '--steps=30')['validation_loss'], 0.5)
        saved = (self.folder / 'runs/whole/model.safetensors').read_bytes()
        names = json.loads(saved[8:8 + int.from_bytes(saved[:8], 'little')]).keys()
        self.assertIn('model.layers.1.mlp.up_proj.weight', names)
        self.assertFalse([name for name in names if 'reference' in name])
        kept = (self.folder / 'runs/whole/training.snapshot').read_bytes()
        self.assertIn(b'blocks.1.mlp.up.weight', kept)
        self.assertNotIn(b'(reference)', kept)   # its folder has it
        done = self.hetrun(ROOT / 'recipes' / 'dpo.lua', *whole[1:], '--steps=31', '--resume')
        self.assertIn('going on after step 30', done.stderr)
        planned = [word for word in words[1:] if not word.startswith(('--save', '--microbatch'))]
        alone = self.losses(ROOT / 'recipes' / 'dpo.lua', *planned, '--steps=2')
        self.assertLess(alone[1], 0.68)   # it began at 0.6931
        together = self.hetrun('--workers', '2', ROOT / 'recipes' / 'dpo.lua', *planned, '--plan', '--steps=2').stderr
        self.assertIn('het.plan {', together)
        losses = re.findall(r'^step ./2  loss (\S+)', together, re.MULTILINE)
        self.assertEqual(len(losses), 2)
        for one, other in zip(alone, losses):
            self.assertAlmostEqual(one, float(other), delta=1e-4)
        report = json.loads(self.hetrun('plan', ROOT / 'recipes' / 'dpo.lua', *planned, '--without=sharding_programs', '--json').stdout)['report']
        self.assertAlmostEqual(report['tokens_per_second'] * report['step_seconds'], 4 * 2 * 32, delta=1e-3)   # two rows of each pair

    def test_help_shows_every_option_with_its_range(self):
        reply = self.hetrun(ROOT / 'recipes' / 'gpt2_124m.lua', '--help').stdout
        self.assertRegex(reply, r'--context=INTEGER +tokens of a sample \(default: 1024, at least 2, at most 1024\)')
        for general in ('--json', '--trace', '--workers', '--rendezvous', '--timeout', '--secret-file'):
            self.assertIn(general, reply)
        self.assertIn('did you mean --sgd=false?', self.hetrun('resume.lua', '--no-sgd', code=2).stderr)
        self.assertIn('did you mean --trace?', self.hetrun(ROOT / 'recipes' / 'mlp.lua', '--trce=x', code=2).stderr)

    def test_what_was_not_measured_is_null(self):
        result = self.result(ROOT / 'recipes' / 'gpt_text.lua', '--text=text.txt', '--steps=2', '--every=0', *SMALL)
        self.assertLessEqual(RESULT_KEYS, result.keys())
        self.assertIsNone(result['validation_loss'])
        self.assertIsNone(result['best_validation_loss'])

    def test_absurd_sizes_are_refused_at_once(self):
        gpt = ROOT / 'recipes' / 'gpt_text.lua'
        self.assertIn('heads = 7 does not divide width = 1000000000000', self.hetrun(
            gpt, '--text=text.txt', '--width=1000000000000', '--heads=7', code=2).stderr)

    def test_a_text_is_written_at_the_end(self):
        words = [ROOT / 'recipes' / 'gpt_text.lua', '--text=text.txt', '--steps=2', '--every=0', '--write=50',
                 '--prompt=the fox', *SMALL]
        out = self.hetrun(*words).stdout
        self.assertIn('the fox', out)
        self.assertEqual(len(out.rstrip('\n')), len('the fox') + 50)
        self.assertEqual(out, self.hetrun(*words).stdout)


class Runs(Case):
    def test_a_worse_evaluation_says_its_figures_and_the_best_loss(self):
        """What is held out contradicts what is trained on, so the second evaluation is the worse one."""
        (self.folder / 'worse.lua').write_text("""local het = require "het"
local op = het.op
local labels = {}
for i = 1, 20 do labels[i] = { i <= 10 and 1 or -1 } end
return het.train { model = het.nn.linear(1, 1), batch = 10, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
  data = het.data.pairs { inputs = het.ones { 20, 1 }, labels = het.tensor(labels), holdout = 0.5 }, evaluate = { every = 1 },
  loss = function(output, wanted, scale)
    local function mean(x) return op.reshape(op.reshape(op.sum(x), { shape = { 1 } }) * scale, { shape = {} }) end
    local away = output - wanted
    return mean(away * away), { apart = mean(away), second = mean(output) }
  end }
""")
        lines = re.findall(r'^step (\d)/2  validation loss (\S+) \((.*)\)$', self.hetrun('worse.lua').stderr, re.MULTILINE)
        self.assertEqual([line[0] for line in lines], ['1', '2'])
        self.assertGreater(float(lines[1][1]), float(lines[0][1]))
        self.assertRegex(lines[0][2], r'^apart \S+; second \S+$')
        self.assertRegex(lines[1][2], rf'^apart \S+; second \S+; best {re.escape(lines[0][1])}$')

    def test_the_same_losses_twice(self):
        self.assertEqual(self.losses('resume.lua', '--threads=2'), self.losses('resume.lua', '--threads=2'))

    def test_one_thread_or_two(self):
        one, two = self.losses('resume.lua', '--threads=1'), self.losses('resume.lua', '--threads=2')
        self.assertEqual((len(one), len(two)), (6, 6))
        for a, b in zip(one, two):
            self.assertAlmostEqual(a, b, delta=1e-5 * abs(a))

    def test_another_seed_another_run(self):
        self.assertNotEqual(self.losses('resume.lua'), self.losses('resume.lua', '--seed=2'))

    def test_micro_batches_add_up(self):
        whole, parts = self.losses('resume.lua'), self.losses('resume.lua', '--microbatch=1')
        self.assertEqual((len(whole), len(parts)), (6, 6))
        for a, b in zip(whole, parts):
            self.assertAlmostEqual(a, b, delta=1e-4 * abs(a))

    def test_going_on_equals_going_through(self):
        through = self.losses('resume.lua', '--save=whole')
        first = self.losses('resume.lua', '--steps=3')
        rest = self.losses('resume.lua', '--resume')
        self.assertEqual(through[:3], first)
        self.assertEqual(through, first + rest[-3:])

    def test_a_run_that_goes_on_says_that_its_data_is_another(self):
        note = 'note: the run saved in runs/mine was trained on other data'
        text = (self.folder / 'text.txt').read_text()
        (self.folder / 'grown.txt').write_text(text)
        self.losses('resume.lua', '--text=grown.txt', '--steps=3')
        self.assertNotIn(note, self.hetrun('resume.lua', '--text=text.txt', '--steps=4', '--resume').stderr)
        (self.folder / 'grown.txt').write_text(text + text)
        done = self.hetrun('resume.lua', '--text=grown.txt', '--steps=5', '--resume')
        self.assertRegex(done.stderr, note + r' \([\d,]+ tokens then, [\d,]+ now\); it goes on with sample 17 of the new data, and its lowest validation loss is forgotten\n')

    SNAPSHOTS = """local het = require "het"
local opt = het.options { layers = { 2, "" }, heads = { 2, "" }, steps = { 4, "" }, save_every = { 0, "" } }
local corpus = het.data.text { path = "text.txt", tokenizer = "char" }
return het.train { data = corpus, batch = 2, steps = opt.steps, optimizer = het.optim.adamw { lr = 1e-3 }, evaluate = { every = 0 },
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = opt.layers, heads = opt.heads },
  save = opt.save_every > 0 and "runs/saved" or nil, save_every = opt.save_every,
  snapshot = opt.save_every == 0 and { folder = "runs/kept", every = 2 } or nil }"""

    def test_snapshots_of_another_model_are_no_run_to_go_on_with(self):
        (self.folder / 'kept.lua').write_text(self.SNAPSHOTS)
        self.hetrun('kept.lua')
        for option, unlike in (('layers=1', 'n_layer = 2 (the recipe\'s 1)'), ('layers=3', 'n_layer = 2 (the recipe\'s 3)'),
                               ('heads=4', 'n_head = 2 (the recipe\'s 4)')):
            self.assertIn(f'runs/kept holds another model than the recipe\'s: {unlike}\n',
                          self.hetrun('kept.lua', '--resume', '--steps=8', f'--{option}', code=2).stderr)
        self.assertIn('going on after step 4', self.hetrun('kept.lua', '--resume', '--steps=8').stderr)

    def test_a_save_that_the_disk_has_no_room_for_does_not_end_the_training(self):
        (self.folder / 'kept.lua').write_text(self.SNAPSHOTS)
        done = subprocess.run([HETRUN, 'kept.lua', '--save_every=2', '--steps=6'], cwd=self.folder, capture_output=True, text=True,
                              check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
        self.assertEqual(done.returncode, 71, done.stderr)
        self.assertEqual(len(re.findall(r'the save in runs/saved was not written: .*; training goes on\n', done.stderr)), 2, done.stderr)
        self.assertIn('step 6/6', done.stderr)

    def test_metrics_that_the_disk_has_no_room_for_do_not_end_the_training(self):
        (self.folder / 'kept.lua').write_text(self.SNAPSHOTS)
        done = subprocess.run([HETRUN, 'kept.lua', '--save_every=0', '--steps=100', '--metrics=metrics.jsonl', '--json'],
                              cwd=self.folder, capture_output=True, text=True, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        self.assertIn('step 100/100', done.stderr)
        self.assertEqual(len(re.findall(r'some metrics are missing: .*metrics.jsonl.*; training goes on\n', done.stderr)), 1,
                         done.stderr)
        self.assertLessEqual((self.folder / 'metrics.jsonl').stat().st_size, 4096)
        for line in (self.folder / 'metrics.jsonl').read_text().splitlines():
            json.loads(line)   # none is cut off

    def test_a_run_goes_on_with_the_optimizer_that_it_had(self):
        self.losses('resume.lua', '--steps=3', '--sgd')
        error = self.hetrun('resume.lua', '--resume', code=2).stderr
        self.assertIn("the run saved in runs/mine has no 'adamw.m.", error)
        self.assertIn('which optim.adamw keeps: it had another optimizer', error)
        self.assertIn('from = "runs/mine"', error)
        shutil.rmtree(self.folder / 'runs')
        self.losses('resume.lua', '--steps=3')
        error = self.hetrun('resume.lua', '--resume', '--sgd', code=2).stderr
        self.assertRegex(error, r"the run saved in runs/mine has 'adamw\.\S+', which this run with optim.sgd does not keep: it had "
                         'another optimizer')
        self.assertEqual(self.result('resume.lua', '--resume')['steps'], 6)

    def test_a_run_that_fails_goes_on_from_its_last_save(self):
        """The saves were written beside the steps that followed."""
        through = self.losses('resume.lua', '--save=whole', '--every=1')
        self.assertEqual(through, self.losses('resume.lua', '--save='))
        for fail in (4, 5):
            self.hetrun('resume.lua', '--quiet', '--every=2', f'--fail={fail}', code=2)
            done = self.hetrun('resume.lua', '--resume', '--every=2', f'--fail={fail + 1}', code=2)
            self.assertIn(f'going on after step {(fail - 1) // 2 * 2}', done.stderr)
        self.assertEqual(through[4:], self.losses('resume.lua', '--resume', '--every=2')[-2:])
        self.assertEqual(self.files_of_run('whole'), self.files_of_run())

    def test_another_batch_goes_on_with_the_next_sample(self):
        # At so small a rate the weights stay as they are: a loss shows which samples it comes from.
        still = ['resume.lua', '--lr=1e-30', '--dropout=0', '--microbatch=2']
        whole = self.losses(*still, '--batch=2', '--save=', '--steps=8')
        self.losses(*still, '--batch=4', '--steps=3')
        rest = self.losses(*still, '--batch=2', '--resume', '--steps=5')[-2:]
        self.assertEqual(whole[6:], rest)
        self.assertNotEqual(whole[6], whole[7])

    def test_blocks_of_ones_own_are_saved_and_gone_on_with(self):
        through = self.losses('resume.lua', '--block', '--save=whole')
        self.losses('resume.lua', '--block', '--steps=3')
        rest = self.losses('resume.lua', '--block', '--resume')
        self.assertEqual(through[3:], rest[-3:])

    def test_bf16_stays_near_f32(self):
        full, half = self.losses('resume.lua', '--dropout=0'), self.losses('resume.lua', '--dropout=0',
                                                                           '--precision=bf16')
        self.assertEqual((len(full), len(half)), (6, 6))
        for a, b in zip(full, half):
            self.assertAlmostEqual(a, b, delta=1e-2 * abs(a))

    STOCHASTIC = ['resume.lua', '--precision=bf16', '--rounding=stochastic']

    def test_stochastic_rounding_stays_near_rounding_to_nearest(self):
        for optimizer in ([], ['--sgd']):
            nearest = self.losses('resume.lua', '--precision=bf16', *optimizer)
            chance = self.losses(*self.STOCHASTIC, *optimizer)
            self.assertEqual((len(nearest), len(chance)), (6, 6))
            for a, b in zip(nearest, chance):
                self.assertNotEqual(a, b)
                self.assertAlmostEqual(a, b, delta=2e-2 * abs(a))

    def test_stochastic_rounding_is_the_same_twice_and_in_all_micro_batches(self):
        whole, again = self.losses(*self.STOCHASTIC), self.losses(*self.STOCHASTIC)
        self.assertEqual(whole, again)
        self.assertNotEqual(whole, self.losses(*self.STOCHASTIC, '--seed=2'))
        parts = self.losses(*self.STOCHASTIC, '--microbatch=1')
        for a, b in zip(whole, parts):
            self.assertAlmostEqual(a, b, delta=1e-3 * abs(a))

    def test_stochastic_rounding_goes_on_as_if_it_had_not_stopped(self):
        through = self.losses(*self.STOCHASTIC, '--save=whole')
        self.losses(*self.STOCHASTIC, '--steps=3')
        self.assertEqual(through[3:], self.losses(*self.STOCHASTIC, '--resume')[-3:])

    def test_without_training_the_rounded_weights_draw_again_in_each_step_and_evaluation_has_the_nearest(self):
        # At so small a rate the weights stay as they are, and each batch is all of the same letter.
        (self.folder / 'same.txt').write_text('a' * 2000 + 'b' * 10)
        still = ['--text=same.txt', '--lr=1e-30', '--dropout=0', '--save=', '--steps=5']
        chance = self.losses(*self.STOCHASTIC, *still)
        nearest = self.losses('resume.lua', '--precision=bf16', *still)
        self.assertEqual((len(set(nearest)), len(set(chance))), (1, 5))
        self.assertEqual(*(self.result(*words, *still)['validation_loss']
                           for words in (self.STOCHASTIC, ['resume.lua', '--precision=bf16'])))

    def test_a_saved_model_writes_and_is_trained_further(self):
        self.result('resume.lua', '--steps=30')
        once = self.hetrun('write.lua', '--quiet').stdout
        self.assertTrue(once.startswith('the quick brown fox'))
        self.assertEqual(len(once), len('the quick brown fox') + 60 + len('\n'))
        self.assertEqual(once, self.hetrun('write.lua', '--quiet').stdout)
        self.assertNotEqual(once, self.hetrun('write.lua', '--quiet', '--seed=2').stdout)
        self.hetrun('write.lua', '--quiet', '--temperature=0')

    def test_a_cache_is_as_long_as_the_text_and_not_as_the_context(self):
        # A cache of the whole context would take 64 GB.
        self.assertEqual(len(self.hetrun('long.lua').stdout), 10 + 1)

    def test_caches_of_keys_and_values_change_no_text(self):
        for words in ((), ('--llama',)):
            self.assertRegex(self.hetrun('cached.lua', '--trust', '--quiet', *words).stdout, '^the quick ')

    def test_a_prompt_of_nine_thousand_tokens(self):
        # More than Lua can unpack.
        self.assertEqual(len(self.hetrun('long.lua', '--prompt=9000', '--tokens=3').stdout), 3 + 1)
        self.assertEqual(len(self.hetrun('long.lua', '--prompt=9000', '--looks_back=1', '--tokens=3',
                                         '--overwrite').stdout), 3 + 1)

    def test_generation_looks_back_as_far_as_it_is_asked(self):
        short = self.hetrun('long.lua', '--learned', '--context=32', '--looks_back=8', '--prompt=20', '--tokens=40').stdout
        whole = self.hetrun('long.lua', '--learned', '--context=32', '--prompt=20', '--tokens=40', '--overwrite').stdout
        self.assertNotEqual(short, whole)
        self.assertEqual(whole, self.hetrun('long.lua', '--learned', '--context=32', '--looks_back=32', '--prompt=20',
                                            '--tokens=40', '--overwrite').stdout)
        done = self.hetrun('long.lua', '--learned', '--context=32', '--looks_back=33', '--overwrite', code=2)
        self.assertIn("generate.context = 33 is more than the model's context = 32", done.stderr)

    def test_rows_come_once_in_an_epoch_in_an_order_of_their_own(self):
        whole = self.losses('pairs.lua')
        self.assertEqual(len(whole), 12)
        self.assertEqual(whole, self.losses('pairs.lua'))
        self.assertNotEqual(whole, self.losses('pairs.lua', '--seed=2'))

    def test_a_folder_of_shards_trains_and_writes_text_with_a_vocabulary(self):
        self.losses('resume.lua', '--steps=1')
        characters = json.loads((self.folder / 'runs' / 'mine' / 'vocabulary.json').read_text())['characters']
        ids = [characters.index(c) for c in TEXT]
        (self.folder / 'shards').mkdir()
        for i, first in enumerate(range(0, len(ids), 700)):
            (self.folder / 'shards' / f'part_{i:03}.bin').write_bytes(
                b''.join(token.to_bytes(2, 'little') for token in ids[first:first + 700]))
        (self.folder / 'shards' / 'README.md').write_text('no tokens')
        done = self.hetrun('tokens.lua')   # the model has 40 tokens; the vocabulary knows 29
        written = done.stdout[:-1]
        self.assertEqual(len(written), 104)
        self.assertLessEqual(set(written), set(characters))
        self.assertEqual(json.loads((self.folder / 'runs' / 'again' / 'vocabulary.json').read_text())['characters'], characters)
        self.assertIn('vocab = 20 is less than the 29 tokens', self.hetrun('tokens.lua', '--vocab=20', code=2).stderr)
        self.assertIn('holds no .bin files', self.hetrun('tokens.lua', '--path=runs/mine', code=2).stderr)

    def start_training(self, *words):
        """A run that has done a step."""
        metrics = self.folder / 'steps.jsonl'
        metrics.unlink(missing_ok=True)
        process = subprocess.Popen([HETRUN, *words, f'--metrics={metrics}'], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 60
        while not (metrics.exists() and metrics.stat().st_size > 0):
            self.assertLess(time.monotonic(), until, 'no step was reported')
            time.sleep(0.005)
        return process

    def test_control_c_and_sigterm_save(self):
        for asked in (signal.SIGINT, signal.SIGTERM):
            folder = f'--save={asked.name}'
            process = self.start_training('resume.lua', '--steps=100000000', '--json', folder)
            process.send_signal(asked)
            out, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130)
            result = json.loads(out.splitlines()[-1])
            self.assertGreater(result['steps'], 0)
            steps = result['steps'] + 2
            self.assertEqual(self.result('resume.lua', '--resume', f'--steps={steps}', folder)['steps'], steps)

    def test_a_second_sigterm_ends_a_run_at_once(self):
        # Nothing looks at the first one: the run is in a function of C that does not return.
        text = (self.folder / 'resume.lua').read_text()
        endless = text.replace('if step.step == opt.fail then error "as asked" end',
                               '(("a"):rep(60)):find(("a?"):rep(60) .. ("a"):rep(60) .. "b")')
        self.assertNotEqual(text, endless)
        (self.folder / 'endless.lua').write_text(endless)
        process = self.start_training('endless.lua')
        process.send_signal(signal.SIGTERM)
        status = pathlib.Path(f'/proc/{process.pid}/status')
        while '\nShdPnd:\t0000000000000000' not in status.read_text():   # it has yet to hear of it
            time.sleep(0.01)
        time.sleep(0.7)   # signals of the same half second are one
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertFalse((self.folder / 'runs' / 'mine' / 'model.safetensors').exists())

    def files_of_run(self, folder='runs/mine'):
        return {path.name: path.read_bytes() for path in (self.folder / folder).iterdir()
                if path.is_file() and path.name != '.hetrun'}

    def test_a_model_without_its_training_state_is_not_gone_on_with(self):
        words = [ROOT / 'recipes' / 'gpt_text.lua', '--text=text.txt', *SMALL, '--steps=2', '--save=model']
        self.hetrun(*words)
        model = self.folder / 'model' / 'model.safetensors'
        before = model.read_bytes()
        (self.folder / 'model' / 'training.snapshot').unlink()
        self.assertIn('model holds a model but nothing to go on from', self.hetrun(*words, '--resume', code=2).stderr)
        self.assertEqual(model.read_bytes(), before)

    def test_a_run_goes_on_with_its_own_model_and_text_alone(self):
        recipe, small = ROOT / 'recipes' / 'gpt_text.lua', [*SMALL, '--save=model', '--write=1', '--resume']
        self.assertIn('nothing is saved in model yet: this run begins at step 1',
                      self.hetrun(recipe, '--text=text.txt', *small, '--steps=2').stderr)
        kept = self.files_of_run('model')
        layers, heads = (json.loads(kept['config.json'])[name] for name in ('n_layer', 'n_head'))
        for word, sentence in ((f'--layers={layers + 1}', f"n_layer = {layers} (the recipe's {layers + 1})"),
                               (f'--heads={2 * heads}', f"n_head = {heads} (the recipe's {2 * heads})")):
            done = self.hetrun(recipe, '--text=text.txt', *small, word, '--steps=3', code=2)
            self.assertIn(f"model holds another model than the recipe's: {sentence}", done.stderr)
        (self.folder / 'other.txt').write_text(TEXT.replace('q', 'Q'))   # as many characters
        self.assertIn("model was begun with another vocabulary than this text's",
                      self.hetrun(recipe, '--text=other.txt', *small, '--steps=3', code=2).stderr)
        self.assertEqual(self.files_of_run('model'), kept)
        done = self.hetrun(recipe, '--text=text.txt', *small, '--steps=2', '--json')
        self.assertIn('already trained for all 2 steps; raise `steps` to continue', done.stderr)
        self.assertIsNone(json.loads(done.stdout.splitlines()[-1])['tokens_per_s'])

    def test_blocks_of_ones_own_are_not_lost(self):
        self.losses('resume.lua', '--block', '--steps=2')
        text = (self.folder / 'resume.lua').read_text()
        kept = self.files_of_run()
        self.assertIn('layers = 2', text)
        (self.folder / 'less.lua').write_text(text.replace('layers = 2', 'layers = 1'))
        done = self.hetrun('less.lua', '--block', '--steps=3', '--resume', code=2)
        self.assertIn("which the recipe's model has no place for", done.stderr)
        self.assertEqual(self.files_of_run(), kept)

    def test_a_file_of_the_recipes_folder_is_meant_from_there(self):
        (self.folder / 'my').mkdir()
        (self.folder / 'my' / 'own.txt').write_text(TEXT)
        (self.folder / 'my' / 'r.lua').write_text('local corpus = require("het").data.text { path = "own.txt" }\n')
        reply = self.hetrun('my/r.lua', code=2).stderr
        self.assertIn(f"there is no 'own.txt': paths are relative to the current folder, so it is {self.folder.resolve()}/own.txt", reply)

    def test_labels_for_a_column_may_be_a_row_of_numbers(self):
        text = (ROOT / 'recipes' / 'mlp.lua').read_text()
        flat = re.sub(r'y\[i\] = \{(.*)\} end', r'y[i] = \1 end', text)
        self.assertNotEqual(flat, text)
        losses = []
        for recipe in (text, flat):
            (self.folder / 'flat.lua').write_text(recipe)
            losses.append(self.losses('flat.lua', '--steps=20'))
        self.assertEqual(*losses)

    def test_places_are_looked_at_before_the_first_step(self):
        words = [ROOT / 'recipes' / 'gpt_text.lua', '--text=text.txt', *SMALL, '--steps=2', '--metrics=metrics.jsonl']
        self.assertIn('there is no folder nowhere for --trace=nowhere/step.json',
                      self.hetrun(*words, '--trace=nowhere/step.json', code=2).stderr)
        done = self.hetrun(*words, '--save=text.txt/model', code=2)
        self.assertRegex(done.stderr, 'cannot make the folder text.txt/model: .*text.txt is no folder')
        self.assertIn('cannot save in text.txt: it is a file', self.hetrun(*words, '--save=text.txt', code=2).stderr)
        self.assertFalse((self.folder / 'metrics.jsonl').exists() and (self.folder / 'metrics.jsonl').read_text())
        self.assertIn("no file can be made in the folder '/proc'", self.hetrun(*words, '--trace=/proc/step.json', code=2).stderr)

    def test_a_full_disk_keeps_the_last_save(self):
        self.losses('resume.lua', '--steps=3')
        before = self.files_of_run()
        model, training = (len(before[name]) for name in ('model.safetensors', 'training.snapshot'))
        self.assertLess(model, training)
        for most in (10000, (model + training) // 2):   # neither file may grow that far; only the model
            def limit(most=most):
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            for every in (0, 1):   # at the end, and beside the steps
                done = self.hetrun('resume.lua', '--resume', '--quiet', f'--every={every}', code=71, preexec_fn=limit,
                                   restore_signals=False)
                self.assertIn('training.snapshot', done.stderr)
                self.assertEqual(before, self.files_of_run())
        self.assertEqual(self.result('resume.lua', '--resume')['steps'], 6)

    def test_a_save_that_fails_at_its_second_file_keeps_the_last_one(self):
        self.losses('resume.lua', '--steps=3')
        before = self.files_of_run()
        (self.folder / 'runs' / 'mine' / 'model.safetensors.next').mkdir()   # where it would be written
        self.hetrun('resume.lua', '--resume', '--quiet', code=71)
        self.assertEqual(before, self.files_of_run())
        (self.folder / 'runs' / 'mine' / 'model.safetensors.next').rmdir()
        self.assertEqual(self.result('resume.lua', '--resume')['steps'], 6)

    def test_a_save_that_was_cut_off_leaves_the_old_one_or_the_new_one(self):
        run = self.folder / 'runs' / 'mine'
        self.losses('resume.lua', '--steps=3')
        old = self.files_of_run()
        through = self.losses('resume.lua', '--resume', '--steps=4')[-1:]
        new = self.files_of_run()
        names = ['training.snapshot', 'model.safetensors', 'vocabulary.json', 'tokenizer.json', 'tokenizer_config.json', 'config.json']
        self.assertEqual(set(names), set(new))
        for written in range(len(names)):   # while it wrote
            for name in names:
                (run / name).write_bytes(old[name])
            for i, name in enumerate(names[:written]):
                (run / (name + '.next')).write_bytes(new[name] if i + 1 < written else new[name][:100])
            self.assertEqual(self.losses('resume.lua', '--resume', '--steps=4')[-1:], through)
            self.assertEqual(new, self.files_of_run())
        for placed in range(1, len(names)):   # while it put what was written in its place
            for i, name in enumerate(names):
                (run / name).write_bytes((new if i < placed else old)[name])
                if i >= placed:
                    (run / (name + '.next')).write_bytes(new[name])
            self.hetrun('write.lua', '--quiet', '--seed=3')
            done = self.hetrun('resume.lua', '--resume', '--steps=5')
            self.assertIn('going on after step 4', done.stderr)
            self.assertEqual(set(names), set(self.files_of_run()))
            self.assertNotEqual(new, self.files_of_run())

    def test_a_disk_without_room_keeps_the_last_save(self):
        """On a file system of 1000 KB, in a separate mount namespace."""
        script = """
            mount -t tmpfs -o size=1000k none "$PWD/disk" || exit 77
            "$1" resume.lua --quiet --save=disk/run --steps=3 || exit 1
            (cd disk/run && sha256sum *) >before
            cat /dev/zero >disk/filler 2>/dev/null   # then room for the small files, not for the model
            truncate -s -16K disk/filler
            "$1" resume.lua --quiet --save=disk/run --resume
            code=$?
            (cd disk/run && sha256sum *) >after
            rm disk/filler
            "$1" resume.lua --quiet --save=disk/run --resume || exit 1
            exit $code
        """
        (self.folder / 'disk').mkdir()
        namespace = ['unshare', '--mount', *([] if os.getuid() == 0 else ['--user', '--map-root-user'])]
        try:
            done = subprocess.run([*namespace, 'sh', '-c', script, 'sh', HETRUN], cwd=self.folder, capture_output=True,
                                  text=True, timeout=300, check=False)
        except FileNotFoundError:
            self.skipTest('unshare is not installed')
        if done.returncode == 77 or done.stderr.startswith('unshare:'):
            self.skipTest(f'no file system may be mounted here: {done.stderr.strip()}')
        self.assertEqual(done.returncode, 71, done.stderr)
        self.assertRegex(done.stderr, "disk/run/(model.safetensors|training.snapshot)' failed .*: the disk is full; the previous file is kept")
        self.assertEqual((self.folder / 'before').read_text(), (self.folder / 'after').read_text())


class Peak(Case):
    """The peak that utilisation is measured against: the greatest of several measurements."""

    def setUp(self):
        super().setUp()
        self.file = self.folder / 'hetrun' / 'peak.json'
        self.environment = {**os.environ, 'XDG_CACHE_HOME': str(self.folder)}

    def run_once(self):
        done = self.hetrun(ROOT / 'recipes' / 'mlp.lua', '--steps=2', '--json', '--quiet', env=self.environment)
        (entry,) = json.loads(self.file.read_text()).values()
        return json.loads(done.stdout)['mfu'], entry

    def change(self, **fields):
        known = json.loads(self.file.read_text())
        for entry in known.values():
            entry.update(fields)
        self.file.write_text(json.dumps(known))

    def test_a_peak_below_what_a_run_reaches_is_measured_again(self):
        self.assertEqual(self.run_once()[1]['measured'], 1)
        self.change(flops=1, measured=3)
        mfu, entry = self.run_once()
        self.assertGreater(entry['flops'], 1)
        self.assertLess(mfu, 1)

    def test_the_greatest_of_measurements_that_lie_apart_counts(self):
        self.run_once()
        self.assertEqual(self.run_once()[1]['measured'], 1)   # too soon for another
        self.change(flops=1e18, at=0)
        self.assertEqual(self.run_once()[1]['measured'], 2)
        self.change(at=0)
        self.run_once()
        self.change(at=0)
        entry = self.run_once()[1]
        self.assertEqual((entry['flops'], entry['measured']), (1e18, 3))

    def test_it_is_measured_before_the_first_step(self):
        words = (ROOT / 'recipes' / 'mlp.lua', '--steps=2')
        notice = 'measuring this machine\'s peak, once\n'
        done = self.hetrun(*words, env=self.environment)
        line = r'(?m)^step 1/2  loss [\d.]+  [\d.]+ \S*\s?samples/s  MFU \d+ %  [\d.]+ [MG]iB  \d+ s left$'
        self.assertRegex(done.stderr.split(notice)[1], line)
        done = self.hetrun(*words, env=self.environment)
        self.assertRegex(done.stderr, line)
        self.assertNotIn(notice, done.stderr)

    def test_no_step_does_more_than_the_peak(self):
        self.run_once()
        self.change(flops=1, measured=3)
        metrics = self.folder / 'metrics.jsonl'
        self.hetrun(ROOT / 'recipes' / 'mlp.lua', '--steps=5', '--quiet', f'--metrics={metrics}', env=self.environment)
        shares = [step['mfu'] for step in map(json.loads, metrics.read_text().splitlines()) if 'mfu' in step]
        self.assertEqual(len(shares), 5)
        self.assertLessEqual(max(shares), 1)

    def test_a_damaged_file_is_replaced(self):
        self.file.parent.mkdir()
        for content in ('{', '[]', '{"a": 1}'):
            self.file.write_text(content)
            self.hetrun(ROOT / 'recipes' / 'mlp.lua', '--steps=2', '--quiet', env=self.environment)
            self.assertIn('measured', self.file.read_text())


class Commands(Case):
    def test_bench(self):
        result = self.result('bench', 'gpt-nano', '--steps', '2', '--precision', 'bf16')
        for key in ('tokens_per_s', 'step_seconds', 'peak_gflops', 'product_gflops', 'product_fraction', 'mfu',
                    'peak_memory_bytes'):
            self.assertGreater(result[key], 0, key)
        self.assertRegex(result['peak_kind'], '^registers, ')
        self.assertAlmostEqual(result['product_fraction'], result['product_gflops'] / result['peak_gflops'])
        self.assertIsNone(result['launch_gap'])   # the processor launches nothing
        self.hetrun('bench')
        self.assertIn("did you mean 'gpt-nano'", self.hetrun('bench', 'gpt-nanno', code=2).stderr)

    def test_docs(self):
        self.hetrun('docs', 'pages')
        page = (self.folder / 'pages' / 'nn.md').read_text()
        self.assertIn('## nn.attention', page)
        self.assertIn('`kv_heads`', page)
        subprocess.run(['luajit', '-bl', self.folder / 'pages' / 'het.lua'], check=True, stdout=subprocess.DEVNULL)

    def test_doctor(self):
        done = self.hetrun('doctor')
        self.assertIn('GFLOP/s', done.stdout)
        self.assertIn('measuring cpu in f32 ...\n', done.stderr)   # it takes seconds
        self.assertRegex(done.stdout, r'(?m)^cpu f32 +\d+ GFLOP/s \(registers, f32 multiply-add\); \d+ in a large matrix')
        self.assertRegex(done.stdout, r'(?m)^cpu bf16 +\d+ GFLOP/s \(registers, (f32 multiply-add|bf16 [a-z ]+)\)')

    def test_the_kernels_that_multiplied_fastest_are_used(self):
        environment = {**os.environ, 'XDG_CACHE_HOME': str(self.folder)}
        environment.pop('HETRUN_INSTRUCTION_SET', None)
        file = self.folder / 'hetrun' / 'products.json'

        def used(env):
            return re.search(r'kernels for (\w+)', self.hetrun('doctor', env=env).stdout).group(1)

        used(environment)
        if not file.exists():
            self.skipTest('this processor multiplies bf16 in one way alone')
        known = json.loads(file.read_text())
        (processor, speeds), = known.items()
        self.assertGreater(len(speeds), 1)
        for name in speeds:
            file.write_text(json.dumps({processor: {n: [1e12 if n == name else 1e9] * len(s) for n, s in speeds.items()}}))
            self.assertEqual(used(environment), name)
            for other in speeds:
                self.assertEqual(used({**environment, 'HETRUN_INSTRUCTION_SET': other}), other)
        for damaged in ('{', '[]', json.dumps({processor: {name: [0] for name in speeds}})):
            file.write_text(damaged)
            self.assertIn(used(environment), speeds)
            self.assertEqual(json.loads(file.read_text()).keys(), {processor})


if __name__ == '__main__':
    unittest.main()
