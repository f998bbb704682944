#!/usr/bin/env python3
"""Models written by transformers give the same logits in hetrun, and those that hetrun writes in transformers:
shapes that models.py does not train (own inner sizes, untied tables, grouped queries, wide heads).

usage: huggingface.py HETRUN [names of cases]    (exit code 77: transformers is not installed)
"""
import functools
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import safetensors.torch
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
# Sizes that most families name alike. Without a padding token: PyTorch does not train the row of one.
SMALL = {'vocab_size': VOCAB, 'hidden_size': 24, 'intermediate_size': 56, 'num_hidden_layers': 3,
         'num_attention_heads': 4, 'max_position_embeddings': 16, 'pad_token_id': None, 'bos_token_id': 0, 'eos_token_id': 0}

CASES = {
    'gpt2': lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=24, n_layer=3, n_head=4, n_inner=40, bos_token_id=0, eos_token_id=0)),
    'gpt2 exact gelu, untied': lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=24, n_layer=2, n_head=3, activation_function='gelu',
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)),
    'llama': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=56, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=16, bos_token_id=0, eos_token_id=0)),
    'llama tied, wide heads': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=16, tie_word_embeddings=True,
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
    'qwen2 window': lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **SMALL, num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1)),
    'qwen3 window': lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        **SMALL, num_key_value_heads=2, head_dim=8, use_sliding_window=True, sliding_window=3, max_window_layers=0)),
    'qwen3': lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        **SMALL, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True)),
    'olmo2': lambda: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**SMALL, num_key_value_heads=2)),
    'olmo3': lambda: transformers.Olmo3ForCausalLM(transformers.Olmo3Config(
        **{**SMALL, 'num_hidden_layers': 5}, num_key_value_heads=2, sliding_window=4)),
    'olmo3 yarn': lambda: transformers.Olmo3ForCausalLM(transformers.Olmo3Config(
        **{**SMALL, 'num_hidden_layers': 5}, num_key_value_heads=2, sliding_window=4, rope_scaling={
            'rope_type': 'yarn', 'factor': 2.0, 'original_max_position_embeddings': 8})),
    'starcoder2': lambda: transformers.Starcoder2ForCausalLM(transformers.Starcoder2Config(**SMALL, num_key_value_heads=2)),
    'starcoder2 window': lambda: transformers.Starcoder2ForCausalLM(transformers.Starcoder2Config(
        **SMALL, num_key_value_heads=2, sliding_window=4, use_bias=False, tie_word_embeddings=False, hidden_act='gelu')),
    'stablelm': lambda: transformers.StableLmForCausalLM(transformers.StableLmConfig(
        **{**SMALL, 'hidden_size': 32}, num_key_value_heads=2, use_qkv_bias=True)),
    'granite': lambda: transformers.GraniteForCausalLM(transformers.GraniteConfig(
        **SMALL, num_key_value_heads=2, embedding_multiplier=3.0, residual_multiplier=0.22, attention_multiplier=0.3,
        logits_scaling=4.0, tie_word_embeddings=True)),
    'granite plain': lambda: transformers.GraniteForCausalLM(transformers.GraniteConfig(
        **SMALL, num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    'smollm3': lambda: transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(
        **SMALL, num_key_value_heads=2, no_rope_layer_interval=2)),
    'smollm3 with all positions': lambda: transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(
        **SMALL, num_key_value_heads=2, no_rope_layers=[1, 1, 1], tie_word_embeddings=False)),
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
    'phi3 longrope of a long text': lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(
        **{**SMALL, 'hidden_size': 24, 'max_position_embeddings': 32}, num_key_value_heads=2, original_max_position_embeddings=8, rope_parameters={
            'rope_type': 'longrope', 'rope_theta': 10000.0, 'short_factor': [1.0, 1.5, 2.0],
            'long_factor': [2.0, 3.0, 4.0]})),
    'phi3 longrope of a short text': lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(
        **{**SMALL, 'hidden_size': 24, 'max_position_embeddings': 32}, num_key_value_heads=2, original_max_position_embeddings=16, rope_parameters={
            'rope_type': 'longrope', 'rope_theta': 10000.0, 'short_factor': [1.0, 1.5, 2.0],
            'long_factor': [2.0, 3.0, 4.0]})),
    'gpt_neox': lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        **SMALL, rope_parameters={'rope_type': 'default', 'rope_theta': 5000.0, 'partial_rotary_factor': 0.67})),
    'gpt_neox one after the other': lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        **SMALL, use_parallel_residual=False, hidden_act='gelu_new', attention_bias=False,
        rope_parameters={'rope_type': 'default', 'rope_theta': 10000.0, 'partial_rotary_factor': 1.0})),
    'mixtral': lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **SMALL, num_key_value_heads=2, num_local_experts=4)),
    'olmoe': lambda: transformers.OlmoeForCausalLM(transformers.OlmoeConfig(
        **SMALL, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2)),
    'qwen3_moe': lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **SMALL, num_key_value_heads=2, head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
        norm_topk_prob=True)),
    'qwen3_moe some dense': lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **SMALL, num_key_value_heads=2, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20,
        mlp_only_layers=[1])),
    'qwen2_moe': lambda: transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
        **SMALL, num_key_value_heads=2, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
        shared_expert_intermediate_size=36)),
    'qwen2_moe some dense': lambda: transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
        **{**SMALL, 'num_hidden_layers': 4}, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=20, shared_expert_intermediate_size=36, norm_topk_prob=True, qkv_bias=False,
        decoder_sparse_step=2, mlp_only_layers=[3])),
    'bert': lambda: transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=16)),
}
FRESH = ['gemma', 'gemma2', 'gemma3_text', 'gpt_neox', 'granite', 'llama', 'mistral', 'mixtral', 'olmo2', 'olmo3', 'olmoe', 'phi3',
         'qwen2', 'qwen2_moe', 'qwen3', 'qwen3_moe', 'smollm3', 'stablelm', 'starcoder2']


