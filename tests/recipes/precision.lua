-- A model that is saved in a precision of its own, while the run has f32.
local het = require "het"
local nn, optim = het.nn, het.optim
local opt = het.options {
  load      = { "", "a saved model to go on with", path = "read" },
  from      = { "", "a saved model whose weights a new one begins with", path = "read" },
  rank      = { 0, "of adapters" },
  steps     = { 4, "optimizer steps" },
  ema       = { false, "average" },
  best      = { "", "folder for the best model", path = "write" },
  precision = { "", "of the saved weights" },
  save      = { "", "folder", path = "write" },
  merge     = { "", "folder for the model with its adapters merged", path = "write" },
  plan      = { "one", "how ranks share the work" },
}
local given = het.data.text { path = "text.txt", tokenizer = "byte", holdout = 0.2 }
local function new()
  return nn.llama { vocab = 256, context = 16, width = 16, layers = 2, heads = 2, kv_heads = 1 }
end
local model = opt.load ~= "" and het.load(opt.load) or new()
if opt.rank > 0 then model = nn.lora { model = model, rank = opt.rank } end
local function given_or_nil(value) return value ~= "" and value or nil end
return het.train {
  model = model, from = given_or_nil(opt.from), data = given, batch = 4, steps = opt.steps, seed = 3,
  optimizer = optim.adamw { lr = 1e-2 }, ema = opt.ema and 0.9 or nil, save = given_or_nil(opt.save),
  evaluate = { every = 2, batches = 1 }, keep_best = given_or_nil(opt.best),
  save_precision = given_or_nil(opt.precision),
  plan = opt.plan == "tensor" and het.plan { tensor = 2, microbatch = 4, het.pipeline { microbatches = 1,
    het.stage { "a:0-1" } } } or nil,
  after = function(run)
    if opt.merge ~= "" then run:save(opt.merge, { merge = true, overwrite = true }) end
  end,
}
