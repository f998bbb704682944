#!/usr/bin/env python3
"""recipes/finetune.lua against a plain loop of PyTorch and transformers: a small Qwen 2 on chats, with the loss on what the assistant
says, 20 steps from the same weights. Batches have unequal numbers of tokens that count. Losses agree to 1e-4 at every step, of one
rank in micro-batches, of two ranks that share a batch unequally, are a pipeline or share each layer, and of a run that goes on under
another plan; and what is saved gives the same validation loss in transformers.

usage: finetune.py HETRUN [unittest arguments]    (exit code 77: transformers or tokenizers is not installed)
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
STEPS, BATCH, CONTEXT, EXAMPLES, HELD = 20, 8, 64, 24, 8
RATE, SEED = 3e-3, 5
# Which examples a step has is hetrun's: they are asked for.
ORDER = '''local het = require "het"
local native = require "het.native"
local corpus = het.data.jsonl { path = "chats.jsonl", model = "model", holdout = %s }
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


def talks(count):
    draw = random.Random(3)
    words = 'the of and to in a is that it was for on are with as at be this have from'.split()

    def say(most):
        return ' '.join(draw.choice(words) for _ in range(draw.randint(1, most)))
    return [[{'role': role, 'content': say(most)} for _ in range(draw.randint(1, 2)) for role, most in (('user', 8), ('assistant', 12))]
            for _ in range(count)]


class Finetuning(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'model').mkdir()
        self.tokenizer = tokenizer_of('Qwen', list(texts(20000).values()), self.folder / 'model', eos='<|im_end|>')
        self.tokenizer.chat_template = plain(CHATML)
        self.tokenizer.save_pretrained(self.folder / 'model')
        torch.manual_seed(1)
        self.model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
            vocab_size=len(self.tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, pad_token_id=None, attn_implementation='eager'))
        self.model.save_pretrained(self.folder / 'model')
        self.talks = talks(EXAMPLES + HELD)
        (self.folder / 'chats.jsonl').write_text(''.join(json.dumps({'messages': talk}) + '\n' for talk in self.talks))
        self.holdout = (HELD - 0.5) / (EXAMPLES + HELD)

    def hetrun(self, *words):
        done = subprocess.run([HETRUN, '--quiet', *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def losses(self, *words, recipe=None, before=()):
        metrics = self.folder / 'metrics.jsonl'
        metrics.unlink(missing_ok=True)
        self.hetrun(*before, recipe or ROOT / 'recipes' / 'finetune.lua', '--model=model', '--data=chats.jsonl', f'--holdout={self.holdout}',
                    f'--context={CONTEXT}', f'--batch={BATCH}', f'--steps={STEPS}', f'--lr={RATE}', '--warmup=4', '--decay=0.1',
                    '--precision=f32', f'--seed={SEED}', '--every=20', '--save=runs/x', f'--metrics={metrics}', *words)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        found = {line['step']: line['loss'] for line in lines if 'loss' in line}
        validation = [line['validation_loss'] for line in lines if 'validation_loss' in line]
        return [found[step] for step in sorted(found)], validation[-1] if validation else None

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
        (self.folder / 'order.lua').write_text(ORDER % (self.holdout, CONTEXT, BATCH, BATCH, SEED, STEPS))
        self.hetrun('--trust', 'order.lua')
        order = json.loads((self.folder / 'order.json').read_text())
        decayed = [p for p in self.model.parameters() if p.dim() >= 2]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        optimizer = torch.optim.AdamW([{'params': decayed, 'weight_decay': 0.1}, {'params': others, 'weight_decay': 0}],
                                      lr=RATE, betas=(0.9, 0.999), eps=1e-8)
        theirs = []
        for step, rows in enumerate(order['train'], 1):
            for group in optimizer.param_groups:
                group['lr'] = RATE * (step / 5 if step <= 4 else 1 - (step - 5) / (STEPS - 4))
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
        recipe = (ROOT / 'recipes' / 'finetune.lua').read_text()
        for name, plan in PLANS.items():
            with self.subTest(plan=name):
                text = recipe.replace('opt.plan and het.plan.auto {} or nil', plan).replace('not opt.plan and opt.microbatch or nil', 'nil')
                (self.folder / 'planned.lua').write_text(text)
                check(self.losses('--overwrite', recipe='planned.lua', before=('--workers', 2)))
        # Nine steps by one plan, and the others by another.
        ours = []
        for name, words in (('unequal', ('--overwrite', '--steps=9')), ('pipeline', ('--resume',))):
            text = recipe.replace('opt.plan and het.plan.auto {} or nil', PLANS[name]).replace(
                'not opt.plan and opt.microbatch or nil', 'nil').replace('warmup = opt.warmup', f'warmup = opt.warmup, steps = {STEPS}')
            (self.folder / 'planned.lua').write_text(text)
            losses, held = self.losses(*words, recipe='planned.lua', before=('--workers', 2))
            ours += losses
        check((ours, held))


if __name__ == '__main__':
    unittest.main()
