#!/usr/bin/env python3
"""`hetrun bench MODEL` against the same model of transformers in PyTorch: random weights, sequence 1024, AdamW.

usage: bench_vs_torch.py HETRUN [--model gpt2-124m|gpt2-1558m|llama-1b] [--batch 4] [--steps N] [--torch f32,bf16,...]
                         [--precision f32,bf16] [--device cpu|cuda] [--limit SECONDS]

Each runs in a separate process, one after the other; a step is forward, backward and update. `+compiled` compiles
the model; a variant that takes longer than the limit is left out, and named. Prints step seconds (median), tokens/s and
peak memory of each (resident; on a GPU allocated), and the ratio.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time


CONTEXT = 1024


def make_model(name):
    """What lua/het/bench/init.lua calls by this name."""
    import transformers
    transformers.logging.set_verbosity_error()
    common = {'attn_implementation': 'sdpa', 'use_cache': False}
    if name == 'llama-1b':
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
            num_key_value_heads=8, max_position_embeddings=CONTEXT, tie_word_embeddings=True, **common))
    sizes = {'gpt2-124m': {}, 'gpt2-1558m': {'n_embd': 1600, 'n_layer': 48, 'n_head': 25}}[name]
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **sizes, **common))


def torch_steps(name, variant, batch, steps, device):
    import torch
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = make_model(name).to(device)
    warmup = 1 if device == 'cpu' else 5
    run = torch.compile(model) if 'compiled' in variant else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    seconds = []
    for _ in range(steps + warmup):
        ids = torch.randint(model.config.vocab_size, (batch, CONTEXT + 1), device=device)
        if device != 'cpu':
            torch.cuda.synchronize()
        started = time.perf_counter()
        with torch.autocast(device, dtype=torch.bfloat16, enabled='bf16' in variant):
            logits = run(input_ids=ids[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if device != 'cpu':
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[warmup:])
    return {'step_seconds': median, 'tokens_per_s': batch * CONTEXT / median, 'version': torch.__version__,
            'peak_memory_bytes': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if device == 'cpu'
            else torch.cuda.max_memory_allocated()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('hetrun')
    parser.add_argument('--model', default='gpt2-124m', choices=['gpt2-124m', 'gpt2-1558m', 'llama-1b'])
    parser.add_argument('--batch', type=int, default=4)
    parser.add_argument('--steps', type=int, default=3)
    parser.add_argument('--torch', default='f32,bf16,f32+compiled,bf16+compiled')
    parser.add_argument('--precision', default='f32,bf16')
    parser.add_argument('--device', default='cpu', choices=['cpu', 'cuda'])
    parser.add_argument('--limit', type=float, default=1200)
    parser.add_argument('--child', help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        print(json.dumps(torch_steps(a.model, a.child, a.batch, a.steps, a.device)))
        return

    def result_of(*command, limit=None):
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit).stdout
        return json.loads(out.strip().splitlines()[-1])

    common = ('--batch', str(a.batch), '--steps', str(a.steps), '--device', a.device)
    peers = {}
    for variant in a.torch.split(','):
        try:
            peers[variant] = result_of(sys.executable, __file__, a.hetrun, '--model', a.model, '--child', variant, *common,
                                       limit=a.limit)
        except subprocess.TimeoutExpired:
            print(f'PyTorch {variant}: not measured: no {a.steps} steps within {a.limit:.0f} s', file=sys.stderr)
    if not peers:
        sys.exit('nothing to compare with')
    best = max(peers, key=lambda variant: peers[variant]['tokens_per_s'])
    for precision in a.precision.split(','):
        ours = result_of(a.hetrun, 'bench', a.model, '--precision', precision, '--context', str(CONTEXT), *common, '--warmup',
                         '1' if a.device == 'cpu' else '5', '--json', '--quiet')
        print(json.dumps({'precision': precision, 'hetrun': ours, 'torch_best': best, 'torch': peers[best],
                          'tokens_per_s_ratio': ours['tokens_per_s'] / peers[best]['tokens_per_s']}))
    print(json.dumps(peers))


if __name__ == '__main__':
    main()
