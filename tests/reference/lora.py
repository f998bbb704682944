#!/usr/bin/env python3
"""Adapters (nn.lora) of the families of huggingface.py, against PEFT: those that PEFT saved give the same logits in hetrun, those
that hetrun saved in PEFT, merged ones in transformers; 20 steps from the same adapters give the same losses, on one device and
under plans. Adapters of single experts, whose weights transformers keep in one tensor, are those of a plain PyTorch model; those of
the tensor are PEFT's.

usage: lora.py HETRUN [names of cases]    (exit code 77: transformers or peft is not installed)
"""
import functools
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from families import PLANS, differences
from huggingface import CASES, HERE, TOLERANCE, VOCAB, gemma3_with_pictures, our_logits, spread, their_logits, torch
from torch.nn.utils import parametrize

try:
    import peft
    import safetensors.torch
except ImportError:
    print('peft is not installed: skipped')
    sys.exit(77)

LLAMA = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
TARGETS = {
    'gpt2': ['c_attn', 'c_proj', 'c_fc'], 'gpt2 exact gelu, untied': ['c_attn', 'lm_head'], 'llama': [*LLAMA, 'lm_head'],
    'llama biased': ['q_proj', 'v_proj'],
    'mistral window': ['k_proj', 'down_proj'], 'qwen2': LLAMA, 'qwen3': LLAMA, 'olmo2': LLAMA, 'gemma2': LLAMA,
    'granite': LLAMA, 'olmo3': LLAMA, 'smollm3': LLAMA, 'stablelm': LLAMA, 'starcoder2': ['q_proj', 'o_proj', 'c_fc', 'c_proj'],
    'phi3': ['qkv_proj', 'o_proj', 'gate_up_proj', 'down_proj'],
    'gpt_neox': ['query_key_value', 'dense', 'dense_h_to_4h', 'dense_4h_to_h'], 'mixtral': LLAMA[:4],
    'bert': ['query', 'value', 'dense'],
}
# Adapters of parameters that have all experts, as transformers has them since version 5.
PARAMETERS = {
    'mixtral': {'target_modules': ['q_proj', 'v_proj'], 'target_parameters': ['mlp.experts.gate_up_proj', 'mlp.experts.down_proj']},
    'olmoe': {'target_modules': [], 'target_parameters': ['experts.gate_up_proj']},
    'qwen2_moe': {'target_modules': ['v_proj', 'shared_expert.up_proj', 'shared_expert_gate'],
                  'target_parameters': ['mlp.experts.gate_up_proj']},
    'qwen3_moe': {'target_modules': ['o_proj'], 'target_parameters': ['mlp.experts.down_proj']},
}
# Layers with another rank or alpha.
PATTERNS = {
    'qwen2': {'target_modules': LLAMA, 'rank_pattern': {'v_proj': 2, 'model.layers.0.self_attn.q_proj': 6},
              'alpha_pattern': {r'^model\.layers\.1\.mlp\.down_proj': 3, 'mlp.up.proj': 4,
                                '^v_proj': 50, '^layers.0.self_attn.k_proj': 50, 'lm_head': 50, 'proj': 50}},   # these name none
    'phi3': {'target_modules': ['qkv_proj', 'gate_up_proj'], 'rank_pattern': {r'.*\.qkv_proj': 6, 'layers.0.mlp.gate_up_proj': 2}},
    'mixtral': {**PARAMETERS['mixtral'], 'rank_pattern': {'v_proj': 2, 'mlp.experts.gate_up_proj': 3},
                'alpha_pattern': {'experts.down_proj': 9}},
}
MORE_PLANS = {'sequence': 2, 'data': 2, 'sharded': 2}   # of one family


# By family: the names of its experts in a block, of gate, up and down.
EXPERTS = {'mixtral': ('block_sparse_moe', 'w1', 'w3', 'w2'), 'olmoe': ('mlp', 'gate_proj', 'up_proj', 'down_proj'),
           'qwen3_moe': ('mlp', 'gate_proj', 'up_proj', 'down_proj')}
RANK, ALPHA = 4, 6


class LowRank(torch.nn.Module):
    """What adapters add to the weights of all experts [experts, outputs, inputs]; each of `names` has a part of the rows."""

    def __init__(self, weight, names, tensors):
        super().__init__()
        self.a, self.b = torch.nn.ParameterList(), torch.nn.ParameterList()
        for name in names:
            for to, which in ((self.a, 'lora_A'), (self.b, 'lora_B')):
                to.append(torch.nn.Parameter(torch.stack([tensors[name % (expert, which)] for expert in range(len(weight))])))

    def forward(self, weight):
        return weight + ALPHA / RANK * torch.cat([b @ a for a, b in zip(self.a, self.b)], 1)


