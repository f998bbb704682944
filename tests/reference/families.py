#!/usr/bin/env python3
"""The families of huggingface.py, trained for 20 steps by hetrun and by PyTorch from the same weights on the same batches: on one
device, with each layer on two devices and with layers on two devices the losses agree to 1e-4 relative at every step. And what a
model writes with its cache is what it writes from the whole context each time.

usage: families.py HETRUN [names of cases]    (exit code 77: transformers is not installed)
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from huggingface import CASES, HERE, VOCAB, spread, torch

STEPS, BATCH, CONTEXT = 20, 4, 16
PLANS = {'none': 1, 'tensor': 2, 'pipeline': 2}   # and their ranks


def losses_of(model, batches):
    """As families.lua sets it: AdamW without decay of vectors, gradients clipped to a norm of 1."""
    groups = [{'params': [p for p in model.parameters() if p.dim() >= 2], 'weight_decay': 0.1},
              {'params': [p for p in model.parameters() if p.dim() < 2], 'weight_decay': 0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for inputs, labels in zip(batches['inputs'], batches['labels']):
        logits = model(input_ids=torch.tensor(inputs)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(labels).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(hetrun, folder, recipe, words, *options):
    """Runs a recipe of this folder; returns what it prints."""
    done = subprocess.run([hetrun, '--quiet', '--trust', *options, str(HERE / recipe), *words], cwd=folder, capture_output=True,
                          text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def differences(hetrun, folder, model, plans, saved):
    """Trains the model in PyTorch, and what hetrun saved of it under each plan, by its number of ranks; returns what is wrong, else
    nothing, and what to print: the worst relative difference of the losses under each plan."""
    train(hetrun, folder, 'batches.lua', ['--tokens=tokens.bin', f'--context={CONTEXT}', f'--batch={BATCH}', f'--steps={STEPS}',
                                          '--out=batches.json'])
    expected = losses_of(model, json.loads((folder / 'batches.json').read_text()))
    if expected[-1] >= expected[0]:
        return f'PyTorch does not learn: {expected}', ''
    worst = {}
    for plan, ranks in plans.items():
        train(hetrun, folder, 'families.lua', [f'--folder={saved}', '--tokens=tokens.bin', f'--steps={STEPS}', f'--plan={plan}',
                                               f'--metrics={plan}.jsonl'],
              '--threads=1', *(['--workers=2'] if ranks > 1 else []))
        lines = [json.loads(line) for line in (folder / f'{plan}.jsonl').read_text().splitlines()]
        losses = [line['loss'] for line in lines if 'loss' in line]
        if len(losses) != STEPS:
            return f'{len(losses)} losses under plan {plan}', ''
        worst[plan] = max(abs(ours / theirs - 1) for ours, theirs in zip(losses, expected))
    shown = f'loss {expected[0]:.4f} to {expected[-1]:.4f}, worst relative difference ' + ', '.join(
        f'{plan} {value:.1e}' for plan, value in worst.items())
    return None if max(worst.values()) < 1e-4 else 'the losses differ', shown


def check(hetrun, name, make, folder):
    ids = [(i * i + 3 * i) % VOCAB for i in range(400)]
    (folder / 'tokens.bin').write_bytes(struct.pack(f'<{len(ids)}H', *ids))
    torch.manual_seed(7)
    model = make()
    spread(model)
    model.save_pretrained(folder / 'model')

    how, written, whole = train(hetrun, folder, 'families.lua', ['--folder=model']).splitlines()
    if written != whole:
        return f'written with its cache: {written}, from the whole context: {whole}'
    if how != 'with a cache':
        return f'it writes {how}'

    problem, shown = differences(hetrun, folder, model, PLANS, 'model')
    print(f'{name}: {shown}')
    return problem


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    failed = 0
    for name, make in CASES.items():
        if name.startswith(('gpt2', 'bert')) or sys.argv[2:] and not any(name.startswith(word) for word in sys.argv[2:]):
            continue   # models.py trains those
        with tempfile.TemporaryDirectory() as folder:
            try:
                problem = check(hetrun, name, make, pathlib.Path(folder))
            except RuntimeError as error:
                problem = str(error)
        if problem:
            print(f'FAIL  {name}: {problem}')
            failed += 1
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
