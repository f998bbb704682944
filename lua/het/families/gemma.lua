-- Gemma (Gemma Team 2024): wide heads, a gate by GELU, norms times 1 + weight, embeddings times √width.
local common = require "het.families.common"

return {
  architecture = "GemmaForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { norm = "rms_offset", activation = "gelu", eps = 1e-6, tied = true,
    scaled_embedding = true },
  config = common.joined(common.sizes, common.grouped, common.gemma, {
    -- The first releases say "gelu" and mean the one by tanh.
    { "hidden_act", "activation", values = { gelu = "gelu", gelu_pytorch_tanh = "gelu" },
      default = "gelu_pytorch_tanh", theirs = "gelu_pytorch_tanh" },
  }),
  rope = true,
  extra = { bos_token_id = 0, eos_token_id = 0, pad_token_id = 0 },
  tensors = common.tensors { qkv_bias = "bias", out_bias = "bias" },
}
