#!/usr/bin/env python3
"""Compare hetrun with PyTorch and transformers: models.py HETRUN [unittest arguments].

A small GPT-2, LLaMA and BERT are made by transformers, saved, and trained for 50 steps by both from the same weights on
the same batches: losses agree to 1e-4 relative at every step in f32 and to 1 % in bf16. What hetrun then saves gives the
same logits in transformers as in hetrun (1e-4).
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
STEPS, BATCH, CONTEXT, VOCABULARY = 50, 4, 32, 96

transformers.logging.set_verbosity_error()
torch.set_num_threads(2)


def gpt2(heads=3):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=48, n_layer=3, n_head=heads, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, attn_implementation='eager'))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=48, intermediate_size=112,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False,
        attn_implementation='eager'))


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False,
        sliding_window=None, attn_implementation='eager'))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=257, max_position_embeddings=CONTEXT, hidden_size=48, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation='eager'))


def logits_of(model, inputs):
    return model(input_ids=inputs).logits


def train(model, batches):
    """The losses of STEPS steps of AdamW, as train.lua sets it."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{'params': decayed, 'weight_decay': 0.1}, {'params': others, 'weight_decay': 0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for inputs, labels in zip(batches['inputs'], batches['labels']):
        logits = logits_of(model, torch.tensor(inputs))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(labels).flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


class Models(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        draw = np.random.default_rng(0)
        # Tokens with structure, so that there is something to learn.
        steps = draw.integers(1, 4, 20000).cumsum()
        (steps % VOCABULARY).astype(np.uint16).tofile(self.folder / 'tokens.bin')
        (self.folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 400)

    def hetrun(self, recipe, *words):
        done = subprocess.run([HETRUN, str(HERE / recipe), *words, '--trust', '--quiet'], cwd=self.folder,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def check(self, make):
        torch.manual_seed(7)
        model = make()
        model.save_pretrained(self.folder / 'start')
        source = f'--text={self.folder}/text.txt' if make is bert else f'--tokens={self.folder}/tokens.bin'
        self.hetrun('batches.lua', source, f'--context={CONTEXT}', f'--steps={STEPS}', f'--folder={self.folder}/start',
                    f'--out={self.folder}/batches.json')
        batches = json.loads((self.folder / 'batches.json').read_text())
        with torch.no_grad():
            expected = logits_of(model, torch.tensor(batches['inputs'][0])).numpy()
        difference = np.abs(np.array(batches['logits']) - expected).max()
        print(f'{make.__name__}: logits of a loaded model differ by {difference:.1e}')
        self.assertLess(difference, 1e-4)

        reference = np.array(train(model, batches))
        for precision, tolerance in (('f32', 1e-4), ('bf16', 1e-2)):
            metrics = self.folder / f'{precision}.jsonl'
            self.hetrun('train.lua', source, f'--folder={self.folder}/start', f'--steps={STEPS}', f'--precision={precision}',
                        f'--metrics={metrics}', f'--save={self.folder}/{precision}')
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            losses = np.array([line['loss'] for line in lines if 'loss' in line])
            self.assertEqual(len(losses), STEPS)
            self.assertLess(reference[-1], 0.9 * reference[0])
            worst = np.abs(losses / reference - 1).max()
            print(f'{make.__name__} {precision}: losses {reference[0]:.4f} to {reference[-1]:.4f}, '
                  f'worst relative difference {worst:.1e}')
            self.assertLess(worst, tolerance)

        # What hetrun saved, read by transformers.
        saved = type(model).from_pretrained(self.folder / 'f32', attn_implementation='eager')
        self.hetrun('batches.lua', source, f'--context={CONTEXT}', '--steps=1', f'--folder={self.folder}/f32',
                    f'--out={self.folder}/after.json')
        after = json.loads((self.folder / 'after.json').read_text())
        with torch.no_grad():
            expected = logits_of(saved, torch.tensor(after['inputs'][0])).numpy()
        difference = np.abs(np.array(after['logits']) - expected).max()
        print(f'{make.__name__}: logits of a saved model differ by {difference:.1e}')
        self.assertLess(difference, 1e-4)

    def test_gpt2(self):
        self.check(gpt2)

    def test_llama(self):
        self.check(llama)

    def test_bert(self):
        self.check(bert)


if __name__ == '__main__':
    unittest.main()
