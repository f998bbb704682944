-- Gemma 3 without pictures (Gemma Team 2025): Gemma 2 without caps, with norms of each head's queries and keys, and
-- other rotary positions in layers with a window.
local common = require "het.families.common"

local block = "model.layers.%d."
local more = common.joined(common.qk_norms, {
  { block .. "post_attention_layernorm", "blocks.%d.attention_post_norm" },
  { block .. "post_feedforward_layernorm", "blocks.%d.mlp_post_norm" },
})
local read_layers = common.read_layers(6)

return {
  architecture = "Gemma3ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { norm = "rms_offset", order = "both", activation = "gelu", qk_norm = "head",
    eps = 1e-6, rotary = 1000000, local_rotary = 10000, tied = true, scaled_embedding = true, window_every = 6 },
  config = common.joined(common.sizes, common.grouped, common.gemma, common.windows, {
    { "final_logit_softcapping", "logit_cap", written = common.or_null "logit_cap" },
    { "attn_logit_softcapping", "score_cap", written = common.or_null "score_cap" },
    { "hidden_activation", "activation", values = common.gemma_activations, default = "gelu_pytorch_tanh" },
  }),
  rope = true, base = 1000000,
  reads = { "window_every", "local_rotary" },
  read = function(config, a, refuse)
    read_layers(config, a, refuse)
    local parameters = type(config.rope_parameters) == "table" and config.rope_parameters.sliding_attention
    a.local_rotary = config.rope_local_base_freq or type(parameters) == "table" and parameters.rope_theta or 10000
  end,
  write = function(a, config)
    common.write_layers(a, config)
    config.rope_local_base_freq = a.local_rotary
  end,
  extra = { bos_token_id = 0, eos_token_id = 0, pad_token_id = 0 },
  tensors = common.tensors { qkv_bias = "bias", out_bias = "bias", mlp_norm = "pre_feedforward_layernorm",
    more = more },
}
