-- StarCoder 2 (Lozhkov et al. 2024): GPT's norms and feed-forward layer, rotary positions, few key heads, windows.
local common = require "het.families.common"

local block = "model.layers.%d."
local attention = block .. "self_attn."

return {
  architecture = "Starcoder2ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { norm = "layer", gated = false, activation = "gelu", bias = true, mlp_bias = true,
    tied = true },
  config = common.joined(common.sizes, common.grouped, {
    { "norm_epsilon", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = true },
    { "sliding_window", "window", written = common.or_null "window" },
    { "use_bias", "bias", default = true },
    { "hidden_act", "activation", values = common.activations, default = "gelu_pytorch_tanh",
      theirs = "gelu_pytorch_tanh" },
  }),
  rope = true,
  settle = function(s) s.mlp_bias = s.bias end,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = {
    { "model.embed_tokens", "tokens" },
    { block .. "input_layernorm", "blocks.%d.attention_norm", bias = true },
    { { attention .. "q_proj", attention .. "k_proj", attention .. "v_proj" }, "blocks.%d.attention.qkv",
      bias = "bias" },
    { attention .. "o_proj", "blocks.%d.attention.out", bias = "bias" },
    { block .. "post_attention_layernorm", "blocks.%d.mlp_norm", bias = true },
    { block .. "mlp.c_fc", "blocks.%d.mlp.up", bias = "bias" },
    { block .. "mlp.c_proj", "blocks.%d.mlp.down", bias = "bias" },
    { "model.norm", "norm", bias = true },
    { "lm_head", "head", untied = true },
  },
}
