#!/usr/bin/env python3
"""recipes/finetune.lua against a plain loop of PyTorch and transformers: a small Qwen 2 on chats, with the loss on what the assistant
says, 20 steps from the same weights. Batches have unequal numbers of tokens that count. Losses agree to 1e-4 at every step, of one
rank in micro-batches, of two ranks that share a batch unequally, are a pipeline or share each layer, and of a run that goes on under
another plan; and what is saved gives the same validation loss in transformers.

usage: finetune.py HETRUN [unittest arguments]    (exit code 77: transformers or tokenizers is not installed)
"""
import random
import unittest

import torch
import tuning
from chat import CHATML, marked, plain
from huggingface import transformers
from tuning import STEPS, rate, say

CONTEXT, EXAMPLES, HELD = 64, 24, 8


def talks(count):
    draw = random.Random(3)
    return [[{'role': role, 'content': say(draw, most)} for _ in range(draw.randint(1, 2)) for role, most in (('user', 8), ('assistant', 12))]
            for _ in range(count)]


class Finetuning(tuning.Case):
    RECIPE, DATA, FILE, CONTEXT, RATE, WORDS = 'finetune', 'jsonl', 'chats.jsonl', CONTEXT, 3e-3, ('--decay=0.1',)

    def setUp(self):
        super().setUp()
        self.talks = talks(EXAMPLES + HELD)
        self.put([{'messages': talk} for talk in self.talks], HELD)

    def losses(self, *words, **how):
        steps, held = self.metrics(*words, **how)
        return [step['loss'] for step in steps], held and held['validation_loss']

    def encoded(self, rows):
        """Examples whose inputs these rows are: ids, and which of them the assistant says."""
        made = [self.tokenizer.apply_chat_template(talk, chat_template=marked(CHATML), return_dict=True, return_assistant_tokens_mask=True)
                for talk in self.talks]
        by_start = {tuple((each['input_ids'][:-1] + [0] * CONTEXT)[:CONTEXT]): each for each in made}
        return [by_start[tuple(row)] for row in rows]

    def loss_of(self, model, rows):
        """The mean over the tokens that count, each example alone."""
        total, counted = 0, 0
        for each in self.encoded(rows):
            ids, mask = torch.tensor([each['input_ids']])[:, :CONTEXT + 1], torch.tensor(each['assistant_masks'])[1:CONTEXT + 1]
            logits = model(input_ids=ids[:, :-1]).logits[0]
            total = total + (torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction='none') * mask).sum()
            counted += mask.sum().item()
        return total / counted

    def test_losses_are_those_of_a_plain_loop(self):
        order = self.order()
        decayed = [p for p in self.model.parameters() if p.dim() >= 2]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        optimizer = torch.optim.AdamW([{'params': decayed, 'weight_decay': 0.1}, {'params': others, 'weight_decay': 0}],
                                      lr=self.RATE, betas=(0.9, 0.999), eps=1e-8)
        theirs = []
        for step, rows in enumerate(order['train'], 1):
            for group in optimizer.param_groups:
                group['lr'] = rate(step, self.RATE)
            loss = self.loss_of(self.model, rows)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            theirs.append(loss.item())
        with torch.no_grad():
            theirs_held = self.loss_of(self.model, order['holdout'][0]).item()

        def check(found):
            ours, held = found
            self.assertEqual(len(ours), STEPS)
            for our, their in zip(ours, theirs):
                self.assertAlmostEqual(our / their, 1, delta=1e-4)
            self.assertAlmostEqual(held / theirs_held, 1, delta=1e-4)
        self.assertLess(theirs[-1], theirs[0] - 0.3)
        check(self.losses())
        saved = transformers.AutoModelForCausalLM.from_pretrained(self.folder / 'runs/x')
        with torch.no_grad():
            self.assertAlmostEqual(self.loss_of(saved, order['holdout'][0]).item() / theirs_held, 1, delta=1e-4)
        self.assertEqual(transformers.AutoTokenizer.from_pretrained(self.folder / 'runs/x').chat_template, plain(CHATML))
        self.check_plans(self.losses, check)


if __name__ == '__main__':
    unittest.main()
