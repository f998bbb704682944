-- BERT (Devlin et al. 2019) with its masked language model.
local common = require "het.families.common"

local block = "bert.encoder.layer.%d."
local own = block .. "attention.self."

return {
  architecture = "BertForMaskedLM",
  constructor = "bert",
  config = common.joined(common.sizes, {
    { "layer_norm_eps", "eps", default = 1e-12 },
    { "hidden_dropout_prob", "dropout" },
    { "hetrun_padding", "padding" },   -- pad_token_id is the tokenizer's, used or not
    { "hidden_act", is = "gelu" },
    { "type_vocab_size", is = 2 },
    { "position_embedding_type", is = "absolute" },
    { "tie_word_embeddings", is = true },
    { "is_decoder", is = false },
    { "add_cross_attention", is = false },
  }),
  extra = { attention_probs_dropout_prob = 0, pad_token_id = 0 },
  tensors = {
    { "bert.embeddings.word_embeddings", "tokens" },
    { "bert.embeddings.position_embeddings", "positions" },
    { "bert.embeddings.token_type_embeddings", "segments" },
    { "bert.embeddings.LayerNorm", "embedding_norm", bias = true },
    { { own .. "query", own .. "key", own .. "value" }, "blocks.%d.attention.qkv", bias = true },
    { block .. "attention.output.dense", "blocks.%d.attention.out", bias = true },
    { block .. "attention.output.LayerNorm", "blocks.%d.attention_norm", bias = true },
    { block .. "intermediate.dense", "blocks.%d.mlp.up", bias = true },
    { block .. "output.dense", "blocks.%d.mlp.down", bias = true },
    { block .. "output.LayerNorm", "blocks.%d.mlp_norm", bias = true },
    { "cls.predictions.transform.dense", "head_transform", bias = true },
    { "cls.predictions.transform.LayerNorm", "head_norm", bias = true },
    { "cls.predictions.bias", "head_bias", plain = true },
  },
}
