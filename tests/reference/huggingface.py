#!/usr/bin/env python3
"""Models written by transformers give the same logits in hetrun, and those that hetrun writes in transformers:
shapes that models.py does not train (own inner sizes, untied tables, grouped queries, wide heads).

usage: huggingface.py HETRUN [names of cases]    (exit code 77: transformers is not installed)
"""
import functools
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

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
HERE = pathlib.Path(__file__).resolve().parent
VOCAB, LENGTH = 50, 12
TOLERANCE = 1e-4
# Sizes that most families name alike.
SMALL = {'vocab_size': VOCAB, 'hidden_size': 24, 'intermediate_size': 56, 'num_hidden_layers': 3,
         'num_attention_heads': 4, 'max_position_embeddings': 16, 'pad_token_id': 0, 'bos_token_id': 0, 'eos_token_id': 0}

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
    'llama biased': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    **{f'llama {rope["rope_type"]}': functools.partial(lambda rope: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2, rope_parameters={'rope_theta': 500.0, **rope})), rope)
       for rope in ({'rope_type': 'linear', 'factor': 4.0}, {'rope_type': 'dynamic', 'factor': 2.0},
                    {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
                     'original_max_position_embeddings': 8},
                    {'rope_type': 'yarn', 'factor': 2.0, 'original_max_position_embeddings': 8})},
    'mistral': lambda: transformers.MistralForCausalLM(transformers.MistralConfig(
        **SMALL, num_key_value_heads=2, sliding_window=None)),
    'mistral window': lambda: transformers.MistralForCausalLM(transformers.MistralConfig(
        **SMALL, num_key_value_heads=2, sliding_window=4)),
    'qwen2': lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL, num_key_value_heads=2)),
    'qwen3': lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        **SMALL, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True)),
    'olmo2': lambda: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**SMALL, num_key_value_heads=2)),
    'gemma': lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(
        **SMALL, num_key_value_heads=1, head_dim=16)),
    'gemma2': lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **SMALL, num_key_value_heads=2, head_dim=16, sliding_window=4, query_pre_attn_scalar=24,
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    'gemma3': lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **{**SMALL, 'num_hidden_layers': 7}, num_key_value_heads=2, head_dim=16, sliding_window=4,
        query_pre_attn_scalar=24)),
    'gemma3 scaled': lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **{**SMALL, 'num_hidden_layers': 6}, num_key_value_heads=2, head_dim=16, sliding_window=16,
        rope_parameters={'sliding_attention': {'rope_type': 'default', 'rope_theta': 1000.0},
                         'full_attention': {'rope_type': 'linear', 'rope_theta': 5000.0, 'factor': 8.0}})),
    'phi3': lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(
        **SMALL, num_key_value_heads=2, rope_parameters={'rope_type': 'default', 'rope_theta': 10000.0,
                                                         'partial_rotary_factor': 0.75})),
    'phi3 longrope': lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(
        **{**SMALL, 'hidden_size': 24}, num_key_value_heads=2, original_max_position_embeddings=16, rope_parameters={
            'rope_type': 'longrope', 'rope_theta': 10000.0, 'short_factor': [1.0, 1.5, 2.0],
            'long_factor': [2.0, 3.0, 4.0]})),
    'gpt_neox': lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        **SMALL, rope_parameters={'rope_type': 'default', 'rope_theta': 5000.0, 'partial_rotary_factor': 0.67})),
    'gpt_neox one after the other': lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        **SMALL, use_parallel_residual=False, hidden_act='gelu_new', attention_bias=False,
        rope_parameters={'rope_type': 'default', 'rope_theta': 10000.0, 'partial_rotary_factor': 1.0})),
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
    wanted = sys.argv[2:]
    for name, make in CASES.items():
        if wanted and not any(name.startswith(word) for word in wanted):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            ids = [(i * i + 3 * i) % VOCAB for i in range(400)]
            (folder / 'tokens.bin').write_bytes(struct.pack(f'<{len(ids)}H', *ids))
            recipe = folder / 'huggingface.lua'
            recipe.write_text((HERE / 'huggingface.lua').read_text())
            model = make()
            spread(model)
            model.save_pretrained(folder / 'model')
            try:
                there = (their_logits(model) - our_logits(hetrun, recipe, folder, 'model')).abs().max().item()
                back, info = type(model).from_pretrained(folder / 'runs/again', output_loading_info=True)
                odd = {key: value for key, value in info.items() if value}
                again = (their_logits(back) - our_logits(hetrun, recipe, folder, 'runs/again')).abs().max().item()
            except RuntimeError as error:
                print(f'FAIL  {name}: {error}')
                failed += 1
                continue
            good = there < TOLERANCE and not odd
            print(f'{"ok  " if good else "FAIL"}  {name}: into hetrun {there:.1e}, and back {again:.1e} {odd or ""}')
            failed += not good or again >= TOLERANCE
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
