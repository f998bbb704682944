-- Phi 3 and 4 (Abdin et al. 2024): LLaMA with queries, keys and values in one tensor, and gate and result in another.
local common = require "het.families.common"

local block = "model.layers.%d."

return {
  architecture = "Phi3ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder {},
  config = common.joined(common.sizes, common.grouped, {
    { "rms_norm_eps", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = false },
    { "sliding_window", "window", written = common.or_null "window" },
    { "hidden_act", is = "silu" },
  }),
  rope = true, share = "partial_rotary_factor",
  extra = { bos_token_id = 0, eos_token_id = 0, pad_token_id = 0 },
  tensors = {
    { "model.embed_tokens", "tokens" },
    { block .. "input_layernorm", "blocks.%d.attention_norm" },
    { block .. "self_attn.qkv_proj", "blocks.%d.attention.qkv" },
    { block .. "self_attn.o_proj", "blocks.%d.attention.out" },
    { block .. "post_attention_layernorm", "blocks.%d.mlp_norm" },
    { block .. "mlp.gate_up_proj", { "blocks.%d.mlp.gate", "blocks.%d.mlp.up" } },
    { block .. "mlp.down_proj", "blocks.%d.mlp.down" },
    { "model.norm", "norm" },
    { "lm_head", "head", untied = true },
  },
}
