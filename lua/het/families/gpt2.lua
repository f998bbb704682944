-- GPT-2 (Radford et al. 2019).
local common = require "het.families.common"

return {
  architecture = "GPT2LMHeadModel",
  constructor = "gpt",
  config = {
    { "vocab_size", "vocab", need = true },
    { "n_positions", "context", need = true },
    { "n_ctx", written = function(a) return a.context end },
    { "n_embd", "width", need = true },
    { "n_layer", "layers", need = true },
    { "n_head", "heads", need = true },
    { "n_inner", "hidden" },
    { "activation_function", "activation", values = common.activations, default = "gelu_new", theirs = "gelu_new" },
    { "layer_norm_epsilon", "eps" },
    { "tie_word_embeddings", "tied", default = true },
    { "resid_pdrop", "dropout" },
    { "embd_pdrop", written = function(a) return a.dropout end },
    { "scale_attn_by_inverse_layer_idx", is = false },
    { "add_cross_attention", is = false },
    { "scale_attn_weights", is = true },   -- reorder_and_upcast_attn computes the same, and may be either
  },
  extra = { attn_pdrop = 0, bos_token_id = 0, eos_token_id = 0 },
  alternatives = { { "^transformer%.", "" } },   -- checkpoints of the bare model have no prefix
  -- transformers' GPT-2 always has biases: a model without them is stored with zeros.
  tensors = {
    { "transformer.wte", "tokens" },
    { "transformer.wpe", "positions" },
    { "transformer.h.%d.ln_1", "blocks.%d.attention_norm", bias = "bias", zeros = true },
    { "transformer.h.%d.attn.c_attn", "blocks.%d.attention.qkv", transpose = true, bias = "bias", zeros = true },
    { "transformer.h.%d.attn.c_proj", "blocks.%d.attention.out", transpose = true, bias = "bias", zeros = true },
    { "transformer.h.%d.ln_2", "blocks.%d.mlp_norm", bias = "bias", zeros = true },
    { "transformer.h.%d.mlp.c_fc", "blocks.%d.mlp.up", transpose = true, bias = "bias", zeros = true },
    { "transformer.h.%d.mlp.c_proj", "blocks.%d.mlp.down", transpose = true, bias = "bias", zeros = true },
    { "transformer.ln_f", "norm", bias = "bias", zeros = true },
    { "lm_head", "head", untied = true },
  },
}
