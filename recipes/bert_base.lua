-- BERT (Devlin et al. 2019): it sees a text with 15 % of the tokens hidden, from both sides, and guesses them. Its loss
-- counts the hidden tokens only. The defaults are a small model on characters, for a laptop: on Shakespeare its loss
-- stays above 3, that of guessing the most frequent ones, for some 200 steps, and then falls below 2. BERT-Base has
-- 12 layers of 768 features:
--
--   hetrun recipes/bert_base.lua --text=shakespeare.txt
--   hetrun recipes/bert_base.lua --text=shakespeare.txt --layers=12 --width=768 --heads=12 --context=128 --lr=1e-4
--   hetrun plan recipes/bert_base.lua --layers=12 --width=768 --heads=12 --context=128 --vocab=33280 --batch=256 \
--     --precision=bf16 --cluster=recipes/clusters/mixed.lua
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  text      = { "/usr/include/c++", "text file, or folder of text files", path = "read" },
  tokenizer = { "char", "what a token is", choices = { "char", "byte" } },
  vocab     = { 0, "rows of the table of tokens, where the text has fewer: for plans of larger vocabularies", min = 0 },
  steps     = { 800, "optimizer steps", min = 1 },
  mask      = { 0.15, "share of the tokens to guess", above = 0, below = 1 },
  width     = { 128, "features of a token", min = 1 },
  layers    = { 2, "blocks", min = 1 },
  heads     = { 4, "attention heads", min = 1 },
  context   = { 32, "tokens that the model sees at once", min = 2 },
  batch     = { 64, "samples of a step", min = 1 },
  dropout   = { 0, "share of features dropped while training", fraction = true, min = 0, max = 0.9 },
  lr        = { 3e-3, "highest learning rate", above = 0 },
  precision = { "f32", "dtype of weights and activations (f16: only to plan)", choices = { "f32", "bf16", "f16" } },
  save      = { "", "folder to save the model in, in Hugging Face's layout", path = "write" },
}

-- Eight in ten hidden tokens become the mask (one token more than the text has), one becomes another token, one stays:
-- so the model has to know every position well, not only the masked ones.
local corpus = data.masked { path = opt.text, tokenizer = opt.tokenizer, mask_share = opt.mask, limit = "4 MB" }

return het.train {
  model = nn.bert {
    vocab = math.max(corpus.vocab, opt.vocab), context = opt.context, width = opt.width, layers = opt.layers,
    heads = opt.heads, dropout = opt.dropout,
  },
  data = corpus, batch = opt.batch, steps = opt.steps, precision = opt.precision,
  optimizer = optim.adamw {
    lr = optim.linear { peak = opt.lr, floor = 0, warmup = 100 },
    weight_decay = 0.01, clip = 1.0,
  },
  evaluate = { every = 200, batches = 20 },
  save     = opt.save ~= "" and opt.save or nil,
}
