#!/usr/bin/env python3
"""recipes/dpo.lua against a plain loop of PyTorch and transformers: a small Qwen 2 on pairs of answers, texts and messages, 20 steps
from the same weights with a frozen copy of them as the reference. Losses and figures agree to 1e-4 at every step, of one rank in
micro-batches, of two ranks that share a batch unequally, are a pipeline or share each layer, and of a run that goes on under another
plan; and what is saved has the same rewards in transformers. With adapters the same holds of PEFT, whose reference is the model
without them.

usage: dpo.py HETRUN [unittest arguments]    (exit code 77: transformers or tokenizers is not installed)
"""
import random
import unittest

import torch
import tuning
from chat import CHATML, marked
from huggingface import transformers
from tuning import END, STEPS, rate, say

CONTEXT, EXAMPLES, HELD, BETA = 48, 24, 7, 0.5   # the last row of the validation has no pair


def pairs_of_answers(count):
    """Lines of the three forms: texts, messages, and messages whose prompt is what both begin with."""
    draw, made = random.Random(4), []
    for i in range(count):
        prompt, answers = say(draw, 8), [say(draw, 12) + ' yes', say(draw, 12) + ' no']
        if i % 3 == 0:
            made.append({'prompt': prompt, 'chosen': ' ' + answers[0], 'rejected': ' ' + answers[1]})
            continue
        before = [{'role': 'user', 'content': prompt}]
        chosen, rejected = ([{'role': 'assistant', 'content': answer}] for answer in answers)
        made.append({'prompt': before, 'chosen': chosen, 'rejected': rejected} if i % 3 == 1
                    else {'prompt': prompt, 'chosen': before + chosen, 'rejected': before + rejected})
    return made


class Preferences(tuning.Case):
    RECIPE, DATA, FILE, CONTEXT, RATE, WORDS = 'dpo', 'preferences', 'pairs.jsonl', CONTEXT, 1e-3, (f'--beta={BETA}',)

    def setUp(self):
        super().setUp()
        self.pairs = pairs_of_answers(EXAMPLES + HELD)
        self.put(self.pairs, HELD)
        self.encoded = {}
        for pair in self.pairs:
            answers = [self.encode(pair, side) for side in ('chosen', 'rejected')]
            self.encoded[tuple((answers[0][0][:-1] + [0] * CONTEXT)[:CONTEXT])] = answers
        self.assertEqual(len(self.encoded), len(self.pairs))

    def encode(self, pair, side):
        """Ids of an answer with its prompt, and which of them are the answer's."""
        if isinstance(pair['chosen'], str):
            before = self.tokenizer(pair['prompt'])['input_ids']
            ids = self.tokenizer(pair['prompt'] + pair[side] + END)['input_ids']
            self.assertEqual(ids[:len(before)], before)
            return ids, [0] * len(before) + [1] * (len(ids) - len(before))
        messages = (pair['prompt'] if isinstance(pair['prompt'], list) else []) + pair[side]
        made = self.tokenizer.apply_chat_template(messages, chat_template=marked(CHATML), return_dict=True,
                                                  return_assistant_tokens_mask=True)
        return made['input_ids'], made['assistant_masks']

    def run_recipe(self, *words, **how):
        """Of each step the loss with the figures, and those of the last evaluation."""
        steps, held = self.metrics(*words, **how)
        return ([{'loss': step['loss'], **step['figures']} for step in steps],
                held and {'loss': held['validation_loss'], **held['validation_figures']})

    def rewards(self, model, reference, rows):
        """[pairs, 2]: beta times what the model makes each answer more probable than the reference does."""
        made = []
        for row in rows:
            if tuple(row) not in self.encoded:
                continue
            made.append(torch.stack([self.log_probability(model, *each) - reference(each) for each in self.encoded[tuple(row)]]))
        return BETA * torch.stack(made)

    @staticmethod
    def log_probability(model, ids, counted):
        ids, counted = torch.tensor([ids])[:, :CONTEXT + 1], torch.tensor(counted)[1:CONTEXT + 1]
        logits = model(input_ids=ids[:, :-1]).logits[0]
        return (torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0] * counted).sum()

    @staticmethod
    def numbers(rewards):
        chosen, rejected = rewards.unbind(1)
        return {'loss': -torch.nn.functional.logsigmoid(chosen - rejected).mean(), 'accuracy': (chosen > rejected).float().mean(),
                'margin': (chosen - rejected).mean(), 'chosen': chosen.mean(), 'rejected': rejected.mean()}

    def plain_loop(self, model, reference, order):
        """As run_recipe, of PyTorch. Every second row is a chosen answer."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
        steps = []
        for step, rows in enumerate(order['train'], 1):
            for group in optimizer.param_groups:
                group['lr'] = rate(step, self.RATE)
            numbers = self.numbers(self.rewards(model, reference, rows[::2]))
            optimizer.zero_grad()
            numbers['loss'].backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            steps.append({name: number.item() for name, number in numbers.items()})
        with torch.no_grad():
            held = self.numbers(self.rewards(model, reference, order['holdout'][0][::2]))
        self.assertLess(steps[-1]['loss'], steps[0]['loss'] - 0.1)
        return steps, {name: number.item() for name, number in held.items()}

    def compare(self, found, wanted):
        ours, our_held = found
        self.assertEqual(len(ours), STEPS)
        for our, their in zip([*ours, our_held], [*wanted[0], wanted[1]]):
            self.assertEqual(our.keys(), their.keys())
            self.assertAlmostEqual(our['loss'] / their['loss'], 1, delta=1e-4)
            for name in our:
                self.assertAlmostEqual(our[name], their[name], delta=1e-4 * max(1, abs(their[name])), msg=name)

    def reference_of(self, model):
        """A function of an answer: its log-probability by the model as it is now."""
        with torch.no_grad():
            known = {id(each): self.log_probability(model, *each).item() for pair in self.encoded.values() for each in pair}
        return lambda each: known[id(each)]

    def test_training_all_weights_is_a_plain_loop(self):
        order = self.order()
        reference = self.reference_of(self.model)
        wanted = self.plain_loop(self.model, reference, order)
        self.compare(self.run_recipe('--rank=0'), wanted)
        saved = transformers.AutoModelForCausalLM.from_pretrained(self.folder / 'runs/x')
        with torch.no_grad():
            held = self.numbers(self.rewards(saved, reference, order['holdout'][0][::2]))
        self.assertAlmostEqual(held['loss'].item() / wanted[1]['loss'], 1, delta=1e-4)
        self.check_plans(self.run_recipe, lambda found: self.compare(found, wanted), ['--rank=0'])

    def test_training_adapters_is_a_plain_loop_of_peft(self):
        try:
            import peft
        except ImportError:
            self.skipTest('peft is not installed')
        # Adapters as they begin: A is drawn, B is 0, and a step with hardly any rate leaves both.
        self.run_recipe('--steps=1', '--lr=1e-30', '--rank=4', '--alpha=8')
        model = peft.PeftModel.from_pretrained(self.model, self.folder / 'runs/x', is_trainable=True)
        reference = self.reference_of(self.model)
        wanted = self.plain_loop(model, reference, self.order())
        self.compare(self.run_recipe('--overwrite', '--rank=4', '--alpha=8'), wanted)
        self.check_plans(self.run_recipe, lambda found: self.compare(found, wanted), ['--rank=4', '--alpha=8'])


if __name__ == '__main__':
    unittest.main()
