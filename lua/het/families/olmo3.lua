-- OLMo 3 (Olmo Team 2025): OLMo 2 with a window in three of four layers, whose rotary positions are not scaled.
local common = require "het.families.common"

local read_layers = common.read_layers(4)
local base = 500000   -- of rotary positions

return {
  architecture = "Olmo3ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { order = "after", qk_norm = "width", rotary = base, window_every = 4,
    unscaled_windows = true },
  config = common.joined(common.sizes, common.grouped, {
    { "rms_norm_eps", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = false },
    { "sliding_window", "window", default = 4096, written = function(a) return a.window or a.context end },
    { "attention_bias", "bias", default = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true, base = base,
  reads = { "window_every" },
  read = function(config, a, refuse)
    read_layers(config, a, refuse)
    if not a.window then refuse "sliding_window = null is not supported; a number is" end
    local parameters = type(config.rope_parameters) == "table" and config.rope_parameters
    if not parameters then return end   -- of transformers 4: rope_theta is of all layers
    local windows = type(parameters.sliding_attention) == "table" and parameters.sliding_attention or {}
    if (windows.rope_theta or base) ~= a.rotary or (windows.rope_type or "default") ~= "default" then
      refuse "rope_parameters differ between layers by more than their scaling, which is not supported"
    end
  end,
  write = function(a, config)
    common.write_layers(a, config)
    config.rope_parameters = { full_attention = { rope_type = "default", rope_theta = a.rotary },
      sliding_attention = { rope_type = "default", rope_theta = a.rotary } }
    for key, value in pairs(config.rope_scaling or {}) do config.rope_parameters.full_attention[key] = value end
  end,
  extra = { bos_token_id = 0, eos_token_id = 0, pad_token_id = 0 },
  tensors = common.tensors { attention_norm = "post_attention_layernorm", mlp_norm = "post_feedforward_layernorm",
    qkv_bias = "bias", out_bias = "bias", more = common.qk_norms },
}
