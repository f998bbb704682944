-- StableLM 2 and 3B (Bellagente et al. 2024): LLaMA with layer norms, and rotary positions of a part of each head.
local common = require "het.families.common"

return {
  architecture = "StableLmForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { norm = "layer", out_bias = false, rotary_share = 0.25 },
  config = common.joined(common.sizes, common.grouped, {
    { "layer_norm_eps", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = false },
    { "use_qkv_bias", "bias", default = false },
    { "qk_layernorm", is = false },
    { "use_parallel_residual", is = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true, share = "partial_rotary_factor",
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.tensors { norm_bias = true, qkv_bias = "bias" },
}
