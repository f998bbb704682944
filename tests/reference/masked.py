#!/usr/bin/env python3
"""Masked language models trained further, with the tokenizers of BERT, RoBERTa and ALBERT: data.masked masks no token that is special to
transformers' DataCollatorForLanguageModeling, hides by the same mask, and has the tokens around each
window that transformers has around a text; the losses of a BERT's steps equal PyTorch's on the same batches, and what is saved has the
vocabulary that it came with.

usage: masked.py HETRUN    (exit code 77: transformers or tokenizers is not installed)
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from huggingface import torch, transformers
from tokenizer_ids import AddedToken, CASES, make, processors, texts

HERE = pathlib.Path(__file__).resolve().parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
BERT = {'unk_token': '[UNK]', 'cls_token': '[CLS]', 'sep_token': '[SEP]', 'pad_token': '[PAD]', 'mask_token': '[MASK]'}
ROBERTA = {'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': '<unk>', 'cls_token': '<s>', 'sep_token': '</s>', 'pad_token': '<pad>',
           'mask_token': AddedToken('<hidden>', lstrip=True, special=True), 'additional_special_tokens': ['<|begin|>']}
STEPS = 20


class Masked(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'model').mkdir()

    def tokenizer(self, case, named):
        """As transformers has it, and a text with special tokens in it."""
        given = texts(20000)
        made = make(CASES[case], list(given.values()), self.folder / 'model')
        begin, end = named['cls_token'], named['sep_token']
        made.add_special_tokens([begin, end])
        ends = [(token, made.token_to_id(token)) for token in (end, begin)]
        made.post_processor = {'BERT': processors.BertProcessing(*ends), 'RoBERTa': processors.RobertaProcessing(*ends)}.get(
            case, processors.TemplateProcessing(single=f'{begin} $A {end}', special_tokens=ends))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **named)
        tokenizer.save_pretrained(self.folder / 'model')
        words = given['English'].split(' ')
        some = [str(token) for token in named.values() if isinstance(token, (str, AddedToken))] + ['<|begin|>', '☃']
        (self.folder / 'text.txt').write_text(' '.join(f'{word} {some[i % len(some)]}' if i % 4 == 0 else word
                                                       for i, word in enumerate(words)))
        return tokenizer

    def hetrun(self, *words):
        done = subprocess.run([HETRUN, '--quiet', '--trust', str(HERE / 'masked.lua'), *words], cwd=self.folder, capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def batches(self):
        self.hetrun()
        return json.loads((self.folder / 'batches.json').read_text())

    def test_what_is_special_to_transformers_is_not_masked(self):
        for case, named in (('BERT', BERT), ('RoBERTa', ROBERTA), ('Unigram', {**ROBERTA, 'mask_token': '[MASK]'})):
            with self.subTest(case=case):
                tokenizer = self.tokenizer(case, named)
                batches = self.batches()
                self.assertEqual(batches['vocab'], len(tokenizer))
                inputs, labels = torch.tensor(batches['inputs']).flatten(0, 1), torch.tensor(batches['labels']).flatten(0, 1)
                chosen = labels != -100
                given = torch.where(chosen, labels, inputs)
                around = tokenizer('')['input_ids']   # as transformers has them around each text
                self.assertEqual(around, [tokenizer.cls_token_id, tokenizer.sep_token_id])
                self.assertTrue((given[:, [0, -1]] == torch.tensor(around)).all().item())
                special = torch.tensor([tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True)
                                        for row in given.tolist()]).bool()
                self.assertGreater(special.sum().item(), 100)
                self.assertFalse((chosen & special).any().item())
                self.assertFalse((inputs[~chosen] == tokenizer.mask_token_id).logical_and(~special[~chosen]).any().item())
                self.assertAlmostEqual(chosen.sum().item() / (~special).sum().item(), 0.15, delta=0.02)
                hidden = (inputs == tokenizer.mask_token_id) & chosen
                self.assertAlmostEqual(hidden.sum().item() / chosen.sum().item(), 0.8, delta=0.04)
                # transformers masks the same way, and the shares above are its own.
                collator = transformers.DataCollatorForLanguageModeling(tokenizer, seed=1)
                theirs = collator([{'input_ids': row} for row in given.tolist()])
                self.assertFalse(((theirs['labels'] != -100) & special).any().item())
                swapped = chosen & ~hidden
                drawn = torch.tensor([tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True)
                                      for row in inputs.tolist()]).bool()
                self.assertFalse((swapped & drawn).any().item())

    def small_bert(self, tokenizer):
        """A BERT to train, also saved in the folder of the model."""
        torch.manual_seed(1)
        model = transformers.BertForMaskedLM(transformers.BertConfig(
            vocab_size=len(tokenizer), max_position_embeddings=32, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation='eager',
            pad_token_id=None))
        model.save_pretrained(self.folder / 'model')
        return model

    def test_a_bert_learns_on_as_in_pytorch(self):
        tokenizer = self.tokenizer('BERT', BERT)
        model = self.small_bert(tokenizer)
        batches = self.batches()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
        wanted = []
        for inputs, labels in list(zip(batches['inputs'], batches['labels']))[:STEPS]:
            logits = model(input_ids=torch.tensor(inputs)).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(labels).flatten(), ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            wanted.append(loss.item())
        self.hetrun(f'--steps={STEPS}', '--metrics=metrics.jsonl')
        lines = [json.loads(line) for line in (self.folder / 'metrics.jsonl').read_text().splitlines()]
        found = [line['loss'] for line in lines if 'gradient_norm' in line]
        self.assertEqual(len(found), STEPS)
        for ours, theirs in zip(found, wanted):
            self.assertAlmostEqual(ours, theirs, delta=1e-4 * theirs)
        saved = transformers.BertForMaskedLM.from_pretrained(self.folder / 'runs/x')
        self.assertEqual(saved.config.vocab_size, len(tokenizer))
        again = transformers.AutoTokenizer.from_pretrained(self.folder / 'runs/x')
        self.assertEqual((again.mask_token_id, again.all_special_ids), (tokenizer.mask_token_id, tokenizer.all_special_ids))

    def test_padded_samples_train_as_with_an_attention_mask(self):
        tokenizer = self.tokenizer('BERT', BERT)
        model = self.small_bert(tokenizer)
        pad, lengths = tokenizer.pad_token_id, torch.randint(3, 33, (64,))
        seen = torch.arange(32)[None, :] < lengths[:, None]
        labels = torch.randint(5, len(tokenizer), (64, 32))
        hidden = torch.rand(64, 32) < 0.3
        inputs = torch.where(seen, torch.where(hidden, tokenizer.mask_token_id, labels), pad)
        labels = torch.where(seen & hidden, labels, -100)
        (self.folder / 'pairs.json').write_text(json.dumps({'inputs': inputs.tolist(), 'labels': labels.tolist(), 'pad': pad}))
        self.hetrun('--padded', '--steps=12', '--metrics=metrics.jsonl')
        lines = [json.loads(line) for line in (self.folder / 'metrics.jsonl').read_text().splitlines()]
        found = [line['loss'] for line in lines if 'gradient_norm' in line]
        order = json.loads((self.folder / 'batches.json').read_text())   # rows of the batches
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
        self.assertEqual((len(found), len(order)), (12, 12))
        for ours, rows in zip(found, order):
            mask = seen[rows].long()
            logits = model(input_ids=inputs[rows], attention_mask=mask).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[rows].flatten(), ignore_index=-100)
            self.assertAlmostEqual(ours, loss.item(), delta=1e-4 * loss.item())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        saved = transformers.BertForMaskedLM.from_pretrained(self.folder / 'runs/x')
        for name, parameter in model.named_parameters():
            self.assertLess((saved.get_parameter(name) - parameter).abs().max().item(), 1e-4, name)
        self.assertEqual(json.loads((self.folder / 'runs/x/config.json').read_text())['hetrun_padding'], pad)


if __name__ == '__main__':
    unittest.main()
