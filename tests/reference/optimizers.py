#!/usr/bin/env python3
"""The optimizers that are written with operators against PyTorch's, on small models: optimizers.py HETRUN [unittest arguments].

Losses of 50 steps agree to 1e-4 at every step, of one rank, and of two that divide the optimizer's state, each layer or the layers.
Lion is not in PyTorch: its formula is written out here. PyTorch's Muon multiplies in bf16: here in f32, as hetrun does in f32. It takes
matrices alone: the experts of a layer, which transformers keeps in one tensor, are given to it one by one.
"""
import json
import math
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


class ScheduleFree(torch.optim.Optimizer):
    """AdamW by Algorithm 1 of "The Road Less Scheduled" (Defazio et al. 2024), which gives each parameter as y. The betas are set before
    each step."""

    def __init__(self, groups, lr, betas, eps):
        super().__init__(groups, {'lr': lr, 'weight_decay': 0, 'betas': betas})
        self.eps, self.steps, self.squares = eps, 0, 0

    @torch.no_grad()
    def step(self):
        (beta1, beta2), self.steps = self.param_groups[0]['betas'], self.steps + 1
        rate = self.param_groups[0]['lr'] * math.sqrt(1 - beta2 ** self.steps)
        self.squares += rate ** 2
        share = rate ** 2 / self.squares
        for group in self.param_groups:
            for p in group['params']:
                kept = self.state[p]
                if not kept:
                    kept.update(x=p.clone(), z=p.clone(), v=torch.zeros_like(p))
                kept['v'].mul_(beta2).add_((1 - beta2) * p.grad ** 2)
                kept['z'].sub_(rate * p.grad / (kept['v'].sqrt() + self.eps)).sub_(rate * group['weight_decay'] * p)
                kept['x'].mul_(1 - share).add_(share * kept['z'])
                p.copy_((1 - beta1) * kept['z'] + beta1 * kept['x'])


