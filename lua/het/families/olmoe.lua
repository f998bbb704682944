-- OLMoE (Muennighoff et al. 2024): experts, and norms of all queries and all keys together.
local native = require "het.native"
local common = require "het.families.common"

return {
  architecture = "OlmoeForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { qk_norm = "width", experts = 64, top = 8, normalised = false, auxiliary = 0 },
  config = common.joined(common.sizes, common.grouped, {
    { "rms_norm_eps", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = false },
    { "num_experts", "experts", default = 64 },
    { "num_experts_per_tok", "top", default = 8 },
    { "norm_topk_prob", "normalised", default = false },
    { "attention_bias", "bias", default = false },
    { "clip_qkv", is = native.null },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  extra = { bos_token_id = 0, eos_token_id = 0, pad_token_id = 0 },
  tensors = common.expert_tensors({ mlp = "mlp", side = "gate_proj", up = "up_proj", down = "down_proj" },
    { qkv_bias = "bias", out_bias = "bias", more = common.qk_norms }),
}
