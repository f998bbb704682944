#!/usr/bin/env python3
"""A folder of transformers with its tokenizer, fine-tuned by hetrun on text: what is saved is again such a folder, with the tokenizer,
the chat template, the tokens that end a text and the configuration as they were, and transformers gives the same ids. Weights in
pytorch_model.bin are refused with the way to convert them.

usage: folders.py HETRUN    (exit code 77: transformers or tokenizers is not installed)
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from huggingface import transformers
from tokenizer_ids import CASES, make, texts

HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
RECIPE = '''local het = require "het"
local opt = het.options { model = { "model", "folder", path = "read" }, save = { "runs/x", "folder", path = "write" } }
local model = het.load(opt.model, { context = 32 })
print(model:generate { prompt = "the of", tokens = 5 })
return het.train { model = model, data = het.data.text { path = "text.txt", vocabulary = opt.model }, batch = 4, steps = 3,
  optimizer = het.optim.adamw { lr = 1e-3 }, sample = { prompt = "there", tokens = 3 }, save = opt.save, evaluate = { every = 0 } }
'''


class Folders(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'recipe.lua').write_text(RECIPE)
        given = texts(20000)
        (self.folder / 'text.txt').write_text(given['English'])
        self.model = self.folder / 'model'
        self.model.mkdir()
        tokenizer = make(CASES['Llama 3'], list(given.values()), self.model)
        self.end = tokenizer.token_to_id('<|end|>')
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token='<|begin|>', eos_token='<|end|>')
        self.tokenizer.chat_template = '{% for m in messages %}{{ m.content }}{% endfor %}'
        self.tokenizer.save_pretrained(self.model)
        transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=self.end)).save_pretrained(self.model)

    def hetrun(self, *words, code=0):
        done = subprocess.run([HETRUN, '--quiet', 'recipe.lua', *words], cwd=self.folder, capture_output=True, text=True, timeout=120,
                              check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_what_is_saved_is_what_was_loaded(self):
        self.hetrun()
        self.hetrun('--model=runs/x', '--save=runs/y')
        before = json.loads((self.model / 'config.json').read_text())
        for place in ('runs/x', 'runs/y'):
            saved = self.folder / place
            for name in ('tokenizer.json', 'tokenizer_config.json', 'generation_config.json', 'chat_template.jinja'):
                self.assertEqual((saved / name).read_bytes(), (self.model / name).read_bytes(), name)
            after = json.loads((saved / 'config.json').read_text())
            del after['hetrun_version']
            self.assertEqual(after, before)
            tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
            self.assertEqual(tokenizer('the of it')['input_ids'], self.tokenizer('the of it')['input_ids'])
            self.assertEqual(tokenizer.chat_template, self.tokenizer.chat_template)
            model = transformers.AutoModelForCausalLM.from_pretrained(saved)
            self.assertEqual(model.generation_config.eos_token_id, self.end)

    def test_pickled_weights_are_refused(self):
        (self.model / 'model.safetensors').rename(self.model / 'pytorch_model.bin')
        self.assertIn('.save_pretrained(', self.hetrun(code=2).stderr)


if __name__ == '__main__':
    unittest.main()
