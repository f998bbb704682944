#!/usr/bin/env python3
"""Models that hetrun trains from scratch on text, by each of its tokenizers, in transformers: AutoTokenizer gives the same ids and the
text again, and AutoModelForCausalLM knows the token that ends a text, if there is one.

usage: scratch.py HETRUN [unittest arguments]    (exit code 77: transformers or tokenizers is not installed)
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from huggingface import transformers
from tokenizer_ids import CASES, make, texts
from tokenizers import ByteLevelBPETokenizer

try:
    import sentencepiece
except ImportError:
    sentencepiece = None

HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
RECIPE = '''local het = require "het"
local opt = het.options { tokenizer = { "char", "which" }, model = { "", "its files", path = "read" },
  save = { "runs/x", "folder", path = "write" }, resume = { false, "from runs/x" } }
local data = het.data.text { path = "text.txt", tokenizer = opt.tokenizer, model = opt.model ~= "" and opt.model or nil }
return het.train {
  model = opt.resume and het.load "runs/x" or het.nn.llama { vocab = data.vocab, context = 32, width = 32, layers = 2, heads = 2 },
  data = data, batch = 4, steps = 3, optimizer = het.optim.adamw { lr = 1e-3 }, save = opt.save, evaluate = { every = 0 },
  after = function() print(table.concat(data:encode(io.open("text.txt"):read "*a"), " ")) end,
}
'''


class Scratch(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'recipe.lua').write_text(RECIPE)
        # No carriage returns, which Python's text mode would change, and nothing that normalization would.
        self.text = texts(4000)['English'] + "It's 12 o'clock \\ \"now\"\t naïve café — 你好 🙂\n\n  end \n"
        (self.folder / 'text.txt').write_text(self.text)

    def train(self, *words):
        done = subprocess.run([HETRUN, '--quiet', '--trust', 'recipe.lua', *words], cwd=self.folder, capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [int(word) for word in done.stdout.splitlines()[0].split()]

    def check(self, *words, end=None, text=None):
        ids = self.train(*words)
        for saved in ('runs/x', 'runs/y'):
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder / saved)
            self.assertEqual(tokenizer(self.text, add_special_tokens=False)['input_ids'], ids)
            self.assertEqual(tokenizer.decode(ids, clean_up_tokenization_spaces=False), text or self.text)
            model = transformers.AutoModelForCausalLM.from_pretrained(self.folder / saved)
            self.assertEqual(model.generation_config.eos_token_id, end)
            self.assertEqual(model.config.eos_token_id, end)
            if saved == 'runs/x':   # a model that was loaded keeps all of it
                self.train(*words, '--resume', '--save=runs/y')
        return tokenizer

    def test_char(self):
        self.check('--tokenizer=char')

    def test_byte(self):
        self.check('--tokenizer=byte')

    def test_bpe(self):
        made = ByteLevelBPETokenizer()
        made.train_from_iterator([self.text], vocab_size=400, special_tokens=['<|endoftext|>'], show_progress=False)
        (self.folder / 'bpe').mkdir()
        made.save_model(str(self.folder / 'bpe'))
        tokenizer = self.check('--tokenizer=bpe', '--model=bpe', end=0)
        self.assertEqual(tokenizer.eos_token_id, 0)

    def test_sentencepiece(self):
        if sentencepiece is None:
            self.skipTest('sentencepiece is not installed')
        sentencepiece.SentencePieceTrainer.train(input=str(self.folder / 'text.txt'), model_prefix=str(self.folder / 'sp'), vocab_size=300,
                                                 model_type='bpe', character_coverage=1.0, minloglevel=2)
        decoded = sentencepiece.SentencePieceProcessor(model_file=str(self.folder / 'sp.model'))
        self.check('--tokenizer=sentencepiece', '--model=sp.model', text=decoded.decode(decoded.encode(self.text)))

    def test_a_tokenizer_of_transformers(self):
        (self.folder / 'words').mkdir()
        made = make(CASES['Llama 3'], [self.text], self.folder / 'words')
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token='<|begin|>', eos_token='<|end|>')
        fast.save_pretrained(self.folder / 'words')
        end = made.token_to_id('<|end|>')
        tokenizer = self.check('--tokenizer=huggingface', '--model=words', end=end)
        self.assertEqual(tokenizer.eos_token_id, end)
        said = json.loads((self.folder / 'runs/x/generation_config.json').read_text())
        self.assertEqual(said, {'bos_token_id': made.token_to_id('<|begin|>'), 'eos_token_id': end})

    def test_another_tokenizer_takes_the_place_of_all_files(self):
        self.test_a_tokenizer_of_transformers()
        saved = self.folder / 'runs/x'
        self.assertTrue((saved / 'generation_config.json').exists())
        for words in (('--save=runs/other', '--resume'), ('--save=runs/x', '--overwrite')):   # loaded; from scratch
            ids = self.train('--tokenizer=char', *words)
            folder = self.folder / words[0].partition('=')[2]
            self.assertEqual({path.name for path in folder.iterdir()},
                             {'training.snapshot', 'model.safetensors', 'vocabulary.json', 'tokenizer.json', 'tokenizer_config.json',
                              'config.json'})
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            self.assertEqual(tokenizer(self.text, add_special_tokens=False)['input_ids'], ids)
            self.assertIsNone(transformers.AutoModelForCausalLM.from_pretrained(folder).config.eos_token_id)


if __name__ == '__main__':
    unittest.main()
