-- Text from a saved model; the prompt is longer than a chunk, the text longer than the context.
local het = require "het"
local opt = het.options {
  folder = { "runs/mine", "saved model", path = "read" },
  seed = { 1, "of the draws" }, temperature = { 0.9, "of the draws" },
}
local model = het.load(opt.folder)
print(model:generate { prompt = "the quick brown fox", tokens = 60, seed = opt.seed, temperature = opt.temperature })
return het.train {
  model = model, data = het.data.text { path = "text.txt" }, batch = 2, steps = 1,
  optimizer = het.optim.sgd { lr = 0.01 },
}
