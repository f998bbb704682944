-- StableLM 2 and 3B (Bellagente et al. 2024): LLaMA with layer norms, and rotary positions of a part of each head.
local common = require "het.families.common"

local block = "model.layers.%d."
local attention = block .. "self_attn."

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
  tensors = {
    { "model.embed_tokens", "tokens" },
    { block .. "input_layernorm", "blocks.%d.attention_norm", bias = true },
    { { attention .. "q_proj", attention .. "k_proj", attention .. "v_proj" }, "blocks.%d.attention.qkv",
      bias = "bias" },
    { attention .. "o_proj", "blocks.%d.attention.out" },
    { block .. "post_attention_layernorm", "blocks.%d.mlp_norm", bias = true },
    { block .. "mlp.gate_proj", "blocks.%d.mlp.gate" },
    { block .. "mlp.up_proj", "blocks.%d.mlp.up" },
    { block .. "mlp.down_proj", "blocks.%d.mlp.down" },
    { "model.norm", "norm", bias = true },
    { "lm_head", "head", untied = true },
  },
}
