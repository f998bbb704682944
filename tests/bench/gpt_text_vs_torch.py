#!/usr/bin/env python3
"""hetrun's recipes/gpt_text.lua against the same training loop in PyTorch, run alternately on this machine.

usage: gpt_text_vs_torch.py HETRUN TEXT [--runs N] [--steps N] [--torch eager,compiled,autocast,...]

The setting is nanoGPT's for CPUs: 4 layers, 4 heads, width 128, context 64, batch 12, AdamW, cosine schedule, 90/10
split by characters, evaluation every 250 steps over 20 batches. Each variant of PyTorch is first tried for a few steps;
the fastest runs in full, in this process's children so that every run pays its start. Times are whole runs. PyTorch's
model uses its fused attention (scaled_dot_product_attention) and fused AdamW.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

LAYERS, HEADS, WIDTH, CONTEXT, BATCH = 4, 4, 128, 64, 12


def train(text, steps, variant, quick):
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(1337)
    torch.set_num_threads(len(__import__('os').sched_getaffinity(0)))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(c, 2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate='tanh'))

    class Model(nn.Module):
        def __init__(self, vocabulary):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, vocabulary, bias=False)
            self.head.weight = self.tokens.weight
            for name, p in self.named_parameters():
                if p.dim() >= 2:
                    scale = 0.02 / math.sqrt(2 * LAYERS) if name.endswith(('out.weight', 'down.weight')) else 0.02
                    nn.init.normal_(p, std=scale)
                elif name.endswith('bias'):
                    nn.init.zeros_(p)

        def forward(self, ids, labels):
            x = self.tokens(ids) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())

    characters = sorted(set(text))
    index = {c: i for i, c in enumerate(characters)}
    data = torch.tensor([index[c] for c in text])
    cut = int(0.9 * len(data))
    splits = {'train': data[:cut], 'holdout': data[cut:]}

    def batch(split):
        tokens = splits[split]
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH,))
        x = torch.stack([tokens[s:s + CONTEXT] for s in starts])
        y = torch.stack([tokens[s + 1:s + 1 + CONTEXT] for s in starts])
        return x, y

    model = Model(len(characters))
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{'params': matrices, 'weight_decay': 0.1}, {'params': vectors, 'weight_decay': 0}],
                                  lr=1e-3, betas=(0.9, 0.99), fused=True)
    parameters = list(model.parameters())
    run = torch.compile(model) if 'compiled' in variant else model
    autocast = 'autocast' in variant

    def loss_of(split):
        x, y = batch(split)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
            return run(x, y)

    best, seconds = math.inf, []
    for step in range(1, steps + 1):
        started = time.perf_counter()
        rate = 1e-3 * step / 101 if step <= 100 else 1e-4 + 9e-4 * 0.5 * (
            1 + math.cos(math.pi * (step - 101) / max(1, steps - 100)))
        for group in optimizer.param_groups:
            group['lr'] = rate
        loss = loss_of('train')
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - started)
        if not quick and (step % 250 == 0 or step == steps):
            with torch.no_grad():
                best = min(best, sum(loss_of('holdout').item() for _ in range(20)) / 20)
    return {'best_validation_loss': best, 'train_loss': loss.item(), 'step_seconds': statistics.median(seconds),
            'version': torch.__version__}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('hetrun')
    parser.add_argument('text')
    parser.add_argument('--runs', type=int, default=3)
    parser.add_argument('--steps', type=int, default=2000)
    parser.add_argument('--torch', default='eager,compiled,eager+autocast,compiled+autocast')
    parser.add_argument('--child', help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        print(json.dumps(train(pathlib.Path(a.text).read_text(encoding='utf-8'), a.steps, a.child, a.runs == 0)))
        return

    def timed(*command):
        started = time.perf_counter()
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return time.perf_counter() - started, json.loads(out.strip().splitlines()[-1])

    def torch_run(variant, steps, quick=False):
        return timed(sys.executable, __file__, a.hetrun, a.text, '--child', variant, '--steps', str(steps), '--runs',
                     '0' if quick else '1')

    tried = {}
    for variant in a.torch.split(','):
        tried[variant] = torch_run(variant, 60, quick=True)[1]['step_seconds']
        print(f'PyTorch {variant}: {1000 * tried[variant]:.1f} ms a step')
    best = min(tried, key=tried.get)
    print(f'PyTorch at its best: {best}')
    times = {'torch': [], 'f32': [], 'bf16': []}
    losses = {}
    for _ in range(a.runs):
        for name in times:
            if name == 'torch':
                seconds, result = torch_run(best, a.steps)
            else:
                seconds, result = timed(a.hetrun, str(pathlib.Path(__file__).parents[2] / 'recipes/gpt_text.lua'),
                                        f'--text={a.text}', f'--steps={a.steps}', f'--precision={name}', '--json', '--quiet')
            times[name].append(seconds)
            losses[name] = result['best_validation_loss']
            print(f'{name}: {seconds:.1f} s, best validation loss {losses[name]:.4f}', flush=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(json.dumps({'torch_variant': best, 'torch_step_ms': {k: round(1000 * v, 2) for k, v in tried.items()},
                      'seconds': medians, 'best_validation_loss': losses,
                      'f32_ratio': medians['torch'] / medians['f32'], 'bf16_ratio': medians['torch'] / medians['bf16']}))


if __name__ == '__main__':
    main()
