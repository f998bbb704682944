-- Qwen 3 (Yang et al. 2025): LLaMA with norms of each head's queries and keys, and windows in the last layers.
local common = require "het.families.common"

return {
  architecture = "Qwen3ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { qk_norm = "head", eps = 1e-6 },
  config = common.joined(common.sizes, common.grouped, common.late_windows, {
    { "head_dim", "head_size", default = 128, written = function(a) return a.head_size or a.width / a.heads end },
    { "rms_norm_eps", "eps", default = 1e-6 },
    { "tie_word_embeddings", "tied", default = false },
    { "attention_bias", "bias", default = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  read = common.read_late_windows,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.tensors { qkv_bias = "bias", out_bias = "bias", more = common.qk_norms },
}
