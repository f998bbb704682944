-- A GPT that learns to write the text you give it, character by character, in a minute or two on a laptop.
--
--   hetrun recipes/gpt_text.lua --text=shakespeare.txt
--   hetrun recipes/gpt_text.lua --text=shakespeare.txt --steps=5000 --save=runs/shakespeare
--   hetrun recipes/gpt_text.lua --precision=bf16              (for GPUs and CPUs with AMX; on others no faster)
--
-- The defaults are nanoGPT's setting for CPUs (train_shakespeare_char on a MacBook). Watch the validation loss: it is
-- measured on the last tenth of the text, which the model never trains on. A loss of ln(65) = 4.2 is guessing among
-- 65 characters; Shakespeare reaches about 1.9 here, and at 1.5 the words are English.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  text      = { "/usr/include/c++", "text file, or folder of text files", path = "read" },
  tokenizer = { "char", "what a token is", choices = { "char", "byte" } },
  limit     = { "4 MB", "most text read from a folder" },
  steps     = { 2000, "optimizer steps", min = 1 },
  batch     = { 12, "samples of a step", min = 1 },
  context   = { 64, "characters that the model sees at once", min = 2 },
  layers    = { 4, "blocks", min = 1 },
  heads     = { 4, "attention heads", min = 1 },
  width     = { 128, "features of a token", min = 1 },
  dropout   = { 0, "share of features dropped while training", fraction = true, min = 0, max = 0.9 },
  lr        = { 1e-3, "highest learning rate", above = 0 },
  precision = { "f32", "dtype of weights and activations (f16: only to plan)", choices = { "f32", "bf16", "f16" } },
  seed      = { 1337, "of the weights and the order of samples", min = 0 },
  every     = { 250, "steps between evaluations; 0: none", min = 0 },
  prompt    = { "", "what the text written at the end begins with; empty: a line break, or the first character of "
                    .. "the vocabulary when the text has none" },
  write     = { 500, "characters to write at the end", min = 1 },
  save      = { "", "folder to save the model in; --resume goes on from there", path = "write" },
}

local corpus = data.text { path = opt.text, tokenizer = opt.tokenizer, holdout = 0.1, limit = opt.limit }

return het.train {
  model = nn.gpt {
    vocab = corpus.vocab, context = opt.context, width = opt.width, layers = opt.layers, heads = opt.heads,
    dropout = opt.dropout,
  },
  data      = corpus,
  batch     = opt.batch,
  steps     = opt.steps,
  precision = opt.precision,
  seed      = opt.seed,
  optimizer = optim.adamw {
    -- A short warm-up keeps the first, random gradients from doing harm; then the rate falls to a tenth.
    lr = optim.cosine { peak = opt.lr, floor = opt.lr / 10, warmup = 100 },
    beta2 = 0.99,           -- a batch has only 768 tokens: average the squares over more steps
    weight_decay = 0.1, clip = 1.0,
  },
  evaluate = { every = opt.every, batches = 20 },
  sample   = { prompt = opt.prompt ~= "" and opt.prompt or nil, tokens = opt.write, temperature = 0.8, top_k = 200 },
  save     = opt.save ~= "" and opt.save or nil,
}
