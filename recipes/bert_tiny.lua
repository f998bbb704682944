-- A small BERT: it sees a text with 15 % of the characters hidden, from both sides, and guesses them. Its loss counts
-- the hidden characters only.
--
--   hetrun recipes/bert_tiny.lua --text=shakespeare.txt
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  text      = { "/usr/include/c++", "text file, or folder of text files", path = "read" },
  steps     = { 1000, "optimizer steps", min = 1 },
  mask      = { 0.15, "share of the characters to guess", above = 0, below = 1 },
  width     = { 128, "features of a token", min = 1 },
  layers    = { 4, "blocks", min = 1 },
  heads     = { 4, "attention heads", min = 1 },
  context   = { 128, "characters that the model sees at once", min = 2 },
  batch     = { 16, "samples of a step", min = 1 },
  precision = { "f32", "of matrices and activations", choices = { "f32", "bf16" } },
  save      = { "", "folder to save the model in, in Hugging Face's layout", path = "write" },
}

-- Eight in ten hidden characters become the mask (one token more than the text has), one becomes another
-- character, one stays: so the model has to know every position well, not only the masked ones.
local corpus = data.masked { path = opt.text, mask_share = opt.mask, limit = "4 MB" }

return het.train {
  model = nn.bert {
    vocab = corpus.vocab, context = opt.context, width = opt.width, layers = opt.layers, heads = opt.heads,
  },
  data = corpus, batch = opt.batch, steps = opt.steps, precision = opt.precision,
  optimizer = optim.adamw {
    lr = optim.linear { peak = 1e-3, floor = 0, warmup = 100 },
    weight_decay = 0.01, clip = 1.0,
  },
  evaluate = { every = 250, batches = 20 },
  save     = opt.save ~= "" and opt.save or nil,
}
