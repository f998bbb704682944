-- OLMo 3 (Olmo Team 2025): OLMo 2 with a window in three of four layers, whose rotary positions are not scaled.
local common = require "het.families.common"

local read_layers = common.read_layers(4)

return {
  architecture = "Olmo3ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { order = "after", qk_norm = "width", rotary = 500000, window_every = 4,
    unscaled_windows = true },
  config = common.joined(common.sizes, common.grouped, {
    { "rms_norm_eps", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = false },
    { "sliding_window", "window", default = 4096, written = function(a) return a.window or a.context end },
    { "attention_bias", "bias", default = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true, base = 500000,
  reads = { "window_every" },
  read = function(config, a, refuse)
    read_layers(config, a, refuse)
    if not a.window then refuse "sliding_window = null is not supported; a number is" end
    local parameters = type(config.rope_parameters) == "table" and config.rope_parameters.sliding_attention
    if type(parameters) == "table" and ((parameters.rope_theta or a.rotary) ~= a.rotary
      or (parameters.rope_type or "default") ~= "default") then
      refuse "rope_parameters differ between layers by more than their scaling, which is not supported"
    end
  end,
  write = common.write_layers,
  extra = { bos_token_id = 0, eos_token_id = 0, pad_token_id = 0 },
  tensors = common.tensors { attention_norm = "post_attention_layernorm", mlp_norm = "post_feedforward_layernorm",
    qkv_bias = "bias", out_bias = "bias", more = common.qk_norms },
}
