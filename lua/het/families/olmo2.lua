-- OLMo 2 (Walsh et al. 2024): norms after attention and the feed-forward layer, and of all queries and keys together.
local common = require "het.families.common"

return {
  architecture = "Olmo2ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { order = "after", qk_norm = "width" },
  config = common.joined(common.sizes, common.grouped, {
    { "rms_norm_eps", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = false },
    { "attention_bias", "bias", default = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  extra = { bos_token_id = 0, eos_token_id = 0, pad_token_id = 0 },
  tensors = common.tensors { attention_norm = "post_attention_layernorm", mlp_norm = "post_feedforward_layernorm",
    qkv_bias = "bias", out_bias = "bias", more = common.qk_norms },
}
