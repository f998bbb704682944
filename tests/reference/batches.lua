-- Write the batches that train.lua draws as JSON, and the logits of a saved model for the first of them.
-- Run with --trust: it uses the engine below the library.
local het = require "het"
local native = require "het.native"

local opt = het.options {
  folder = { "", "a saved model; empty: no logits", path = "read" },
  tokens = { "", "a file of 16-bit token ids", path = "read" },
  text   = { "", "a text instead, for masked tokens", path = "read" },
  steps  = { 50, "batches" },
  batch  = { 4, "samples of a batch" },
  context = { 32, "tokens of a sample" },
  out    = { "batches.json", "file to write", path = "write" },
}
local corpus = opt.text ~= "" and het.data.masked { path = opt.text, tokenizer = "byte", holdout = 0 }
  or het.data.tokens { path = opt.tokens, holdout = 0 }
local sampler = corpus:sampler {
  context = opt.context, batch = opt.batch, microbatch = opt.batch, split = "train", seed = 5,
}
local result = { inputs = {}, labels = {} }
local first
for i = 1, opt.steps do
  local batch = sampler:next()
  first = first or batch.inputs[1]
  result.inputs[i], result.labels[i] = batch.inputs[1]:tolist(), batch.labels[1]:tolist()
end
if opt.folder ~= "" then result.logits = het.load(opt.folder)(first):tolist() end
native.write_text(opt.out, native.json_encode(result))
os.exit(0)
