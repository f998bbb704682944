#!/usr/bin/env python3
"""Adapters (nn.lora) of the families of huggingface.py, against PEFT: those that PEFT saved give the same logits in hetrun, those
that hetrun saved in PEFT, merged ones in transformers; 20 steps from the same adapters give the same losses, on one device and
under plans.

usage: lora.py HETRUN [names of cases]    (exit code 77: transformers or peft is not installed)
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

from families import PLANS, differences
from huggingface import CASES, HERE, TOLERANCE, VOCAB, our_logits, spread, their_logits, torch

try:
    import peft
except ImportError:
    print('peft is not installed: skipped')
    sys.exit(77)

LLAMA = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
TARGETS = {
    'gpt2': ['c_attn', 'c_proj', 'c_fc'], 'gpt2 exact gelu, untied': ['c_attn'], 'llama': LLAMA, 'llama biased': ['q_proj', 'v_proj'],
    'mistral window': ['k_proj', 'down_proj'], 'qwen2': LLAMA, 'qwen3': LLAMA, 'olmo2': LLAMA, 'gemma2': LLAMA,
    'phi3': ['qkv_proj', 'o_proj', 'gate_up_proj', 'down_proj'],
    'gpt_neox': ['query_key_value', 'dense', 'dense_h_to_4h', 'dense_4h_to_h'], 'mixtral': LLAMA[:4],
    'bert': ['query', 'value', 'dense'],
}
MORE_PLANS = {'sequence': 2, 'data': 2, 'sharded': 2}   # of one family


def in_peft(folder, base, adapter):
    """What hetrun saved, in PEFT."""
    model = peft.PeftModel.from_pretrained(type(base).from_pretrained(folder / 'model'), folder / adapter)
    return their_logits(model)


def check(hetrun, name, make, folder):
    torch.manual_seed(5)
    base = make()
    spread(base)
    for key in ('resid_pdrop', 'embd_pdrop', 'attn_pdrop'):   # no dropout: its draws differ
        if hasattr(base.config, key):
            setattr(base.config, key, 0.0)
    base.save_pretrained(folder / 'model')
    base.name_or_path = 'model'
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=6, target_modules=TARGETS[name],
                                                      fan_in_fan_out=name.startswith('gpt2')))
    model.peft_config['default'].base_model_name_or_path = 'model'
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if 'lora_' in key:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder / 'adapter')
    found = {'into hetrun': (their_logits(model) - our_logits(hetrun, folder, 'adapter')).abs().max().item()}
    again = in_peft(folder, base, 'runs/again')
    subprocess.run([hetrun, '--quiet', 'merge', 'runs/again', 'merged'], cwd=folder, check=True, timeout=60)
    merged, info = type(base).from_pretrained(folder / 'merged', output_loading_info=True)
    ours = our_logits(hetrun, folder, 'runs/again')   # and trains it further
    found['and back'] = (again - ours).abs().max().item()
    found['merged'] = (their_logits(merged) - ours).abs().max().item()
    odd = {key: value for key, value in info.items() if value}
    if odd or max(found.values()) >= TOLERANCE:
        return f'{found} {odd}'
    shown = ', '.join(f'{what} {value:.1e}' for what, value in found.items())
    if name == 'bert':
        print(f'{name}: logits {shown}')
        return None

    plans = {**PLANS, **(MORE_PLANS if name == 'qwen2' else {})}
    problem, trained = differences(hetrun, folder, model.eval(), plans, 'adapter')
    print(f'{name}: logits {shown}; {trained}')
    return problem


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    failed = 0
    for name in TARGETS:
        if sys.argv[2:] and not any(name.startswith(word) for word in sys.argv[2:]):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            ids = [(i * i + 3 * i) % VOCAB for i in range(400)]
            (folder / 'tokens.bin').write_bytes(struct.pack(f'<{len(ids)}H', *ids))
            (folder / 'huggingface.lua').write_text((HERE / 'huggingface.lua').read_text())
            try:
                problem = check(hetrun, name, CASES[name], folder)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                problem = str(error)
        if problem:
            print(f'FAIL  {name}: {problem}')
            failed += 1
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
