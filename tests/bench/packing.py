#!/usr/bin/env python3
"""What packing gains: recipes/finetune.lua on chats of one turn, with and without --packing, by turns on one machine.

usage: packing.py HETRUN [--steps 8] [--rounds 3] [--context 512] [--precision f32,bf16]

The model is a small Qwen 2 with a tokenizer of single bytes; prompts and answers have log-normal lengths, as chats do. Printed are, of each
precision, tokens that count in the loss per second (medians of steps), and how full rows are.
"""
import argparse
import json
import math
import pathlib
import random
import re
import statistics
import tempfile

from runs import output, run, say

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES, BATCH = 800, 8
BEGIN = '''local het = require "het"
return het.train { model = het.nn.decoder { family = "qwen2", vocab = 260, context = %d, width = 256, layers = 4, heads = 4, kv_heads = 2 },
  data = het.data.text { path = "text.txt", tokenizer = "byte" }, batch = 1, steps = 1, optimizer = het.optim.sgd { lr = 1e-9 },
  save = "runs/model" }
'''


def letters():
    """Characters for all bytes, as ByteLevel writes them."""
    shown = [*range(33, 127), *range(0xa1, 0xad), *range(0xae, 0x100)]
    return {chr(c): i for i, c in enumerate(shown)} | {chr(0x100 + i): len(shown) + i for i in range(68)}


def prepare(hetrun, folder, context):
    (folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 1000)
    (folder / 'begin.lua').write_text(BEGIN % context)
    output([hetrun, 'begin.lua', '--quiet'], folder)
    (folder / 'runs' / 'model' / 'tokenizer.json').write_text(json.dumps({
        'added_tokens': [{'id': 258, 'content': '<|im_start|>'}, {'id': 259, 'content': '<|im_end|>'}],
        'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': False}, 'decoder': {'type': 'ByteLevel'},
        'model': {'type': 'BPE', 'vocab': letters(), 'merges': []}}))
    draw = random.Random(1)

    def text(median):
        length = int(min(context, max(4, draw.lognormvariate(math.log(median), 0.8))))
        return ''.join(draw.choice('abcdefgh ') for _ in range(length))
    lines = [{'prompt': text(40), 'completion': text(60)} for _ in range(EXAMPLES)]
    (folder / 'chats.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    # Of each example what counts: the completion, as far as it is in the context.
    return sum(max(0, min(len(line['completion']), context + 1 - len(line['prompt']))) for line in lines)


def measure(hetrun, folder, arguments, precision, packing):
    """Rows of an epoch, how full they are (nothing: unpacked), and seconds of steps."""
    metrics = folder / 'metrics.jsonl'
    words = [hetrun, ROOT / 'recipes' / 'finetune.lua', '--model=runs/model', '--data=chats.jsonl', '--holdout=0', '--every=0',
             f'--context={arguments.context}', f'--batch={BATCH}', '--microbatch=4', f'--steps={arguments.steps + 2}',
             f'--precision={precision}', f'--metrics={metrics}', *(['--packing'] if packing else [])]
    code, out, err = run(words, folder)
    if code != 0:
        raise SystemExit(f'{words}\n{out}\n{err}')
    times = [line['seconds'] for line in map(json.loads, metrics.read_text().splitlines()) if 'loss' in line]
    found = re.search(r'share (\d+) rows of \d+ tokens, (\d+) %', err.replace(',', '', 1))
    rows, full = map(int, found.groups()) if packing else (EXAMPLES, None)
    return rows, full, [b - a for a, b in zip(times[1:], times[2:])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('hetrun', type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument('--steps', type=int, default=8)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--context', type=int, default=512)
    parser.add_argument('--precision', default='f32,bf16')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        counted = prepare(arguments.hetrun, folder, arguments.context)
        for precision in arguments.precision.split(','):
            times, rows, full = {False: [], True: []}, {}, None
            for _ in range(arguments.rounds):
                for packing in (False, True):
                    rows[packing], fill, seconds = measure(arguments.hetrun, folder, arguments, precision, packing)
                    full = fill or full
                    times[packing] += seconds
                    say(f'{precision}, {"packed" if packing else "unpacked"}: {statistics.median(seconds):.3f} s a step')
            rates = {packing: BATCH * counted / rows[packing] / statistics.median(times[packing]) for packing in times}
            print(f'{precision}: {rates[False]:,.0f} tokens that count per second unpacked ({EXAMPLES} rows), {rates[True]:,.0f} packed '
                  f'({rows[True]} rows, {full} % full): {rates[True] / rates[False]:.2f} times')
            steps = {packing: statistics.median(times[packing]) for packing in times}
            print(f'  a step of {BATCH} rows of {arguments.context}: {steps[False]:.3f} s unpacked, {steps[True]:.3f} s packed')


if __name__ == '__main__':
    main()
