#!/usr/bin/env python3
"""Operators of het.op that are composed of others (composed.lua) against PyTorch: values and gradients.

usage: composed.py HETRUN    (exit code 77: PyTorch is not installed)
"""
import json
import pathlib
import subprocess
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
F = torch.nn.functional

def attention(q, k, v, mask, causal=False, scale=None):
    """PyTorch's, with an attention_mask."""
    heads = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(heads, 1) for x in (k, v))
    seen = mask[:, None, None, :] != 0
    if causal:
        seen = seen & torch.ones(q.shape[2], k.shape[2]).tril().bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale).transpose(1, 2)


CASES = {
    'masked_attention': attention, 'masked_attention_across': attention,
    'masked_attention_causal': lambda *x: attention(*x, causal=True, scale=0.7),
    'where': lambda x, y: torch.where(x < y, x * y, y), 'where_broadcast': lambda x, z: torch.where(x > 0, x, z),
    'greater': lambda x, y: (x > y).float(), 'greater_equal': lambda x, y: (x >= y).float(),
    'clamp': lambda x: x.clamp(-0.5, 0.75), 'clamp_min': lambda x: x.clamp(min=0.1), 'clamp_max': lambda x: x.clamp(max=0.1),
    'power': lambda x: x ** 3, 'conv1d': F.conv1d, 'conv1d_padded': lambda x, w: F.conv1d(x, w, padding=2, stride=2),
    'conv1d_causal': lambda x, w, b: F.conv1d(F.pad(x, (4, 0)), w, b, dilation=2),
    'conv1d_groups': lambda x, w: F.conv1d(x, w, groups=2), 'one_hot': lambda i: F.one_hot(i, 5).float(),
}
for dim in range(3):
    for name in ('max', 'min'):
        CASES[f'{name}{dim}'] = lambda x, name=name, dim=dim: getattr(x, name)(dim).values
        CASES[f'{name}{dim}_index'] = lambda x, name=name, dim=dim: getattr(x, name)(dim).indices
        CASES[f'{name}{dim}_keep'] = lambda x, name=name, dim=dim: getattr(x, name)(dim, keepdim=True).values
    CASES[f'argmax{dim}'] = lambda x, dim=dim: x.argmax(dim)
    CASES[f'index_select{dim}'] = lambda x, i, dim=dim: x.index_select(dim, i)


def tensor(values):
    made = torch.tensor(values)
    return made if made.is_floating_point() else made.long()


def worst_difference(name, found):
    """Of the value and the gradients, relative to what is above 1."""
    def difference(ours, theirs):
        assert ours.shape == theirs.shape, (name, ours.shape, theirs.shape)
        return ((ours - theirs).abs() / theirs.abs().clamp(min=1)).max().item()

    operands = [tensor(values) for values in found['operands']]
    for operand in operands:
        operand.requires_grad_(operand.is_floating_point())
    value = CASES[name](*operands)
    worst = difference(torch.tensor(found['value']).double(), value.detach().double())
    if 'weights' not in found:
        return worst
    if value.requires_grad:
        (value * torch.tensor(found['weights'])).sum().backward()
    for operand, gradient in zip(operands, found['gradients']):
        theirs = torch.zeros_like(operand) if operand.grad is None else operand.grad
        ours = torch.zeros_like(operand) if gradient == 0 else torch.tensor(gradient)
        worst = max(worst, difference(ours, theirs))
    return worst


def main():
    done = subprocess.run([sys.argv[1], '--trust', '--quiet', str(HERE / 'composed.lua')], capture_output=True, text=True, check=False)
    everything = json.loads(done.stdout.splitlines()[0])
    assert everything.keys() == CASES.keys(), everything.keys() ^ CASES.keys()
    worst = {name: worst_difference(name, found) for name, found in everything.items()}
    for name, value in sorted(worst.items()):
        print(f'{"ok  " if value < 1e-5 else "FAIL"}  {name}: {value:.1e}')
    return 0 if max(worst.values()) < 1e-5 else 1


if __name__ == '__main__':
    sys.exit(main())