def orthogonal(grad, coefficients, steps, eps):
    """torch.optim._muon's iteration, but in f32."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def matrices(name, p):
    """The matrices of a parameter, as parameters of the same memory; `refresh` gives them their gradients."""
    if p.dim() == 2:
        return [p]
    found = []
    for e in range(len(p)):
        # Of gates and what they are multiplied by, which lie one below the other.
        bounds = [(0, p.shape[1] // 2), (p.shape[1] // 2, p.shape[1])] if 'gate_up' in name else [(0, p.shape[1])]
        for first, last in bounds:
            matrix = torch.nn.Parameter(p.detach()[e, first:last])
            matrix.whole = lambda p=p, e=e, first=first, last=last: p.grad[e, first:last]
            found.append(matrix)
    return found


def refresh(optimizers):
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group['params']:
                if hasattr(p, 'whole'):
                    p.grad = p.whole()


def falling(step):
    return 0.95 - 0.3 * step / STEPS


def rising(step):
    return min(0.95, 0.8 + 0.01 * step)


def linear(peak, step):
    """optim.linear with a warm-up of 5 steps."""
    step += 1
    return peak * (step / 6 if step <= 5 else 0.1 + 0.9 * (1 - (step - 6) / (STEPS - 5)))


def parameter_groups(model, sgd=False):
    """The groups of optimizers.lua, one for each parameter."""
    groups = []
    for name, p in model.named_parameters():
        peak, decay = 0.2 if sgd else 1e-3, 0.1
        if sgd:
            peak = 0.05 if '.h.0.' in name else peak
        elif '.wte' in name:
            peak, decay = 5e-4, 0
        elif '.h.1.' in name and '.c_fc' in name:
            peak = None
        elif '.h.1.' in name:
            peak, decay = 4e-3, 0.3
        elif '.mlp.' in name:
            decay = 0.2
        decay = 0.05 if '.ln_' in name and name.endswith('weight') else decay if p.dim() >= 2 else 0
        groups.append({'params': [p], 'weight_decay': decay, 'peak': peak, **({'lr': peak} if sgd else {})})
    return groups


def set_for_step(name, group, step):
    """What optimizers.lua has as functions of the step; here steps count from 0."""
    if name == 'rate':
        group['lr'] = 1e-3 * (1 - step / STEPS)
    if name in ('groups', 'groups_custom'):
        lr = 3e-3 * (step + 1) / STEPS if group['peak'] is None else linear(group['peak'], step)
        group['lr'] = lr
    if name == 'schedule_free':
        group['lr'] = 5e-3 * min(1, (step + 1) / 10)
    if name == 'betas':
        group['betas'] = (falling(step), rising(step))
    if name == 'sgd_momentum':
        group['momentum'] = rising(step)
    if name == 'beta2_decay':
        group['beta2_decay'] = -0.9 + 0.3 * step / STEPS
    if name == 'schedule_free_beta1':
        group.update(lr=5e-3, betas=(falling(step), 0.95))
    if name == 'muon_momentum' and 'momentum' in group:
        group['momentum'] = rising(step)
    elif name == 'muon_momentum':
        group['betas'] = (0.9, falling(step))


def make(name, model):
    """The optimizers of the model's parameters, as optimizers.lua sets them, and the rate of each step relative to the first."""
    def groups(parameters, decay):
        matrices = [p for p in parameters if p.dim() >= 2]
        vectors = [p for p in parameters if p.dim() < 2]
        return [{'params': matrices, 'weight_decay': decay}, {'params': vectors, 'weight_decay': 0}]
    everything = list(model.parameters())
    if name in ('groups', 'groups_custom'):
        return [torch.optim.AdamW(parameter_groups(model), lr=1e-3, betas=(0.9, 0.95), eps=1e-8)]
    if name == 'groups_sgd':
        return [torch.optim.SGD(parameter_groups(model, sgd=True), lr=0.2, momentum=0.8)]
    if name.startswith('schedule_free'):
        return [ScheduleFree(groups(everything, 0.1), lr=0, betas=(0.9, 0.95), eps=1e-8)]
    if name in ('adamw', 'custom', 'rate', 'ema', 'betas'):
        return [torch.optim.AdamW(groups(everything, 0.1), lr=1e-3, betas=(0.9, 0.95), eps=1e-8)]
    if name == 'lion':
        return [Lion(groups(everything, 0.3), lr=3e-4)]
    if name == 'sgd_momentum':
        return [torch.optim.SGD(groups(everything, 1e-3), lr=0.2, momentum=0.8, nesterov=True)]
    if name in ('adafactor', 'beta2_decay'):
        return [torch.optim.Adafactor(groups(everything, 0.1), lr=1e-2)]
    blocks = {n: p for n, p in model.named_parameters() if p.dim() >= 2 and ('.h.' in n or '.layers.' in n)}
    others = [p for p in everything if not any(p is b for b in blocks.values())]
    hidden = [m for n, p in blocks.items() for m in matrices(n, p)]
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
        for name, start in (('gpt2', lambda: models.gpt2(heads=4)), ('llama', models.llama), ('mixtral', models.mixtral)):
            torch.manual_seed(7)
            start().save_pretrained(cls.folder / name)
        cls.hetrun('batches.lua', f'--context={models.CONTEXT}', f'--steps={STEPS}', f'--out={cls.folder}/batches.json',
                   f'--folder={cls.folder}/gpt2')
        cls.batches = json.loads((cls.folder / 'batches.json').read_text())

    @classmethod
    def hetrun(cls, recipe, *words, before=()):
        done = subprocess.run([models.HETRUN, *before, str(models.HERE / recipe), *words, f'--tokens={cls.folder}/tokens.bin',
                               '--trust', '--quiet'], cwd=cls.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)

    def ours(self, name, plan, model='gpt2'):
        metrics = self.folder / 'metrics.jsonl'
        metrics.unlink(missing_ok=True)
        self.hetrun('optimizers.lua', f'--steps={STEPS}', f'--optimizer={name}', f'--plan={plan}', f'--metrics={metrics}',
                    f'--folder={self.folder}/{model}', f'--save={self.folder}/{name}_{model}_{plan}',
                    before=() if plan == 'one' else ('--workers', '2'))
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return np.array([line['loss'] for line in lines if 'loss' in line])

    def loss_of(self, model, step):
        logits = models.logits_of(model, torch.tensor(self.batches['inputs'][step]))
        labels = torch.tensor(self.batches['labels'][step])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def load(self, folder):
        return models.transformers.AutoModelForCausalLM.from_pretrained(self.folder / folder, attn_implementation='eager')

    def theirs(self, name, start):
        """The losses of the steps, and the model that is evaluated after them."""
        model = self.load(start)
        losses = []
        optimizers = make(name, model)
        averaged = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)) if name == 'ema' else None
        for step in range(len(self.batches['inputs'])):
            loss = self.loss_of(model, step)
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            refresh(optimizers)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    set_for_step(name, group, step)
                optimizer.step()
            if averaged:
                averaged.update_parameters(model)
            losses.append(loss.item())
        if name.startswith('schedule_free'):
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(optimizers[0].state[p]['x'])
        return np.array(losses), averaged.module if averaged else model

    def check(self, name, start='gpt2'):
        theirs, model = self.theirs(name, start)
        with torch.no_grad():
            last = self.loss_of(model, -1).item()
        self.assertLess(theirs[-1], 0.9 * theirs[0])
        for plan in ('one', 'zero', 'tensor', 'pipeline'):
            with self.subTest(plan=plan):
                ours = self.ours(name, plan, start)
                self.assertEqual(len(ours), STEPS)
                worst = np.abs(ours / theirs - 1).max()
                print(f'{name} of {start}, {plan}: losses {theirs[0]:.4f} to {theirs[-1]:.4f}, worst relative difference '
                      f'{worst:.1e}')
                self.assertLess(worst, 1e-4)
                saved = self.load(f'{name}_{start}_{plan}')
                with torch.no_grad():
                    self.assertLess(abs(self.loss_of(saved, -1).item() / last - 1), 1e-4)

    def test_custom(self):
        self.check('custom')

    def test_ema(self):
        self.check('ema')
        self.ours('adamw', 'one')
        with torch.no_grad():   # which is another model than the one that is trained
            trained, averaged = (self.loss_of(self.load(folder), -1).item() for folder in ('adamw_gpt2_one', 'ema_gpt2_one'))
        self.assertGreater(abs(averaged / trained - 1), 1e-3)

    def test_schedule_free(self):
        self.check('schedule_free')

    def test_groups(self):
        self.check('groups')

    def test_groups_of_sgd(self):
        self.check('groups_sgd')

    def test_groups_of_a_custom_optimizer(self):
        self.check('groups_custom')

    def test_rate(self):
        self.check('rate')

    def test_betas(self):
        self.check('betas')

    def test_sgd_with_a_momentum_of_the_step(self):
        self.check('sgd_momentum')

    def test_adafactor_with_a_decay_of_the_step(self):
        self.check('beta2_decay')

    def test_schedule_free_with_a_beta1_of_the_step(self):
        self.check('schedule_free_beta1')

    def test_lion(self):
        self.check('lion')

    def test_adafactor(self):
        self.check('adafactor')

    def check_muon(self, name, start):
        if not hasattr(torch.optim, 'Muon'):
            self.skipTest('this PyTorch has no Muon')
        torch.optim._muon._zeropower_via_newtonschulz = orthogonal
        self.check(name, start)

    def test_muon(self):
        self.check_muon('muon', 'llama')   # which keeps queries, keys and values apart, as Muon does

    def test_muon_with_a_momentum_of_the_step(self):
        self.check_muon('muon_momentum', 'llama')

    def test_muon_of_whole_parameters(self):
        self.check_muon('muon_whole', 'gpt2')

    def test_muon_of_experts(self):
        self.check_muon('muon', 'mixtral')


if __name__ == '__main__':
    unittest.main()