def with_experts(model, name, tensors):
    """The model with the adapters of its experts; all else is not trained."""
    mlp, gate, up, down = EXPERTS[name]
    model.requires_grad_(False)
    for number, layer in enumerate(model.model.layers):
        experts = next(module for module in layer.modules() if hasattr(module, 'gate_up_proj'))
        own = f'base_model.model.model.layers.{number}.{mlp}.experts.%d.'
        for of, parts in (('gate_up_proj', (gate, up)), ('down_proj', (down,))):
            names = [own + part + '.%s.weight' for part in parts]
            parametrize.register_parametrization(experts, of, LowRank(getattr(experts, of), names, tensors))
            getattr(experts.parametrizations, of).original.requires_grad_(False)
    return model


def fresh_adapters(model, name):
    """Adapters of all experts, as PEFT names them."""
    mlp, gate, up, down = EXPERTS[name]
    config, generator, tensors = model.config, torch.Generator().manual_seed(3), {}
    hidden = getattr(config, 'moe_intermediate_size', None) or config.intermediate_size
    experts = getattr(config, 'num_local_experts', None) or config.num_experts
    for number in range(config.num_hidden_layers):
        for expert in range(experts):
            for part, inputs, outputs in ((gate, config.hidden_size, hidden), (up, config.hidden_size, hidden),
                                          (down, hidden, config.hidden_size)):
                own = f'base_model.model.model.layers.{number}.{mlp}.experts.{expert}.{part}'
                tensors[own + '.lora_A.weight'] = 0.3 * torch.randn(RANK, inputs, generator=generator)
                tensors[own + '.lora_B.weight'] = 0.3 * torch.randn(outputs, RANK, generator=generator)
    return tensors


def check_experts(hetrun, name, make, folder):
    torch.manual_seed(5)
    base = make()
    spread(base)
    base.save_pretrained(folder / 'model')
    tensors = fresh_adapters(base, name)
    (folder / 'adapter').mkdir()
    safetensors.torch.save_file(tensors, folder / 'adapter/adapter_model.safetensors')
    (folder / 'adapter/adapter_config.json').write_text(json.dumps({
        'peft_type': 'LORA', 'base_model_name_or_path': 'model', 'r': RANK, 'lora_alpha': ALPHA,
        'target_modules': list(EXPERTS[name][1:])}))
    read = type(base).from_pretrained
    model = with_experts(read(folder / 'model'), name, tensors)
    found = {'into hetrun': (their_logits(model) - our_logits(hetrun, folder, 'adapter')).abs().max().item()}
    again = safetensors.torch.load_file(folder / 'runs/again/adapter_model.safetensors')
    if again.keys() != tensors.keys():
        return f'it saves {sorted(again.keys() ^ tensors.keys())}'
    if sorted(json.loads((folder / 'runs/again/adapter_config.json').read_text())['target_modules']) != sorted(EXPERTS[name][1:]):
        return 'it saves other targets'
    theirs = their_logits(with_experts(read(folder / 'model'), name, again))
    subprocess.run([hetrun, '--quiet', 'merge', 'runs/again', 'merged'], cwd=folder, check=True, timeout=60)
    ours = our_logits(hetrun, folder, 'runs/again')   # and trains it further
    found['and back'] = (theirs - ours).abs().max().item()
    found['merged'] = (their_logits(read(folder / 'merged')) - ours).abs().max().item()
    if max(found.values()) >= TOLERANCE:
        return str(found)
    problem, trained = differences(hetrun, folder, model.train(), PLANS, 'adapter')
    print(f'experts of {name}: logits {", ".join(f"{what} {value:.1e}" for what, value in found.items())}; {trained}')
    return problem


def in_peft(folder, base, adapter):
    """What hetrun saved, in PEFT."""
    model = peft.PeftModel.from_pretrained(type(base).from_pretrained(folder / 'model'), folder / adapter)
    return their_logits(model)


