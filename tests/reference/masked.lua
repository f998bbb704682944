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
  padded = { false, "train on the samples of unequal length in pairs.json" },
}
if opt.padded then
  local given = native.json_read("pairs.json")
  local function rows(list) return het.tensor(list, "i32") end
  local pairs_of = het.data.pairs { inputs = rows(given.inputs), labels = rows(given.labels), holdout = 0 }
  local numbers = {}
  for i = 1, 64 do numbers[i] = { i - 1 } end
  local order = het.data.pairs { inputs = rows(numbers), labels = rows(numbers), holdout = 0 }
    :sampler { batch = 8, seed = 5 }
  local batches = {}
  for i = 1, opt.steps do
    batches[i] = {}
    for row = 1, 8 do batches[i][row] = 0 end
    for row, number in ipairs(order:next().inputs[1]:tolist()) do batches[i][row] = number[1] end
  end
  native.write_text(opt.out, native.json_encode(batches))
  return het.train {
    model = het.load(opt.model, { padding = given.pad }), data = pairs_of, batch = 8, steps = opt.steps, seed = 5,
    optimizer = het.optim.adamw { lr = 1e-3, beta2 = 0.95, clip = 1 }, evaluate = { every = 0 }, save = opt.save,
  }
end
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
