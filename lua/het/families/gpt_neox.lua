-- GPT-NeoX and Pythia (Black et al. 2022): attention and the feed-forward layer side by side, rotary positions of a
-- part of each head.
local common = require "het.families.common"

local block = "gpt_neox.layers.%d."

return {
  architecture = "GPTNeoXForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { norm = "layer", order = "parallel", parallel = true, gated = false,
    activation = "gelu_exact", bias = true, mlp_bias = true, rotary_share = 0.25 },
  config = common.joined(common.sizes, {
    { "layer_norm_eps", "eps", default = 1e-5 },
    { "tie_word_embeddings", "tied", default = false },
    { "use_parallel_residual", "parallel", default = true },
    { "attention_bias", "bias", default = true },
    { "hidden_act", "activation", values = common.activations, default = "gelu", theirs = "gelu_new" },
  }),
  rope = true, share = "rotary_pct", base_key = "rotary_emb_base",
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = {
    { "gpt_neox.embed_in", "tokens" },
    { block .. "input_layernorm", "blocks.%d.attention_norm", bias = true },
    { block .. "attention.query_key_value", "blocks.%d.attention.qkv", bias = "bias", by_heads = true },
    { block .. "attention.dense", "blocks.%d.attention.out", bias = "bias" },
    { block .. "post_attention_layernorm", "blocks.%d.mlp_norm", bias = true },
    { block .. "mlp.dense_h_to_4h", "blocks.%d.mlp.up", bias = true },
    { block .. "mlp.dense_4h_to_h", "blocks.%d.mlp.down", bias = true },
    { "gpt_neox.final_layer_norm", "norm", bias = true },
    { "embed_out", "head", untied = true },
  },
}
