-- Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in each block.
local common = require "het.families.common"

return {
  architecture = "MixtralForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { rotary = 1000000, experts = 8, top = 2, normalised = true, auxiliary = 0 },
  config = common.joined(common.sizes, common.grouped, common.head_size, {
    { "rms_norm_eps", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = false },
    { "num_local_experts", "experts", default = 8 },
    { "num_experts_per_tok", "top", default = 2 },
    { "sliding_window", "window", written = common.or_null "window" },
    { "router_jitter_noise", is = 0 },
    { "hidden_act", is = "silu" },
  }),
  rope = true, base = 1000000,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.expert_tensors({ mlp = "block_sparse_moe", side = "w1", up = "w3", down = "w2" }, {}),
}
