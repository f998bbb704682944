#!/usr/bin/env python3
"""A BERT in Hugging Face's layout, with its tokenizer, trained further on masked tokens: masked.py HETRUN [unittest arguments]."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
TEXT = 'the quick brown fox jumps over the lazy dog . [SEP] the dog sleeps . '
WORDS = SPECIAL + sorted({word for word in TEXT.split() if word not in SPECIAL}) + ['##s', 'jump', 'sleep']
RECIPE = '''local het = require "het"
local opt = het.options { model = { "", "folder", path = "read" }, save = { "", "folder", path = "write" }, data = { "words", "" },
  show = { false, "batches" } }
local from = opt.model ~= "" and opt.model or "words"
local corpus = opt.data == "words" and het.data.masked { path = "text.txt", tokenizer = "huggingface", model = from }
  or het.data.masked { path = "text.txt", tokenizer = opt.data, model = from }
if opt.show then
  print("vocab", corpus.vocab)
  local sampler = corpus:sampler { context = 16, batch = 40 }
  for _ = 1, 10 do
    local batch = sampler:next()
    print("count", batch.count)
    local inputs, labels = batch.inputs[1]:tolist(), batch.labels[1]:tolist()
    for i = 1, #inputs do print("row", table.concat(inputs[i], " "), table.concat(labels[i], " ")) end
  end
end
local model = opt.model ~= "" and het.load(opt.model)
  or het.nn.bert { vocab = corpus.vocab, context = 16, width = 16, layers = 1, heads = 2 }
return het.train { model = model, data = corpus, batch = 16, steps = 60, optimizer = het.optim.adamw { lr = 1e-2 },
  evaluate = { every = 0 }, save = opt.save ~= "" and opt.save or nil }
'''


class Masked(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'recipe.lua').write_text(RECIPE)
        (self.folder / 'text.txt').write_text(TEXT * 100)
        self.words = self.folder / 'words'
        self.words.mkdir()
        self.write_tokenizer()

    def write_tokenizer(self, **named):
        (self.words / 'tokenizer.json').write_text(json.dumps({
            'added_tokens': [{'id': i, 'content': token, 'special': True} for i, token in enumerate(SPECIAL)],
            'normalizer': {'type': 'BertNormalizer'}, 'pre_tokenizer': {'type': 'BertPreTokenizer'},
            'model': {'type': 'WordPiece', 'vocab': {word: i for i, word in enumerate(WORDS)}}}))
        (self.words / 'special_tokens_map.json').write_text(json.dumps({'mask_token': '[MASK]', 'sep_token': '[SEP]', **named}))

    def hetrun(self, *words, code=0):
        done = subprocess.run([HETRUN, '--quiet', 'recipe.lua', '--metrics=metrics.jsonl', *words], cwd=self.folder, capture_output=True, text=True, timeout=120,
                              check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def losses(self):
        lines = [json.loads(line) for line in (self.folder / 'metrics.jsonl').read_text().splitlines()]
        return [line['loss'] for line in lines if 'gradient_norm' in line]

    def test_a_loaded_model_learns_on_with_the_vocabulary_that_it_has(self):
        self.hetrun('--save=runs/first')
        first = self.losses()
        self.hetrun('--model=runs/first', '--save=runs/second')
        second = self.losses()
        begins, ends, goes_on = sum(first[:5]) / 5, sum(first[-5:]) / 5, sum(second[:5]) / 5
        self.assertLess(ends, begins - 0.2)
        self.assertAlmostEqual(goes_on, ends, delta=0.2)
        for name in ('first', 'second'):
            saved = self.folder / 'runs' / name
            self.assertEqual(json.loads((saved / 'config.json').read_text())['vocab_size'], len(WORDS))
            for file in ('tokenizer.json', 'special_tokens_map.json'):
                self.assertEqual((saved / file).read_bytes(), (self.words / file).read_bytes())

    def test_only_words_are_masked_by_the_tokenizers_mask(self):
        hidden, special = set(), 0
        lines = self.hetrun('--show').splitlines()
        self.assertIn(f'vocab\t{len(WORDS)}', lines)
        counts = [int(line.split('\t')[1]) for line in lines if line.startswith('count\t')]
        rows = [line.split('\t')[1:] for line in lines if line.startswith('row\t')]
        self.assertEqual(len(rows), 400)
        for inputs, labels in rows:
            for token, label in zip(map(int, inputs.split()), map(int, labels.split()), strict=True):
                if label == -100:
                    special += token < len(SPECIAL)
                    self.assertNotEqual(token, WORDS.index('[MASK]'))
                    continue
                hidden.add(token)
                self.assertGreaterEqual(label, len(SPECIAL))   # no special token is to be guessed
                self.assertGreaterEqual(token, WORDS.index('[MASK]'))   # nor drawn in place of another one
        self.assertEqual(sum(counts), sum(label != '-100' for _, labels in rows for label in labels.split()))
        self.assertGreater(special, 200)   # there were some
        self.assertEqual(hidden, set(range(WORDS.index('[MASK]'), len(WORDS))))

    def test_a_tokenizer_without_a_mask_gets_one(self):
        self.assertIn('vocab\t257', self.hetrun('--data=byte', '--show'))
        self.assertIn(f'vocab\t{len(set(TEXT)) + 1}', self.hetrun('--data=char', '--show'))

    def test_a_mask_that_the_vocabulary_lacks_is_refused(self):
        self.write_tokenizer(mask_token='<mask>')
        self.assertIn("recipe.lua:5: the tokenizer's mask_token '<mask>' is not in its vocabulary",
                      self.hetrun(code=2))


if __name__ == '__main__':
    unittest.main()
