#!/usr/bin/env python3
"""Matrix products of training beside those of libraries: the shapes of GPT-2 124M, gpt_text and LLaMA 60M (`hetrun bench
products`), forward with bias and GELU, input gradient, weight gradient and classifier, in both precisions. The libraries
are PyTorch's (oneDNN, in f32 also MKL) and, in f32 and without GELU, NumPy's OpenBLAS; the faster one counts.

usage: products.py HETRUN [--rounds 3] [--threads N] [--precision f32,bf16] [--json]

Run it with a Python that has torch and numpy. All take turns on the same shapes with the same number of threads, and the ratio
of a shape is the median over the rounds: hetrun's GFLOP/s over the library's, above 1 where hetrun is faster. One thing
differs: hetrun's weight gradients are f32, the library's have the precision of the operands.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

KINDS = ('forward', 'forward, gelu', 'input gradient', 'weight gradient')
FLOPS = 4e10   # of a shape in one round, at least 5 and at most 400 runs: as `hetrun bench products` does


def measure_hetrun(program, precision, threads):
    done = subprocess.run([program, 'bench', 'products', f'--precision={precision}', f'--threads={threads}', '--json'],
                          check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def call_of(case, dtype):
    """The library's call of one case."""
    import torch
    rows, features, out = case['rows'], case['features'], case['out']

    def random(*shape):
        return torch.randn(shape).to(dtype)
    if case['kind'].startswith('forward'):
        x, weight = random(rows, features), random(out, features)
        bias = random(out) if case['bias'] else None
        if case['kind'] == 'forward, gelu':
            return lambda: torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias), approximate='tanh')
        return lambda: torch.nn.functional.linear(x, weight, bias)
    dy = random(rows, out)
    if case['kind'] == 'input gradient':
        weight, dx = random(out, features), torch.empty((rows, features), dtype=dtype)
        return lambda: torch.mm(dy, weight, out=dx)
    x, dweight = random(rows, features), torch.empty((out, features), dtype=dtype)
    return lambda: torch.mm(dy.t(), x, out=dweight)


def blas_call_of(case):
    """The same by NumPy's BLAS, in f32; nothing where it has no function for it."""
    import numpy
    rows, features, out = case['rows'], case['features'], case['out']

    def random(*shape):
        return numpy.random.default_rng(1).standard_normal(shape, numpy.float32)
    if case['kind'] == 'forward':
        x, weight, y = random(rows, features), random(out, features), numpy.empty((rows, out), numpy.float32)
        bias = random(out) if case['bias'] else None

        def forward():
            numpy.dot(x, weight.T, out=y)
            if bias is not None:
                numpy.add(y, bias, out=y)
        return forward
    dy = random(rows, out)
    if case['kind'] == 'input gradient':
        weight, dx = random(out, features), numpy.empty((rows, features), numpy.float32)
        return lambda: numpy.dot(dy, weight, out=dx)
    if case['kind'] == 'weight gradient':
        x, dweight = random(rows, features), numpy.empty((out, features), numpy.float32)
        return lambda: numpy.dot(dy.T, x, out=dweight)
    return None


def seconds_of(call, runs):
    call()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure_library(cases, precision, threads):
    """GFLOP/s of each case, by the median of the faster library's runs."""
    import torch
    torch.set_num_threads(threads)
    dtype = {'f32': torch.float32, 'bf16': torch.bfloat16}[precision]
    reached = []
    for case in cases:
        flops = 2 * case['rows'] * case['features'] * case['out']
        runs = max(5, min(400, int(FLOPS / flops)))
        with torch.inference_mode():
            seconds = seconds_of(call_of(case, dtype), runs)
        if precision == 'f32' and (call := blas_call_of(case)):
            seconds = min(seconds, seconds_of(call, runs))
        reached.append(flops / seconds / 1e9)
    return reached


def compare(program, precision, threads, rounds):
    """One row for each case: what both reached in each round."""
    rows = []
    for turn in range(rounds):
        ours = measure_hetrun(program, precision, threads)
        theirs = measure_library(ours['products'], precision, threads)
        for i, (case, library) in enumerate(zip(ours['products'], theirs)):
            if turn == 0:
                rows.append({key: case[key] for key in ('model', 'layer', 'kind', 'rows', 'features', 'out')}
                            | {'hetrun': [], 'library': []})
            rows[i]['hetrun'].append(case['gflops'])
            rows[i]['library'].append(library)
    for row in rows:
        row['ratio'] = statistics.median(own / other for own, other in zip(row['hetrun'], row['library']))
        row['hetrun'], row['library'] = statistics.median(row['hetrun']), statistics.median(row['library'])
    return {'precision': precision, 'device': ours['device'], 'processor': ours['processor'], 'threads': threads,
            'products': rows}


def print_table(result, versions, rounds):
    print(f"{result['precision']}, {result['processor']}, {result['threads']} threads, {result['device']}, "
          f'{versions}, medians of {rounds} rounds, load {os.getloadavg()[0]:.1f}\n')
    print(f"| model | layer | tokens x in x out | {' | '.join(KINDS)} |\n|---|---|---|{'---|' * len(KINDS)}")
    layers = {}
    for row in result['products']:
        sizes = f"{row['rows']} x {row['features']} x {row['out']}"
        layers.setdefault((row['model'], row['layer'], sizes), {})[row['kind']] = \
            f"{row['hetrun']:.0f} / {row['library']:.0f} ({row['ratio']:.2f})"
    for layer, cells in layers.items():
        print(f"| {' | '.join(layer)} | {' | '.join(cells.get(kind, '') for kind in KINDS)} |")
    ratios = [row['ratio'] for row in result['products']]
    print(f'\nLeast {min(ratios):.2f}, median {statistics.median(ratios):.2f}, below 0.95: '
          f'{sum(ratio < 0.95 for ratio in ratios)} of {len(ratios)}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('hetrun')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--threads', type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument('--precision', default='f32,bf16')
    parser.add_argument('--json', action='store_true')
    options = parser.parse_args()
    # OpenBLAS counts its threads when it is loaded; kernels chosen in the environment may be of another processor.
    os.environ['OPENBLAS_NUM_THREADS'] = str(options.threads)
    os.environ.pop('OPENBLAS_CORETYPE', None)
    import numpy
    import torch
    versions = f'PyTorch {torch.__version__}, NumPy {numpy.__version__}'
    results = [compare(options.hetrun, precision, options.threads, options.rounds)
               for precision in options.precision.split(',')]
    if options.json:
        print(json.dumps({'libraries': versions, 'results': results}))
        return
    for result in results:
        print_table(result, versions, options.rounds)


if __name__ == '__main__':
    main()
