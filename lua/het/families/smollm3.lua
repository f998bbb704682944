-- SmolLM 3 (Bakouch et al. 2025): LLaMA without rotary positions in every fourth layer.
local common = require "het.families.common"

return {
  architecture = "SmolLM3ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { eps = 1e-6, rotary = 2000000, tied = true, no_rotary_every = 4 },
  config = common.joined(common.sizes, common.grouped, {
    { "rms_norm_eps", "eps", default = 1e-6 },
    { "tie_word_embeddings", "tied", default = true },
    { "use_sliding_window", is = false },
    { "attention_bias", "bias", default = false },
    { "mlp_bias", "mlp_bias", default = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true, base = 2000000,
  reads = { "no_rotary_every" },
  read = function(config, a, refuse)
    local turned = config.no_rope_layers   -- 1: with rotary positions
    local every = tonumber(config.no_rope_layer_interval) or 4
    if type(turned) == "table" then
      if #turned < a.layers then
        refuse(("no_rope_layers has %d entries for %d layers"):format(#turned, a.layers))
      end
      local odd
      every, odd = common.interval(turned, a.layers, 0, 1)
      if odd then
        refuse(("no_rope_layers has %s for layer %d; 0 for every n-th layer and 1 for all others is supported")
          :format(tostring(turned[odd]), odd))
      end
      if every > a.layers then every = 0 end
    end
    a.no_rotary_every = every
  end,
  write = function(a, config)
    config.no_rope_layer_interval = a.no_rotary_every
    config.no_rope_layers = {}
    for number = 1, a.layers do
      config.no_rope_layers[number] = a.no_rotary_every > 0 and number % a.no_rotary_every == 0 and 0 or 1
    end
  end,
  extra = { bos_token_id = 0, eos_token_id = 0, pad_token_id = 0 },
  tensors = common.tensors { qkv_bias = "bias", out_bias = "bias", mlp_bias = "mlp_bias" },
}
