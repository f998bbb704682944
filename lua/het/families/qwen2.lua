-- Qwen 2 and 2.5 (Yang et al. 2024): LLaMA with biases of queries, keys and values, and windows in the last layers.
local common = require "het.families.common"

return {
  architecture = "Qwen2ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { bias = true, out_bias = false, eps = 1e-6 },
  config = common.joined(common.sizes, common.grouped, common.late_windows, {
    { "head_dim", "head_size" },
    { "rms_norm_eps", "eps", default = 1e-6 },
    { "tie_word_embeddings", "tied", default = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  read = common.read_late_windows,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.tensors { qkv_bias = true },
}
