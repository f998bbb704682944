-- Qwen 1.5 and 2 with experts (Yang et al. 2024): Qwen 2 with one expert that all tokens go to, in layers with experts.
local common = require "het.families.common"

return {
  architecture = "Qwen2MoeForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { bias = true, out_bias = false, eps = 1e-6, experts = 60, top = 4, normalised = false,
    auxiliary = 0, shared = 5632 },
  config = common.joined(common.expert_sizes, common.grouped, common.sparse_layers(5632), {
    { "head_dim", "head_size" },
    { "rms_norm_eps", "eps", default = 1e-6 },
    { "tie_word_embeddings", "tied", default = false },
    { "num_experts", "experts", default = 60 },
    { "num_experts_per_tok", "top", default = 4 },
    { "shared_expert_intermediate_size", "shared", default = 5632 },
    { "norm_topk_prob", "normalised", default = false },
    { "qkv_bias", "bias", default = true },
    { "use_sliding_window", is = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  reads = { "dense_layers" },
  read = common.read_dense_layers, write = common.write_dense_layers,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.expert_tensors({ mlp = "mlp", side = "gate_proj", up = "up_proj", down = "down_proj",
    shared = "shared_expert" }, { qkv_bias = "bias" }),
}