def check_parameters(hetrun, name, make, folder):
    problem = check(hetrun, name, make, folder, **PARAMETERS[name])
    saved = json.loads((folder / 'runs/again/adapter_config.json').read_text())
    wanted = sorted('mlp.' + target.removeprefix('mlp.') for target in PARAMETERS[name]['target_parameters'])
    if sorted(saved['target_parameters']) != wanted:
        return f'it saves the parameters {saved["target_parameters"]}'
    config = json.loads((folder / 'adapter/adapter_config.json').read_text())
    (folder / 'adapter/adapter_config.json').write_text(json.dumps({**config, 'target_parameters': ['q_proj.weight']}))
    refused = subprocess.run([hetrun, 'merge', 'adapter', 'other'], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    if 'target_parameters: "q_proj.weight" is not supported' not in refused.stderr:
        return f'of a parameter that is no experts\' it says {refused.stderr}'
    return problem


def check_patterns(hetrun, name, make, folder):
    problem = check(hetrun, name, make, folder, **PATTERNS[name])
    path = folder / 'adapter/adapter_config.json'
    config = json.loads(path.read_text())
    again = json.loads((folder / 'runs/again/adapter_config.json').read_text())
    odd = [key for key in [*again['rank_pattern'], *again.get('alpha_pattern', {})] if not key.startswith(r'^model\.layers\.')]
    if odd:
        return f'it saves {odd}'
    own = 'self_attn.qkv_proj' if name == 'phi3' else 'self_attn.q_proj'
    whole = f'model.layers.0.{own}'
    for field, words in (({'rank_pattern': {'layers.[01].q_proj': 2}}, 'rank_pattern: "layers.[01].q_proj" is not supported'),
                         ({'rank_pattern': {own: 2, whole: 3}},
                          f'adapter/adapter_config.json: rank_pattern: "{whole}" and "{own}" give {whole} different values'),
                         ({'use_rslora': True}, 'use_rslora with rank_pattern or alpha_pattern is not supported')):
        path.write_text(json.dumps({**config, **field}))
        refused = subprocess.run([hetrun, 'merge', 'adapter', 'other'], cwd=folder, capture_output=True, text=True, timeout=60,
                                 check=False)
        if words not in refused.stderr:
            return f'of {field} it says {refused.stderr}'
    return problem


def check(hetrun, name, make, folder, **targets):
    torch.manual_seed(5)
    base = make()
    spread(base)
    for key in ('resid_pdrop', 'embd_pdrop', 'attn_pdrop'):   # no dropout: its draws differ
        if hasattr(base.config, key):
            setattr(base.config, key, 0.0)
    base.save_pretrained(folder / 'model')
    base.name_or_path = 'model'
    model = peft.get_peft_model(base, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, fan_in_fan_out=name.startswith('gpt2'),
                                                      **(targets or {'target_modules': TARGETS[name]})))
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


def as_of_the_language_model_alone(adapter):
    """The adapters of the language model, by the names that they have where it is trained without the vision tower."""
    tensors = safetensors.torch.load_file(adapter / 'adapter_model.safetensors')
    safetensors.torch.save_file({name.replace('.language_model.', '.'): tensor for name, tensor in tensors.items()
                                 if '.language_model.' in name}, adapter / 'adapter_model.safetensors')
    config = json.loads((adapter / 'adapter_config.json').read_text())
    for field in ('rank_pattern', 'alpha_pattern'):
        config[field] = {key.replace('model.language_model.', '^model.').replace('language_model.', 'model.'): value
                         for key, value in config[field].items()}
    (adapter / 'adapter_config.json').write_text(json.dumps(config))


def check_language_part(hetrun, name, make, folder, **patterns):
    """Adapters of a folder that has a vision tower, too, whose layers have adapters in PEFT: those of the language model count."""
    torch.manual_seed(5)
    base = make()
    spread(base)
    base.save_pretrained(folder / 'model')
    base.name_or_path = 'model'
    model = peft.get_peft_model(base, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=LLAMA, **patterns))
    model.peft_config['default'].base_model_name_or_path = 'model'
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if 'lora_' in key:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder / 'adapter')
    found = {'into hetrun': (their_logits(model) - our_logits(hetrun, folder, 'adapter')).abs().max().item()}
    again = in_peft(folder, base, 'runs/again')
    found['and back'] = (again - our_logits(hetrun, folder, 'runs/again')).abs().max().item()
    as_of_the_language_model_alone(folder / 'adapter')
    found['by other names'] = (their_logits(model) - our_logits(hetrun, folder, 'adapter')).abs().max().item()
    names = safetensors.torch.load_file(folder / 'runs/again/adapter_model.safetensors')
    odd = [key for key in names if not key.startswith('base_model.model.model.language_model.layers.')]
    print(f'{name}: {found}')
    return f'{found} {odd}' if odd or max(found.values()) >= TOLERANCE else None


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    failed = 0
    cases = {name: (check, name) for name in TARGETS} | {f'experts of {name}': (check_experts, name) for name in EXPERTS}
    cases |= {f'parameters of {name}': (check_parameters, name) for name in PARAMETERS}
    cases |= {f'ranks of {name}': (check_patterns, name) for name in PATTERNS}
    cases['gemma3 with pictures'] = (check_language_part, 'gemma3 with pictures')
    cases['ranks of gemma3 with pictures'] = (functools.partial(
        check_language_part, rank_pattern={'v_proj': 2, 'model.language_model.layers.0.self_attn.q_proj': 6},
        alpha_pattern={'language_model.layers.1.mlp.down_proj': 3}), 'gemma3 with pictures')
    makers = {**CASES, 'gemma3 with pictures': gemma3_with_pictures}
    for shown, (function, name) in cases.items():
        if sys.argv[2:] and not any(shown.startswith(word) for word in sys.argv[2:]):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            ids = [(i * i + 3 * i) % VOCAB for i in range(400)]
            (folder / 'tokens.bin').write_bytes(struct.pack(f'<{len(ids)}H', *ids))
            (folder / 'huggingface.lua').write_text((HERE / 'huggingface.lua').read_text())
            try:
                problem = function(hetrun, name, makers[name], folder)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                problem = str(error)
        if problem:
            print(f'FAIL  {shown}: {problem}')
            failed += 1
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
