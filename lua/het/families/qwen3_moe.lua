-- Qwen 3 with experts (Yang et al. 2025).
local common = require "het.families.common"

return {
  architecture = "Qwen3MoeForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { qk_norm = "head", eps = 1e-6, experts = 128, top = 8, normalised = false,
    auxiliary = 0 },
  config = common.joined(common.expert_sizes, common.grouped, common.head_size, common.sparse_layers(6144), {
    { "rms_norm_eps", "eps", default = 1e-6 },
    { "tie_word_embeddings", "tied", default = false },
    { "num_experts", "experts", default = 128 },
    { "num_experts_per_tok", "top", default = 8 },
    { "norm_topk_prob", "normalised", default = false },
    { "attention_bias", "bias", default = false },
    { "use_sliding_window", is = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  reads = { "dense_layers" },
  read = function(config, a)
    a.experts = config.num_local_experts or a.experts   -- as newer versions of transformers name it
    common.read_dense_layers(config, a)
  end,
  write = common.write_dense_layers,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.expert_tensors({ mlp = "mlp", side = "gate_proj", up = "up_proj", down = "down_proj" },
    { qkv_bias = "bias", out_bias = "bias", more = common.qk_norms }),
}
