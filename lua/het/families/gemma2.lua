-- Gemma 2 (Gemma Team 2024): norms on both sides, capped scores and logits, a window in every other layer.
local common = require "het.families.common"

local block = "model.layers.%d."
local read_layers = common.read_layers(2)

return {
  architecture = "Gemma2ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { norm = "rms_offset", order = "both", activation = "gelu", eps = 1e-6, tied = true,
    scaled_embedding = true, window_every = 2 },
  config = common.joined(common.sizes, common.grouped, common.gemma, common.windows, {
    { "final_logit_softcapping", "logit_cap", default = 30, written = common.or_null "logit_cap" },
    { "attn_logit_softcapping", "score_cap", default = 50, written = common.or_null "score_cap" },
    { "hidden_activation", "activation", values = common.gemma_activations, default = "gelu_pytorch_tanh" },
  }),
  rope = true,
  reads = { "window_every" },
  read = function(config, a, refuse)
    read_layers(config, a, refuse)
    if not a.window then a.window_every = nil end   -- sliding_window is null: all layers see all
  end,
  write = common.write_layers,
  extra = { bos_token_id = 0, eos_token_id = 0, pad_token_id = 0 },
  tensors = common.tensors { qkv_bias = "bias", out_bias = "bias", mlp_norm = "pre_feedforward_layernorm", more = {
    { block .. "post_attention_layernorm", "blocks.%d.attention_post_norm" },
    { block .. "post_feedforward_layernorm", "blocks.%d.mlp_post_norm" },
  } },
}
