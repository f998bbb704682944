#!/usr/bin/env python3
"""Models written by transformers give the same logits in hetrun, and those that hetrun writes in transformers:
shapes that models.py does not train (own inner sizes, untied tables, grouped queries, wide heads).

usage: huggingface.py HETRUN    (exit code 77: transformers is not installed)
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError:
    print('transformers or torch is not installed: skipped')
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, LENGTH = 50, 12
TOLERANCE = 1e-4

CASES = {
    'gpt2': lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=24, n_layer=3, n_head=4, n_inner=40, bos_token_id=0, eos_token_id=0)),
    'gpt2 exact gelu, untied': lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=24, n_layer=2, n_head=3, activation_function='gelu',
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)),
    'llama': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=56, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=16, pad_token_id=0, bos_token_id=0, eos_token_id=0)),
    'llama tied, wide heads': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=16, tie_word_embeddings=True, pad_token_id=0,
        bos_token_id=0, eos_token_id=0)),
    'bert': lambda: transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=16)),
}


def tokens():
    return torch.tensor([[(7 * i + i * i) % VOCAB for i in range(1, LENGTH + 1)]])


def their_logits(model):
    with torch.no_grad():
        return model.eval()(tokens()).logits[0].double()


def our_logits(hetrun, recipe, folder, model):
    done = subprocess.run([hetrun, '--quiet', '--trust', recipe, f'--folder={model}', f'--vocab={VOCAB}',
                           f'--length={LENGTH}'],
                          cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return torch.tensor([[float(word) for word in line.split()] for line in done.stdout.splitlines()]).double()


def spread(model):
    """Random weights far from their initial ones, so that each of them matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    failed = 0
    for name, make in CASES.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            ids = [(i * i + 3 * i) % VOCAB for i in range(400)]
            (folder / 'tokens.bin').write_bytes(struct.pack(f'<{len(ids)}H', *ids))
            recipe = folder / 'huggingface.lua'
            recipe.write_text((HERE / 'huggingface.lua').read_text())
            model = make()
            spread(model)
            model.save_pretrained(folder / 'model')
            there = (their_logits(model) - our_logits(hetrun, recipe, folder, 'model')).abs().max().item()
            back, info = type(model).from_pretrained(folder / 'runs/again', output_loading_info=True)
            odd = {key: value for key, value in info.items() if value}
            again = (their_logits(back) - our_logits(hetrun, recipe, folder, 'runs/again')).abs().max().item()
            good = there < TOLERANCE and not odd
            print(f'{"ok  " if good else "FAIL"}  {name}: into hetrun {there:.1e}, and back {again:.1e} {odd or ""}')
            failed += not good or again >= TOLERANCE
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
