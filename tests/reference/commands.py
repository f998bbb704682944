#!/usr/bin/env python3
"""`hetrun eval` and `hetrun generate` on folders of transformers: the loss and the likeliest tokens are transformers', of every
family of huggingface.py that predicts the next token.

usage: commands.py HETRUN [names of cases]    (exit code 77: transformers is not installed)
"""
import functools
import json
import pathlib
import subprocess
import sys
import tempfile

from huggingface import CASES, VOCAB, spread, torch, transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONTEXT, WRITTEN = 12, 10
LETTERS = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW'[:VOCAB - 1]
TEXT = ''.join(LETTERS[(i * i + 3 * i) % len(LETTERS)] for i in range(3, 203))
PROMPT = 'abcde'
TEMPLATE = ("{% for m in messages %}{{ 'A' if m['role'] == 'user' else 'B' }}{{ m['content'] }}{% endfor %}"
            "{% if add_generation_prompt %}C{% endif %}")


def tokenizer():
    """Single letters; token 0 ends a text."""
    tokens = {'<end>': 0, **{letter: i + 1 for i, letter in enumerate(LETTERS)}}
    fast = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.Sequence([])
    fast.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=fast, eos_token='<end>')


def their_loss(model, ids):
    total = 0
    with torch.no_grad():
        for first in range(0, len(ids) - 1, CONTEXT):
            window = torch.tensor([ids[first:first + CONTEXT + 1]])
            logits = model(window[:, :-1]).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction='sum').item()
    return total / (len(ids) - 1)


def their_text(model, words, ids, written=WRITTEN):
    """The likeliest token each time, up to the end token."""
    with torch.no_grad():
        for _ in range(written):
            best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
            if best == 0:
                break
            ids = [*ids, best]
    return words.decode(ids)


def run_in(hetrun, folder, *words, lines=''):
    done = subprocess.run([hetrun, *words], cwd=folder, input=lines, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def check(hetrun, make, folder):
    run = functools.partial(run_in, hetrun, folder)
    torch.manual_seed(3)
    model, words = make(), tokenizer()
    spread(model)
    model.generation_config.eos_token_id = 0
    model.save_pretrained(folder / 'model')
    words.chat_template = TEMPLATE
    words.save_pretrained(folder / 'model')
    (folder / 'text.txt').write_text(TEXT)
    ids = words(TEXT)['input_ids']
    found = json.loads(run('eval', 'model', '--text=text.txt', f'--context={CONTEXT}', '--json'))
    expected = their_loss(model.eval(), ids)
    if found['tokens'] != len(ids) - 1 or abs(found['loss'] / expected - 1) > 1e-5:
        return f'{found}, transformers {expected} over {len(ids) - 1}'
    half = json.loads(run('eval', 'model', '--text=text.txt', f'--context={CONTEXT}', '--json', '--precision=bf16'))
    if not 0 < abs(half['loss'] / expected - 1) < 0.02:
        return f'bf16: {half}, transformers {expected}'
    written = run('generate', 'model', f'--prompt={PROMPT}', f'--tokens={WRITTEN}', '--temperature=0')
    theirs = their_text(model, words, words(PROMPT)['input_ids'])
    if written != theirs + '\n':
        return f'it writes {written!r}, transformers {theirs!r}'
    one = [{'role': 'user', 'content': 'ab'}]
    asked = words.apply_chat_template(one, tokenize=False, add_generation_prompt=True)
    first = their_text(model, words, words(asked)['input_ids'], 3)[len(asked):]
    two = [*one, {'role': 'assistant', 'content': first}, {'role': 'user', 'content': 'cd'}]
    asked = words.apply_chat_template(two, tokenize=False, add_generation_prompt=True)
    second = their_text(model, words, words(asked)['input_ids'], 3)[len(asked):]
    chat = ['generate', 'model', '--chat', '--tokens=3', '--temperature=0']
    if (said := run(*chat, '--prompt=ab')) != first + '\n':
        return f'it answers {said!r}, transformers {first!r}'
    if (said := run(*chat, lines='ab\ncd\n')) != f'{first}\n{second}\n':
        return f'it converses {said!r}, transformers {[first, second]}'
    print(f'loss {found["loss"]:.6f}, relative difference {found["loss"] / expected - 1:.1e}; writes {theirs}')
    return None


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    failed = 0
    for name, make in CASES.items():
        if name == 'bert' or sys.argv[2:] and not any(name.startswith(word) for word in sys.argv[2:]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                problem = check(hetrun, make, pathlib.Path(folder))
            except RuntimeError as error:
                problem = str(error)
        print(f'{"FAIL" if problem else "ok  "}  {name}{": " + problem if problem else ""}')
        failed += problem is not None
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
