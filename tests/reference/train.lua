-- Train a saved model on a token file; models.py does the same in PyTorch and compares every step's loss.
local het = require "het"

local opt = het.options {
  folder    = { "", "a model in Hugging Face's layout, to begin with", path = "read" },
  tokens    = { "", "a file of 16-bit token ids", path = "read" },
  text      = { "", "a text instead, for masked tokens", path = "read" },
  steps     = { 50, "optimizer steps" },
  batch     = { 4, "samples of a step" },
  precision = { "f32", "of matrices and activations" },
  save      = { "", "folder to save the trained model in", path = "write" },
}
local model = het.load(opt.folder)
local corpus = opt.text ~= "" and het.data.masked { path = opt.text, tokenizer = "byte", holdout = 0 }
  or het.data.tokens { path = opt.tokens, holdout = 0 }

return het.train {
  model = model, data = corpus, batch = opt.batch, steps = opt.steps, precision = opt.precision, seed = 5,
  optimizer = het.optim.adamw { lr = 1e-3, beta2 = 0.95, weight_decay = 0.1, clip = 1.0 },
  evaluate = { every = 0 },
  save = opt.save ~= "" and opt.save or nil,
}
