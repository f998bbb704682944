#!/usr/bin/env python3
"""recipes/dpo.lua against a plain loop of PyTorch and transformers: a small Qwen 2 on pairs of answers, texts and messages, 20 steps
from the same weights with a frozen copy of them as the reference. Losses and figures agree to 1e-4 at every step, of one rank in
micro-batches, of two ranks that share a batch unequally, are a pipeline or share each layer, and of a run that goes on under another
plan; and what is saved has the same rewards in transformers. With adapters the same holds of PEFT, whose reference is the model
without them.

usage: dpo.py HETRUN [unittest arguments]    (exit code 77: transformers or tokenizers is not installed)
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import torch
from chat import CHATML, marked, plain, tokenizer_of
from huggingface import transformers
from tokenizer_ids import texts

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
STEPS, BATCH, CONTEXT, EXAMPLES, HELD = 20, 8, 48, 24, 7   # the last row of the validation has no pair
RATE, SEED, BETA, END = 1e-3, 5, 0.5, '<|im_end|>'
# Which pairs a step has is hetrun's: they are asked for.
ORDER = '''local het = require "het"
local native = require "het.native"
local corpus = het.data.preferences { path = "pairs.jsonl", model = "model", holdout = %s }
local rows = {}
for _, split in ipairs { "train", "holdout" } do
  local sampler = corpus:sampler { context = %d, batch = %d, microbatch = %d, split = split, seed = %d }
  rows[split] = {}
  for i = 1, split == "train" and %d or 1 do rows[split][i] = sampler:next().inputs[1]:tolist() end
end
native.write_text("order.json", native.json_encode(rows))
os.exit(0)
'''
PLANS = {
    'unequal': 'het.plan { microbatch = 1, het.pipeline { microbatches = 5, het.stage { "a:0" } }, '
               'het.pipeline { microbatches = 3, het.stage { "a:1" } } }',
    'pipeline': 'het.plan { microbatch = 2, het.pipeline { microbatches = 4, het.stage { "a:0", layers = 1 }, het.stage { "a:1" } } }',
    'tensor': 'het.plan { tensor = 2, microbatch = 4, het.pipeline { microbatches = 2, het.stage { "a:0-1" } } }',
}


def pairs_of_answers(count):
    """Lines of the three forms: texts, messages, and messages whose prompt is what both begin with."""
    draw = random.Random(4)
    words = 'the of and to in a is that it was for on are with as at be this have from'.split()

    def say(most):
        return ' '.join(draw.choice(words) for _ in range(draw.randint(1, most)))
    made = []
    for i in range(count):
        prompt, answers = say(8), [say(12) + ' yes', say(12) + ' no']
        if i % 3 == 0:
            made.append({'prompt': prompt, 'chosen': ' ' + answers[0], 'rejected': ' ' + answers[1]})
            continue
        before = [{'role': 'user', 'content': prompt}]
        chosen, rejected = ([{'role': 'assistant', 'content': answer}] for answer in answers)
        made.append({'prompt': before, 'chosen': chosen, 'rejected': rejected} if i % 3 == 1
                    else {'prompt': prompt, 'chosen': before + chosen, 'rejected': before + rejected})
    return made


class Preferences(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'model').mkdir()
        self.tokenizer = tokenizer_of('Qwen', list(texts(20000).values()), self.folder / 'model', eos=END)
        self.tokenizer.chat_template = plain(CHATML)
        self.tokenizer.save_pretrained(self.folder / 'model')
        torch.manual_seed(1)
        self.model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
            vocab_size=len(self.tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, pad_token_id=None, attn_implementation='eager'))
        self.model.save_pretrained(self.folder / 'model')
        self.pairs = pairs_of_answers(EXAMPLES + HELD)
        (self.folder / 'pairs.jsonl').write_text(''.join(json.dumps(pair) + '\n' for pair in self.pairs))
        self.holdout = (HELD - 0.5) / (EXAMPLES + HELD)
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

    def hetrun(self, *words):
        done = subprocess.run([HETRUN, '--quiet', *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def order(self):
        (self.folder / 'order.lua').write_text(ORDER % (self.holdout, CONTEXT, BATCH, BATCH, SEED, STEPS))
        self.hetrun('--trust', 'order.lua')
        return json.loads((self.folder / 'order.json').read_text())

    def run_recipe(self, *words, recipe=None, before=()):
        """Of each step the loss with the figures, and those of the last evaluation."""
        metrics = self.folder / 'metrics.jsonl'
        metrics.unlink(missing_ok=True)
        self.hetrun(*before, recipe or ROOT / 'recipes' / 'dpo.lua', '--model=model', '--data=pairs.jsonl', f'--holdout={self.holdout}',
                    f'--context={CONTEXT}', f'--batch={BATCH}', f'--steps={STEPS}', f'--lr={RATE}', '--warmup=4', f'--beta={BETA}',
                    '--precision=f32', f'--seed={SEED}', '--every=20', '--save=runs/x', f'--metrics={metrics}', *words)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        steps = {line['step']: {'loss': line['loss'], **line['figures']} for line in lines if 'loss' in line}
        held = [{'loss': line['validation_loss'], **line['validation_figures']} for line in lines if 'validation_loss' in line]
        return [steps[step] for step in sorted(steps)], held[-1] if held else None

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
        optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
        steps = []
        for step, rows in enumerate(order['train'], 1):
            for group in optimizer.param_groups:
                group['lr'] = RATE * (step / 5 if step <= 4 else 1 - (step - 5) / (STEPS - 4))
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

    def check_plans(self, wanted, words):
        recipe = (ROOT / 'recipes' / 'dpo.lua').read_text()

        def planned(plan):
            text = recipe.replace('opt.plan and het.plan.auto {} or nil', PLANS[plan])
            text = text.replace('not opt.plan and opt.microbatch or nil', 'nil')
            (self.folder / 'planned.lua').write_text(text.replace('warmup = opt.warmup', f'warmup = opt.warmup, steps = {STEPS}'))
            return {'recipe': 'planned.lua', 'before': ('--workers', 2)}
        for name in PLANS:
            with self.subTest(plan=name):
                self.compare(self.run_recipe('--overwrite', *words, **planned(name)), wanted)
        with self.subTest(plan='nine steps by one plan, and the others by another'):
            first, _ = self.run_recipe('--overwrite', '--steps=9', *words, **planned('unequal'))
            others, held = self.run_recipe('--resume', *words, **planned('pipeline'))
            self.compare((first + others, held), wanted)

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
        self.check_plans(wanted, ['--rank=0'])

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
        self.check_plans(wanted, ['--rank=4', '--alpha=8'])


if __name__ == '__main__':
    unittest.main()
