#!/usr/bin/env python3
"""Writes experts.json: losses and gradients of a small BERT with experts, as PyTorch computes them in f64.

Run it with a Python that has PyTorch, from anywhere:  python3 tests/reference/experts.py
experts.lua builds the same models from the same weights, which a formula gives, and compares; it needs no PyTorch.
Capacity is so small that some tokens find no place with their experts.
"""
import json
import math
import pathlib

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, EXPERTS, INSIDE, SAMPLES = 7, 6, 8, 2, 2, 3, 10, 3
CAPACITY, AUXILIARY, EPS = 1.0, 0.1, 1e-12


def shapes():
    """The parameters' shapes by hetrun's names."""
    result = {'tokens.weight': (VOCABULARY, WIDTH), 'positions.weight': (CONTEXT, WIDTH), 'segments.weight': (2, WIDTH),
              'head_bias': (VOCABULARY,), 'head_transform.weight': (WIDTH, WIDTH), 'head_transform.bias': (WIDTH,)}
    norms = ['embedding_norm', 'head_norm']
    for i in range(LAYERS):
        block = f'blocks.{i}.'
        norms += [block + 'attention_norm', block + 'mlp_norm']
        result |= {block + 'attention.qkv.weight': (3 * WIDTH, WIDTH), block + 'attention.qkv.bias': (3 * WIDTH,),
                   block + 'attention.out.weight': (WIDTH, WIDTH), block + 'attention.out.bias': (WIDTH,),
                   block + 'mlp.gate': (EXPERTS, WIDTH), block + 'mlp.up': (EXPERTS, INSIDE, WIDTH),
                   block + 'mlp.down': (EXPERTS, WIDTH, INSIDE)}
    for norm in norms:
        result |= {norm + '.weight': (WIDTH,), norm + '.bias': (WIDTH,)}
    return result


def weights():
    """Element i of the n-th parameter, by name, is a sine of both; gates are larger, norms near 1. Rounded to f32."""
    result = {}
    for n, (name, shape) in enumerate(sorted(shapes().items()), 1):
        size = 1.5 if name.endswith('gate') else 0.4
        values = [size * math.sin(0.7 * i * (1 + 0.01 * n) + n) for i in range(math.prod(shape))]
        tensor = torch.tensor(values).reshape(shape) + (1 if name.endswith('norm.weight') else 0)
        result[name] = tensor.float().double().requires_grad_()
    return result


def experts(w, path, x, top):
    probabilities = F.softmax(x @ w[path + 'gate'].T, dim=-1)                  # [b, t, e]
    chosen, expert = torch.topk(probabilities, top, dim=-1)                    # [b, t, k]
    ordered = probabilities.sort(-1).values
    assert (ordered[..., 1:] - ordered[..., :-1]).min() > 1e-4, 'choices depend on the last bits'
    shares = chosen if top == 1 else chosen / chosen.sum(-1, keepdim=True)
    capacity = min(CONTEXT, math.ceil(CAPACITY * top * CONTEXT / EXPERTS))
    dropped = 0
    rows = [[None] * CONTEXT for _ in range(SAMPLES)]
    for b in range(SAMPLES):
        places = [0] * EXPERTS
        for k in range(top):
            for t in range(CONTEXT):
                e = int(expert[b, t, k])
                places[e] += 1
                if places[e] > capacity:
                    dropped += 1
                    continue
                h = F.gelu(w[path + 'up'][e] @ x[b, t], approximate='tanh')
                y = shares[b, t, k] * (w[path + 'down'][e] @ h)
                rows[b][t] = y if rows[b][t] is None else rows[b][t] + y
    out = torch.stack([torch.stack([torch.zeros(WIDTH) if y is None else y for y in sample]) for sample in rows])
    first = F.one_hot(expert[..., 0], EXPERTS).double().mean(1)                # [b, e]
    balance = EXPERTS * (first * probabilities.mean(1)).sum(-1).mean()
    return out, AUXILIARY * balance, dropped


def attention(w, path, x):
    q, k, v = (x @ w[path + 'qkv.weight'].T + w[path + 'qkv.bias']).split(WIDTH, dim=-1)
    q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (q, k, v))
    y = F.softmax(q @ k.mT / math.sqrt(WIDTH // HEADS), dim=-1) @ v
    return y.transpose(1, 2).flatten(-2) @ w[path + 'out.weight'].T + w[path + 'out.bias']


def norm(w, name, x):
    return F.layer_norm(x, (WIDTH,), w[name + '.weight'], w[name + '.bias'], EPS)


def loss_of(w, inputs, labels, top):
    x = w['tokens.weight'][inputs] + w['positions.weight'] + w['segments.weight'][0]
    x, added, dropped = norm(w, 'embedding_norm', x), 0, 0
    for i in range(LAYERS):
        block = f'blocks.{i}.'
        x = norm(w, block + 'attention_norm', x + attention(w, block + 'attention.', x))
        y, balance, without = experts(w, block + 'mlp.', x, top)
        x, added, dropped = norm(w, block + 'mlp_norm', x + y), added + balance, dropped + without
    x = norm(w, 'head_norm', F.gelu(x @ w['head_transform.weight'].T + w['head_transform.bias']))
    logits = x @ w['tokens.weight'].T + w['head_bias']
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100) + added, dropped


def main():
    inputs = [[(3 * b + 5 * t + b * t) % VOCABULARY for t in range(CONTEXT)] for b in range(SAMPLES)]
    labels = [[(b + 2 * t * t) % VOCABULARY if (b + t) % 3 else -100 for t in range(CONTEXT)] for b in range(SAMPLES)]
    cases = []
    for top in (1, 2):
        w = weights()
        loss, dropped = loss_of(w, torch.tensor(inputs), torch.tensor(labels), top)
        loss.backward()
        assert dropped > 0
        print(f'top {top}: loss {loss.item():.6f}, {dropped} choices without a place')
        cases.append({'top': top, 'loss': float(f'{loss.item():.9g}'), 'gradients': {
            name: [float(f'{v:.9g}') for v in parameter.grad.flatten().tolist()] for name, parameter in sorted(w.items())}})
    settings = {'vocab': VOCABULARY, 'context': CONTEXT, 'width': WIDTH, 'heads': HEADS, 'layers': LAYERS, 'experts': EXPERTS,
                'hidden': INSIDE, 'capacity': CAPACITY, 'auxiliary': AUXILIARY}
    lines = ',\n'.join(json.dumps(case, separators=(',', ':')) for case in cases)
    path = pathlib.Path(__file__).with_suffix('.json')
    path.write_text(f'{{"pytorch": "{torch.__version__}", "settings": {json.dumps(settings)},\n'
                    f'"inputs": {inputs}, "labels": {labels}, "cases": [\n{lines}\n]}}\n')
    print(f'{path.name}: {path.stat().st_size} bytes')


if __name__ == '__main__':
    main()
