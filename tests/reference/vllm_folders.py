#!/usr/bin/env python3
"""vLLM reads what hetrun saves: a small model of each family, made by transformers and trained for a few steps by hetrun, writes in
vLLM what it writes in hetrun, as text and as an answer by its chat template. So does one that hetrun trains from scratch.

usage: vllm_folders.py HETRUN [names of families]    (exit code 77: vLLM is not installed; HETRUN_PYTHON names a Python that has it)
"""
import importlib.util
import json
import os
import pathlib
import sys
import tempfile

if importlib.util.find_spec('vllm') is None:
    print('vllm is not installed: skipped')
    sys.exit(77)
os.environ.update(HF_HUB_OFFLINE='1', VLLM_CPU_KVCACHE_SPACE='1', VLLM_LOGGING_LEVEL='ERROR', VLLM_ENABLE_V1_MULTIPROCESSING='0')

from commands import TEMPLATE, TEXT, run_in, tokenizer  # noqa: E402
from huggingface import spread, torch, transformers  # noqa: E402

CONTEXT, WRITTEN = 32, 12
# Heads of 32 are the smallest that vLLM computes on processors.
SIZES = {'vocab_size': 50, 'hidden_size': 64, 'intermediate_size': 96, 'num_hidden_layers': 3, 'num_attention_heads': 2, 'head_dim': 32,
         'num_key_value_heads': 1, 'max_position_embeddings': CONTEXT, 'pad_token_id': None, 'bos_token_id': 0, 'eos_token_id': 0}
EXPERTS = {'num_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 32}
FAMILIES = {
    'gpt2': {}, 'llama': {'rope_parameters': {'rope_type': 'llama3', 'rope_theta': 500.0, 'factor': 8.0, 'low_freq_factor': 1.0,
                                              'high_freq_factor': 4.0, 'original_max_position_embeddings': 8}},
    'mistral': {'sliding_window': 8}, 'qwen2': {}, 'qwen3': {'tie_word_embeddings': True}, 'olmo2': {}, 'gemma': {},
    'gemma2': {'sliding_window': 8, 'query_pre_attn_scalar': 24, 'attn_logit_softcapping': 2.0, 'final_logit_softcapping': 3.0},
    'gemma3_text': {'num_hidden_layers': 7, 'sliding_window': 8, 'query_pre_attn_scalar': 24}, 'phi3': {},
    'olmo3': {'num_hidden_layers': 5, 'sliding_window': 8}, 'starcoder2': {'sliding_window': 8}, 'stablelm': {'use_qkv_bias': True},
    'smollm3': {'num_hidden_layers': 5}, 'granite': {'embedding_multiplier': 3.0, 'residual_multiplier': 0.22, 'attention_multiplier': 0.3, 'logits_scaling': 4.0},
    'gpt_neox': {'num_key_value_heads': 2, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 5000.0, 'partial_rotary_factor': 0.5}},
    'mixtral': {'num_local_experts': 4}, 'olmoe': EXPERTS, 'qwen3_moe': {**EXPERTS, 'norm_topk_prob': True},
    'qwen2_moe': {**EXPERTS, 'shared_expert_intermediate_size': 48},
}
RECIPE = '''local het = require "het"
local opt = het.options { model = { "", "folder; empty: from scratch", path = "read" }, save = { "saved", "folder", path = "write" } }
local scratch = opt.model == ""
local data = scratch and het.data.text { path = "text.txt", tokenizer = "char" }
  or het.data.jsonl { path = "data.jsonl", model = opt.model, holdout = 0 }
return het.train {
  model = scratch and het.nn.llama { vocab = data.vocab, context = 32, width = 64, layers = 2, heads = 2 } or het.load(opt.model),
  data = data, context = 32, batch = 4, steps = 4, optimizer = het.optim.adamw { lr = 1e-3 }, evaluate = { every = 0 },
  save = opt.save,
}
'''


def make(family, extra, folder):
    """A folder of transformers."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **{**SIZES, **extra}))
    spread(model)
    model.save_pretrained(folder)
    words = tokenizer()
    words.chat_template = TEMPLATE
    words.save_pretrained(folder)


def check(hetrun, family, folder):
    (folder / 'recipe.lua').write_text(RECIPE)
    (folder / 'text.txt').write_text(TEXT)
    (folder / 'data.jsonl').write_text(''.join(json.dumps({'text': TEXT[i:i + 20]}) + '\n' for i in range(8)))
    if family in FAMILIES:
        make(family, FAMILIES[family], folder / 'model')
    run_in(hetrun, folder, '--quiet', '--trust', 'recipe.lua', *(['--model=model'] if family in FAMILIES else []))
    from vllm import LLM, SamplingParams
    model = LLM(model=str(folder / 'saved'), dtype='float32', enforce_eager=True, max_model_len=CONTEXT)
    greedy = SamplingParams(temperature=0, max_tokens=WRITTEN)
    prompt = TEXT[:5]   # in letters that the vocabulary of a model from scratch has, too
    words = ['generate', 'saved', '--prompt=' + prompt, f'--tokens={WRITTEN}', '--temperature=0', '--json']
    ours = [json.loads(run_in(hetrun, folder, *words))['text']]
    theirs = [model.generate([prompt], greedy, use_tqdm=False)[0].outputs[0].text]
    if family in FAMILIES:   # a model from scratch has no template
        ours.append(json.loads(run_in(hetrun, folder, *words, '--chat'))['text'])
        theirs.append(model.chat([{'role': 'user', 'content': prompt}], greedy, use_tqdm=False)[0].outputs[0].text)
    if ours != theirs or not any(ours):
        return f'hetrun writes {ours}, vLLM {theirs}'
    print(f'{family}: {ours}')
    return None


def main():
    hetrun, wanted = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2:]
    failed = 0
    for family in [*FAMILIES, 'from scratch']:
        if wanted and family not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                problem = check(hetrun, family, pathlib.Path(folder))
            except Exception as error:   # vLLM's are of all kinds
                problem = f'{type(error).__name__}: {error}'
        print(f'{"FAIL" if problem else "ok  "}  {family}{": " + problem if problem else ""}', flush=True)
        failed += problem is not None
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
