#!/usr/bin/env python3
"""The optimizers that are written with operators against PyTorch's, on a small GPT-2: optimizers.py HETRUN [unittest arguments].

Losses of 50 steps agree to 1e-4 at every step, of one rank, and of two that divide the optimizer's state, each layer or the layers.
Lion is not in PyTorch: its formula is written out here. PyTorch's Muon multiplies in bf16: here in f32, as hetrun does in f32.
"""
import json
import pathlib
import subprocess
import tempfile
import unittest

import models
import numpy as np
import torch

STEPS = 50


class Lion(torch.optim.Optimizer):
    def __init__(self, groups, lr):
        super().__init__(groups, {'lr': lr, 'weight_decay': 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group['params']:
                m = self.state[p].setdefault('m', torch.zeros_like(p))
                direction = (0.9 * m + 0.1 * p.grad).sign()
                p.mul_(1 - group['lr'] * group['weight_decay']).sub_(group['lr'] * direction)
                m.mul_(0.99).add_(0.01 * p.grad)


def orthogonal(grad, coefficients, steps, eps):
    """torch.optim._muon's iteration, but in f32."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def make(name, model):
    """The optimizers of the model's parameters, as optimizers.lua sets them, and the rate of each step relative to the first."""
    def groups(parameters, decay):
        matrices = [p for p in parameters if p.dim() >= 2]
        vectors = [p for p in parameters if p.dim() < 2]
        return [{'params': matrices, 'weight_decay': decay}, {'params': vectors, 'weight_decay': 0}]
    everything = list(model.parameters())
    if name in ('adamw', 'custom', 'rate'):
        return [torch.optim.AdamW(groups(everything, 0.1), lr=1e-3, betas=(0.9, 0.95), eps=1e-8)]
    if name == 'lion':
        return [Lion(groups(everything, 0.3), lr=3e-4)]
    if name == 'adafactor':
        return [torch.optim.Adafactor(groups(everything, 0.1), lr=1e-2)]
    hidden = [p for n, p in model.named_parameters() if p.dim() == 2 and '.h.' in n]
    others = [p for p in everything if not any(p is h for h in hidden)]
    return [torch.optim.Muon(hidden, lr=2e-3, weight_decay=0.1, momentum=0.95, adjust_lr_fn='match_rms_adamw'),
            torch.optim.AdamW(groups(others, 0.1), lr=2e-3, betas=(0.9, 0.95), eps=1e-8)]


class Optimizers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        steps = np.random.default_rng(0).integers(1, 4, 20000).cumsum()
        (steps % models.VOCABULARY).astype(np.uint16).tofile(cls.folder / 'tokens.bin')
        torch.manual_seed(7)
        models.gpt2(heads=4).save_pretrained(cls.folder / 'start')
        cls.hetrun('batches.lua', f'--context={models.CONTEXT}', f'--steps={STEPS}', f'--out={cls.folder}/batches.json')
        cls.batches = json.loads((cls.folder / 'batches.json').read_text())

    @classmethod
    def hetrun(cls, recipe, *words, before=()):
        done = subprocess.run([models.HETRUN, *before, str(models.HERE / recipe), *words, f'--tokens={cls.folder}/tokens.bin',
                               f'--folder={cls.folder}/start', '--trust', '--quiet'], cwd=cls.folder, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)

    def ours(self, name, plan):
        metrics = self.folder / 'metrics.jsonl'
        metrics.unlink(missing_ok=True)
        self.hetrun('optimizers.lua', f'--steps={STEPS}', f'--optimizer={name}', f'--plan={plan}', f'--metrics={metrics}',
                    before=() if plan == 'one' else ('--workers', '2'))
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return np.array([line['loss'] for line in lines if 'loss' in line])

    def theirs(self, name):
        model = models.transformers.GPT2LMHeadModel.from_pretrained(self.folder / 'start', attn_implementation='eager')
        losses = []
        optimizers = make(name, model)
        for step, (inputs, labels) in enumerate(zip(self.batches['inputs'], self.batches['labels'])):
            logits = models.logits_of(model, torch.tensor(inputs))
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(labels).flatten())
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group['lr'] = 1e-3 * (1 - step / STEPS) if name == 'rate' else group['lr']
                optimizer.step()
            losses.append(loss.item())
        return np.array(losses)

    def check(self, name):
        theirs = self.theirs(name)
        self.assertLess(theirs[-1], 0.9 * theirs[0])
        for plan in ('one', 'zero', 'tensor', 'pipeline'):
            with self.subTest(plan=plan):
                ours = self.ours(name, plan)
                self.assertEqual(len(ours), STEPS)
                worst = np.abs(ours / theirs - 1).max()
                print(f'{name}, {plan}: losses {theirs[0]:.4f} to {theirs[-1]:.4f}, worst relative difference {worst:.1e}')
                self.assertLess(worst, 1e-4)

    def test_custom(self):
        self.check('custom')

    def test_rate(self):
        self.check('rate')

    def test_lion(self):
        self.check('lion')

    def test_adafactor(self):
        self.check('adafactor')

    def test_muon(self):
        if not hasattr(torch.optim, 'Muon'):
            self.skipTest('this PyTorch has no Muon')
        torch.optim._muon._zeropower_via_newtonschulz = orthogonal
        self.check('muon')


if __name__ == '__main__':
    unittest.main()
