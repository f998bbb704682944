-- Write the batches of data.masked as JSON, or train a model on them: masked.py compares with transformers.
-- Run with --trust: it uses the engine below the library.
local het = require "het"
local native = require "het.native"

local opt = het.options {
  model = { "model", "folder with the tokenizer, and for --steps with the model", path = "read" },
  text  = { "text.txt", "the text", path = "read" },
  steps = { 0, "steps to train; 0: write batches" },
  save  = { "runs/x", "folder to save the trained model in", path = "write" },
  out   = { "batches.json", "file to write", path = "write" },
}
local corpus = het.data.masked { path = opt.text, tokenizer = "huggingface", model = opt.model, holdout = 0 }
if opt.steps == 0 then
  local sampler = corpus:sampler { context = 32, batch = 8, seed = 5 }
  local result = { vocab = corpus.vocab, inputs = {}, labels = {} }
  for i = 1, 40 do
    local batch = sampler:next()
    result.inputs[i], result.labels[i] = batch.inputs[1]:tolist(), batch.labels[1]:tolist()
  end
  native.write_text(opt.out, native.json_encode(result))
  os.exit(0)
end

return het.train {
  model = het.load(opt.model), data = corpus, batch = 8, context = 32, steps = opt.steps, seed = 5,
  optimizer = het.optim.adamw { lr = 1e-3, beta2 = 0.95, clip = 1 }, evaluate = { every = 0 }, save = opt.save,
}
