-- LLaMA 1 to 3.2 (Touvron et al. 2023), and models of this form under its name, such as SmolLM.
local common = require "het.families.common"

return {
  architecture = "LlamaForCausalLM",
  constructor = "llama",
  beyond = { "bias", "mlp_bias" },   -- nn.llama has no biases; a model with them is nn.decoder
  decoder = common.decoder {},
  config = common.joined(common.sizes, common.grouped, common.head_size, {
    { "rms_norm_eps", "eps", default = 1e-6 },
    { "tie_word_embeddings", "tied", default = false },
    { "attention_bias", "bias", default = false, written = function(a) return a.bias or false end },
    { "mlp_bias", "mlp_bias", default = false, written = function(a) return a.mlp_bias or false end },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.tensors { qkv_bias = "bias", out_bias = "bias", mlp_bias = "mlp_bias" },
}
