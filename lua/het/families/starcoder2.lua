-- StarCoder 2 (Lozhkov et al. 2024): GPT's norms and feed-forward layer, rotary positions, few key heads, windows.
local common = require "het.families.common"

return {
  architecture = "Starcoder2ForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { norm = "layer", gated = false, activation = "gelu", bias = true, mlp_bias = true,
    tied = true },
  config = common.joined(common.sizes, common.grouped, {
    { "norm_epsilon", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = true },
    { "sliding_window", "window", written = common.or_null "window" },
    { "use_bias", "bias", default = true },
    { "hidden_act", "activation", values = common.activations, default = "gelu_pytorch_tanh",
      theirs = "gelu_pytorch_tanh" },
  }),
  rope = true,
  settle = function(s) s.mlp_bias = s.bias end,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.tensors { norm_bias = true, qkv_bias = "bias", out_bias = "bias", mlp = {
    { "model.layers.%d.mlp.c_fc", "blocks.%d.mlp.up", bias = "bias" },
    { "model.layers.%d.mlp.c_proj", "blocks.%d.mlp.down", bias = "bias" },
  } },
}