def tokens():
    return torch.tensor([[(7 * i + i * i) % VOCAB for i in range(1, LENGTH + 1)]])


def their_logits(model):
    with torch.no_grad():
        return model.eval()(tokens()).logits[0].double()


def run(hetrun, folder, *words):
    done = subprocess.run([hetrun, '--quiet', '--trust', str(folder / 'huggingface.lua'), f'--vocab={VOCAB}',
                           f'--length={LENGTH}', *words],
                          cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout


def our_logits(hetrun, folder, model):
    lines = run(hetrun, folder, f'--folder={model}').splitlines()
    return torch.tensor([[float(word) for word in line.split()] for line in lines]).double()


def spread(model):
    """Random weights far from their initial ones, so that each of them matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


def saved_again(hetrun, folder, model_class):
    """What hetrun saved into runs/again, in transformers: the greatest difference, and what is odd about it."""
    back, info = model_class.from_pretrained(folder / 'runs/again', output_loading_info=True, dtype=torch.float32)
    odd = {key: value for key, value in info.items() if value}
    return (their_logits(back) - our_logits(hetrun, folder, 'runs/again')).abs().max().item(), odd


def check(hetrun, folder, make, shard, dtype):
    """A model of transformers in hetrun, and what hetrun then saves in transformers."""
    model = make()
    spread(model)
    if dtype:
        model = model.to(dtype)
    model.save_pretrained(folder / 'model', **({'max_shard_size': shard} if shard else {}))
    if shard and not (folder / 'model' / 'model.safetensors.index.json').exists():
        raise RuntimeError('the model was not saved in parts')
    model = type(model).from_pretrained(folder / 'model', dtype=torch.float32)
    there = (their_logits(model) - our_logits(hetrun, folder, 'model')).abs().max().item()
    again, odd = saved_again(hetrun, folder, type(model))
    saved = safetensors.torch.load_file(folder / 'runs/again/model.safetensors')
    config = type(model).config_class.from_pretrained(folder / 'runs/again')
    if {tensor.dtype for tensor in saved.values()} | {config.dtype} != {dtype or torch.float32}:
        raise RuntimeError('it is not saved as it was found')
    return {'into hetrun': there, 'and back': again}, odd


def check_fresh(hetrun, folder, family):
    """A model that begins in hetrun."""
    run(hetrun, folder, f'--family={family}')
    again, odd = saved_again(hetrun, folder, transformers.AutoModelForCausalLM)
    return {'from hetrun': again}, odd


def gemma3_with_pictures():
    text = {**SMALL, 'num_hidden_layers': 7, 'num_key_value_heads': 2, 'head_dim': 16, 'sliding_window': 4, 'query_pre_attn_scalar': 24,
            'rope_parameters': {'sliding_attention': {'rope_type': 'default', 'rope_theta': 1000.0},
                                'full_attention': {'rope_type': 'linear', 'rope_theta': 5000.0, 'factor': 8.0}}}
    assert all(token not in tokens() for token in (1, 2, 3))
    return transformers.Gemma3ForConditionalGeneration(transformers.Gemma3Config(
        text_config=text, image_token_id=1, boi_token_index=2, eoi_token_index=3, mm_tokens_per_image=4,
        vision_config={'hidden_size': 16, 'intermediate_size': 24, 'num_hidden_layers': 1, 'num_attention_heads': 2, 'image_size': 28,
                       'patch_size': 7}))


def as_on_the_hub(folder):
    """The folder as transformers wrote it before version 4.52: other names, and of text_config what is not the default."""
    tensors = {name.replace('model.language_model.', 'language_model.model.').replace('model.vision_tower', 'vision_tower'): tensor
               for name, tensor in safetensors.torch.load_file(folder / 'model.safetensors').items()}
    assert 'language_model.model.norm.weight' in tensors
    safetensors.torch.save_file(tensors, folder / 'model.safetensors', {'format': 'pt'})
    config = json.loads((folder / 'config.json').read_text())
    inner = config['text_config']
    rope = inner.pop('rope_parameters')
    for name in ('layer_types', 'hidden_activation', 'rms_norm_eps', 'attention_bias', 'tie_word_embeddings', 'dtype'):
        inner.pop(name, None)
    inner.update(rope_theta=rope['full_attention']['rope_theta'], rope_local_base_freq=rope['sliding_attention']['rope_theta'],
                 rope_scaling={'factor': 8.0, 'rope_type': 'linear'})
    (folder / 'config.json').write_text(json.dumps(config))


def check_language_part(hetrun, folder, make, rewrite):
    """The language model in a folder that has a vision tower, too; it is saved alone."""
    model = make()
    spread(model)
    model.save_pretrained(folder / 'model')
    if rewrite:
        rewrite(folder / 'model')
    there = (their_logits(model) - our_logits(hetrun, folder, 'model')).abs().max().item()
    again, odd = saved_again(hetrun, folder, transformers.Gemma3ForCausalLM)
    done = subprocess.run([hetrun, '--trust', 'huggingface.lua', f'--vocab={VOCAB}'], cwd=folder, capture_output=True, text=True, check=False)
    if 'model holds more than a language model, such as a vision tower, which is left out; a saved model is a gemma3_text' not in done.stderr:
        raise RuntimeError(f'the run does not say what it leaves out: {done.stderr}')
    return {'into hetrun': there, 'and back': again}, odd


def main():
    hetrun, wanted, failed = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2:], 0
    cases = {name: (check, make, None, None) for name, make in CASES.items()}
    cases['llama in parts'] = (check, CASES['llama'], '20KB', None)
    for dtype in (torch.bfloat16, torch.float16):
        cases[f'qwen2 in {dtype}'] = (check, CASES['qwen2'], None, dtype)
    cases['gemma3 with pictures'] = (check_language_part, gemma3_with_pictures, None)
    cases['gemma3 with pictures, as on the Hub'] = (check_language_part, gemma3_with_pictures, as_on_the_hub)
    cases.update({f'new {family}': (check_fresh, family) for family in FRESH})
    for name, (function, *words) in cases.items():
        if wanted and not any(name.startswith(word) for word in wanted):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            ids = [(i * i + 3 * i) % VOCAB for i in range(400)]
            (folder / 'tokens.bin').write_bytes(struct.pack(f'<{len(ids)}H', *ids))
            (folder / 'huggingface.lua').write_text((HERE / 'huggingface.lua').read_text())
            try:
                differences, odd = function(hetrun, folder, *words)
            except RuntimeError as error:
                differences, odd = {}, str(error)
        good = not odd and all(value < TOLERANCE for value in differences.values())
        shown = ', '.join(f'{what} {value:.1e}' for what, value in differences.items())
        print(f'{"ok  " if good else "FAIL"}  {name}: {shown} {odd or ""}')
        failed += not good
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
