#!/usr/bin/env python3
"""Losses and norms of gradients of VGG and ViT are PyTorch's at each of 10 steps of SGD.

usage: images.py HETRUN            compare with images.json: no PyTorch is needed
       images.py HETRUN --write    train the same models by PyTorch, from hetrun's first weights, and write images.json
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
STORED = HERE / 'images.json'
MODELS = ['vgg', 'vit', 'vit_mean']
STEPS, TOLERANCE = 10, 1e-4


def run(hetrun, folder, *words):
    done = subprocess.run([hetrun, str(HERE / 'images.lua'), f'--steps={STEPS}', *words, '--trust', '--quiet'], cwd=folder,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)


def ours(hetrun, folder, model):
    metrics = folder / f'{model}.jsonl'
    run(hetrun, folder, f'--model={model}', f'--metrics={metrics}')
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines = [line for line in lines if 'loss' in line]
    return {'loss': [line['loss'] for line in lines], 'gradient_norm': [line['gradient_norm'] for line in lines]}


def read_weights(path):
    import torch
    data = path.read_bytes()
    size = struct.unpack('<Q', data[:8])[0]
    weights = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == '__metadata__':
            continue
        begin, end = entry['data_offsets']
        flat = torch.frombuffer(bytearray(data[8 + size + begin:8 + size + end]), dtype=torch.float32)
        weights[name] = flat.reshape(entry['shape']).double().requires_grad_()
    return weights


def vgg(w, x):
    import torch.nn.functional as F
    at = 0
    for count in (2, 2, 4, 4, 4):
        for _ in range(count):
            x = F.relu(F.conv2d(x, w[f'features.{at}.weight'], w[f'features.{at}.bias'], padding=1))
            at += 2
        x = F.max_pool2d(x, 2)
        at += 1
    x = F.adaptive_avg_pool2d(x, 2).flatten(1)
    for i in (0, 3):
        x = F.relu(F.linear(x, w[f'classifier.{i}.weight'], w[f'classifier.{i}.bias']))
    return F.linear(x, w['classifier.6.weight'], w['classifier.6.bias'])


def vit(w, x, after, mean):
    import torch
    import torch.nn.functional as F

    def linear(x, name):
        return F.linear(x, w[name + '.weight'], w[name + '.bias'])

    def norm(x, name):
        return F.layer_norm(x, [24], w[name + '.weight'], w[name + '.bias'])

    def attend(x, name):
        q, k, v = (part.unflatten(-1, (3, 8)).transpose(1, 2) for part in linear(x, name + '.qkv').split(24, dim=-1))
        return linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), name + '.out')

    def feed(x, name):
        return linear((F.relu if after else F.gelu)(linear(x, name + '.up')), name + '.down')

    x = F.conv2d(x, w['patches.projection.weight'], w['patches.projection.bias'], stride=8).flatten(2).transpose(1, 2)
    if not mean:
        x = torch.cat([w['class_token'].expand(len(x), 1, 24), x], dim=1)
    x = x + w['positions']
    for block in ('blocks.0', 'blocks.1'):
        for name, part in (('attention', attend), ('mlp', feed)):
            inner, normed = f'{block}.{name}', f'{block}.{name}_norm'
            x = norm(x + part(x, inner), normed) if after else x + part(norm(x, normed), inner)
    x = x.mean(1) if mean else x[:, 0]
    return linear(x if after else norm(x, 'norm'), 'head')


def theirs(model, weights, batches):
    import torch
    forward = {'vgg': vgg, 'vit': lambda w, x: vit(w, x, False, False), 'vit_mean': lambda w, x: vit(w, x, True, True)}[model]
    parameters = list(weights.values())
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    result = {'loss': [], 'gradient_norm': []}
    for inputs, labels in zip(batches['inputs'], batches['labels']):
        x = torch.tensor(inputs, dtype=torch.float64)
        loss = torch.nn.functional.cross_entropy(forward(weights, x), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        result['gradient_norm'].append(float(f'{torch.nn.utils.clip_grad_norm_(parameters, 1.0).item():.9g}'))
        result['loss'].append(float(f'{loss.item():.9g}'))
        optimizer.step()
    return result


def write(hetrun, folder):
    run(hetrun, folder, f'--out={folder}/batches.json')
    batches = json.loads((folder / 'batches.json').read_text())
    stored = {}
    for model in MODELS:
        # A rate that changes nothing: what is saved are the first weights.
        run(hetrun, folder, f'--model={model}', '--lr=1e-30', f'--save={folder}/{model}')
        stored[model] = theirs(model, read_weights(folder / model / 'model.safetensors'), batches)
    STORED.write_text(json.dumps(stored) + '\n')


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if '--write' in sys.argv:
            write(hetrun, folder)
        failed = False
        stored = json.loads(STORED.read_text())
        for model in MODELS:
            numbers = ours(hetrun, folder, model)
            for what, wanted in stored[model].items():
                worst = max(abs(a / b - 1) for a, b in zip(numbers[what], wanted, strict=True))
                print(f'{model}: {what} {wanted[0]:.4f} to {wanted[-1]:.4f}, worst relative difference {worst:.1e}')
                failed = failed or not worst < TOLERANCE
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
