"""What finetune.py and dpo.py share: a small Qwen 2 with a chat template, runs of a recipe that trains it further, and the plans under
which its numbers stay the same."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from chat import CHATML, plain, tokenizer_of
from huggingface import transformers
from tokenizer_ids import texts

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
STEPS, BATCH, SEED, WARMUP, END = 20, 8, 5, 4, '<|im_end|>'
# Which examples a step has is hetrun's: they are asked for.
ORDER = '''local het = require "het"
local native = require "het.native"
local corpus = het.data.%s { path = "%s", model = "model", holdout = %s }
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


def say(draw, most):
    """Words by chance, at most so many."""
    words = 'the of and to in a is that it was for on are with as at be this have from'.split()
    return ' '.join(draw.choice(words) for _ in range(draw.randint(1, most)))


def rate(step, highest):
    """The learning rate of a step, from 1 on, as optim.linear has it."""
    return highest * (step / (WARMUP + 1) if step <= WARMUP else 1 - (step - WARMUP - 1) / (STEPS - WARMUP))


class Case(unittest.TestCase):
    """Of a recipe: its name, the constructor and file of its data, tokens of a sample, the highest rate, and more options."""
    RECIPE = DATA = FILE = ''
    CONTEXT, RATE, WORDS = 0, 0.0, ()

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

    def put(self, lines, held):
        """The data, of which the last `held` lines are for validation."""
        (self.folder / self.FILE).write_text(''.join(json.dumps(line) + '\n' for line in lines))
        self.holdout = (held - 0.5) / len(lines)

    def hetrun(self, *words):
        done = subprocess.run([HETRUN, '--quiet', *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def order(self):
        """The rows of inputs of each step, and of the validation."""
        (self.folder / 'order.lua').write_text(
            ORDER % (self.DATA, self.FILE, self.holdout, self.CONTEXT, BATCH, BATCH, SEED, STEPS))
        self.hetrun('--trust', 'order.lua')
        return json.loads((self.folder / 'order.json').read_text())

    def metrics(self, *words, recipe=None, before=()):
        """Of a run of the recipe: a record of each step, in order, and that of the last evaluation or None."""
        metrics = self.folder / 'metrics.jsonl'
        metrics.unlink(missing_ok=True)
        self.hetrun(*before, recipe or ROOT / 'recipes' / f'{self.RECIPE}.lua', '--model=model', f'--data={self.FILE}',
                    f'--holdout={self.holdout}', f'--context={self.CONTEXT}', f'--batch={BATCH}', f'--steps={STEPS}', f'--lr={self.RATE}',
                    f'--warmup={WARMUP}', '--precision=f32', f'--seed={SEED}', '--every=20', '--save=runs/x', f'--metrics={metrics}',
                    *self.WORDS, *words)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        steps = {line['step']: line for line in lines if 'loss' in line}
        held = [line for line in lines if 'validation_loss' in line]
        return [steps[step] for step in sorted(steps)], held[-1] if held else None

    def planned(self, plan):
        """What metrics() takes for a run of two ranks under a plan."""
        text = (ROOT / 'recipes' / f'{self.RECIPE}.lua').read_text()
        text = text.replace('opt.plan and het.plan.auto {} or nil', PLANS[plan]).replace('not opt.plan and opt.microbatch or nil', 'nil')
        (self.folder / 'planned.lua').write_text(text.replace('warmup = opt.warmup', f'warmup = opt.warmup, steps = {STEPS}'))
        return {'recipe': 'planned.lua', 'before': ('--workers', 2)}

    def check_plans(self, run, check, words=()):
        """`run`: as metrics(), of what `check` compares: numbers of each step, and those of the validation."""
        for plan in PLANS:
            with self.subTest(plan=plan):
                check(run('--overwrite', *words, **self.planned(plan)))
        with self.subTest(plan='nine steps by one plan, and the others by another'):
            first, _ = run('--overwrite', '--steps=9', *words, **self.planned('unequal'))
            others, held = run('--resume', *words, **self.planned('pipeline'))
            check((first + others, held))
