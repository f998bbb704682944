-- Granite 3 (Granite Team 2024): LLaMA with constant factors of embeddings, residual branches, scores and logits.
local common = require "het.families.common"

local function one(name)
  return function(a) return a[name] or 1 end
end

return {
  architecture = "GraniteForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { eps = 1e-6 },
  config = common.joined(common.sizes, common.grouped, {
    { "rms_norm_eps", "eps", default = 1e-6 },
    { "tie_word_embeddings", "tied", default = false },
    { "embedding_multiplier", "embedding_scale", default = 1, written = one "embedding_scale" },
    { "residual_multiplier", "residual_scale", default = 1, written = one "residual_scale" },
    { "attention_multiplier", "score_scale", default = 1, written = function(a)
      return a.score_scale or (a.width / a.heads) ^ -0.5
    end },
    { "logits_scaling", "logit_scale", default = 1, from = function(value) return 1 / value end, written = function(a)
      return 1 / (a.logit_scale or 1)
    end },
    { "attention_bias", "bias", default = false },
    { "mlp_bias", "mlp_bias", default = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  read = function(config, _, refuse)
    for _, name in ipairs { "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling" } do
      local value = config[name]
      if type(value) == "number" and not (value > 0 and value < math.huge) then
        refuse(("%s = %s is not supported; a number above 0 is"):format(name, tostring(value)))
      end
    end
  end,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.tensors { qkv_bias = "bias", out_bias = "bias", mlp_bias = "mlp_bias" },
}
