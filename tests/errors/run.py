#!/usr/bin/env python3
"""Run the recipes of this folder and compare exit code and standard error with what is expected.

usage: run.py HETRUN [--write] [NAME ...]
"""
import difflib
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

# Options on the command line, of the cases that have some.
ARGUMENTS = {
    'reference': ['--allow-write=reference'],
    'options': ['--stesp=5', '--precision=f16', '--steps=0', '--verbose=perhaps'],
    'option_without_value': ['--steps'],
    'compare_file': ['--trust'],
    'options_first': ['--tetx=text.txt', '--steps=many'],
    'options_table': ['--steps=5', '--stesp=5'],
    'no_options': ['--steps=5'],
    'outside_named': ['--text=../outside/text.txt', '--folder=../outside/models', '--log=../outside/metrics.jsonl'],
    'native_arguments': ['--trust'],
    'snapshot_place': ['--trust'],
    'trusted_module': ['--trust'],
    'trusted_outside': ['--trust'],
}

GPT_CONFIG = {'model_type': 'gpt2', 'vocab_size': 64, 'n_positions': 8, 'n_embd': 8, 'n_layer': 1, 'n_head': 1}
BERT_CONFIG = {'model_type': 'bert', 'vocab_size': 64, 'max_position_embeddings': 8, 'hidden_size': 8,
               'intermediate_size': 16, 'num_hidden_layers': 1, 'num_attention_heads': 1}

QWEN_CONFIG = {'model_type': 'qwen2', 'vocab_size': 64, 'max_position_embeddings': 8, 'hidden_size': 8, 'intermediate_size': 16,
               'num_hidden_layers': 2, 'num_attention_heads': 2, 'num_key_value_heads': 1, 'sliding_window': 4}

# Models that say how they compute, by folder: otherwise than ours, and as ours.
OTHER_MODELS = {
    'bert_untied': {**BERT_CONFIG, 'tie_word_embeddings': False},
    'bert_relative': {**BERT_CONFIG, 'position_embedding_type': 'relative_key'},
    'bert_decoder': {**BERT_CONFIG, 'is_decoder': True},
    'bert_plain': {**BERT_CONFIG, 'tie_word_embeddings': True, 'position_embedding_type': 'absolute', 'is_decoder': False},
    'gpt2_unscaled': {**GPT_CONFIG, 'scale_attn_weights': False},
    'gpt2_by_layer': {**GPT_CONFIG, 'scale_attn_by_inverse_layer_idx': True},
    'reference': {**GPT_CONFIG, 'vocab_size': 256},
    'qwen2_first': {**QWEN_CONFIG, 'use_sliding_window': True, 'layer_types': ['sliding_attention', 'full_attention']},
    'qwen2_null': {**QWEN_CONFIG, 'use_sliding_window': None, 'layer_types': ['sliding_attention', 'full_attention']},
    'gemma2_first': {**QWEN_CONFIG, 'model_type': 'gemma2', 'head_dim': 4, 'layer_types': ['full_attention', 'sliding_attention']},
    'gpt2_plain': {**GPT_CONFIG, 'scale_attn_weights': True, 'reorder_and_upcast_attn': True},
}


def model_folder(folder, content):
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps(GPT_CONFIG))
    (folder / 'model.safetensors').write_bytes(content)


def fixtures(folder):
    """The files that the recipes name; those in `outside`, beside the recipes' folder, they are not to reach."""
    outside = folder.parent / 'outside'
    outside.mkdir()
    (outside / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 20)
    (folder / 'linked').symlink_to(outside)
    (folder / 'linking').mkdir()
    (folder / 'linking' / 'config.json').symlink_to(outside / 'text.txt')
    (folder / 'broken_module.lua').write_text('local nothing\nreturn nothing.field\n')
    (folder / 'empty.txt').write_bytes(b'')
    (folder / 'short.txt').write_text('too short')
    (folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 20)
    (folder / 'odd.bin').write_bytes(bytes(4097))
    (folder / 'tokens.bin').write_bytes(struct.pack('<40H', *range(4), *range(36)))
    header = json.dumps({'transformer.wte.weight': {'dtype': 'F32', 'shape': [64, 8], 'data_offsets': [0, 2048]}}).encode()
    model_folder(folder / 'truncated', struct.pack('<Q', len(header)) + header + bytes(100))
    lie = json.dumps({'transformer.wte.weight': {'dtype': 'F32', 'shape': [64, 8], 'data_offsets': [1024, 3072]}}).encode()
    for name, config in OTHER_MODELS.items():
        (folder / name).mkdir()
        (folder / name / 'config.json').write_text(json.dumps(config))
    model_folder(folder / 'lying', struct.pack('<Q', len(lie)) + lie + bytes(2048))


def run(hetrun, folder, name):
    """Exit code and standard error of one case, as text."""
    done = subprocess.run([hetrun, '--quiet', '--threads=1', f'{name}.lua', *ARGUMENTS.get(name, [])],
                          cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return f'exit {done.returncode}\n{done.stderr}'


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    names = [word for word in sys.argv[2:] if not word.startswith('--')]
    write = '--write' in sys.argv
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / 'recipes'
        folder.mkdir()
        fixtures(folder)
        for recipe in sorted(HERE.glob('*.lua')):
            if names and recipe.stem not in names:
                continue
            (folder / recipe.name).write_text(recipe.read_text())
            got = run(hetrun, folder, recipe.stem)
            expected_path = recipe.with_suffix('.expected')
            if write:
                expected_path.write_text(got)
                continue
            expected = expected_path.read_text()
            if matches(expected, got):
                print(f'ok    {recipe.stem}')
            else:
                failed += 1
                print(f'FAIL  {recipe.stem}')
                print('\n'.join(difflib.unified_diff(expected.splitlines(), got.splitlines(), 'expected', 'got',
                                                     lineterm='')))
    return 1 if failed else 0


def matches(expected, got):
    """Word for word; `<...>` in what is expected stands for anything on its line."""
    wanted, lines = expected.splitlines(), got.splitlines()
    if len(wanted) != len(lines):
        return False
    for want, line in zip(wanted, lines):
        at = 0
        parts = want.split('<...>')
        if not line.startswith(parts[0]) or (len(parts) == 1 and line != want):
            return False
        for part in parts:
            found = line.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        if parts[-1] and not line.endswith(parts[-1]):
            return False
    return True


if __name__ == '__main__':
    sys.exit(main())
