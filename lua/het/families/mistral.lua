-- Mistral (Jiang et al. 2023): LLaMA whose tokens may see a window only.
local common = require "het.families.common"

return {
  architecture = "MistralForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { eps = 1e-6 },
  config = common.joined(common.sizes, common.grouped, common.head_size, {
    { "rms_norm_eps", "eps", default = 1e-6 },
    { "tie_word_embeddings", "tied", default = false },
    { "sliding_window", "window", default = 4096, written = common.or_null "window" },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.tensors {},
}
