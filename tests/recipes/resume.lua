-- A run that stops and goes on: the rate does not depend on the number of steps.
local het = require "het"
local opt = het.options {
  steps = { 6, "steps" }, save = { "runs/mine", "folder", path = "write" }, seed = { 1, "seed" },
  batch = { 4, "samples" }, microbatch = { 4, "samples at once" }, dropout = { 0.1, "share", min = 0 },
  precision = { "f32", "precision" }, rounding = { "nearest", "of weights" }, sgd = { false, "by SGD" },
  block = { false, "blocks of the recipe's own" },
  every = { 0, "steps between saves" }, fail = { 0, "after this step" },
  text = { "text.txt", "text", path = "read" }, lr = { 1e-2, "rate" },
}
local nn = het.nn
local corpus = het.data.text { path = opt.text }
local function block(width, heads)
  return nn.sequential {
    nn.residual { nn.layer_norm(width), nn.attention { width = width, heads = heads, causal = true } },
    nn.residual { nn.layer_norm(width), nn.linear(width, 4 * width), nn.gelu(), nn.linear(4 * width, width) },
  }
end
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = 16, layers = 2, heads = 2, dropout = opt.dropout,
    block = opt.block and block or nil },
  data = corpus, batch = opt.batch, microbatch = opt.microbatch, steps = opt.steps, seed = opt.seed,
  precision = opt.precision, save = opt.save ~= "" and opt.save or nil,
  save_every = opt.every, on_step = function(_, step) if step.step == opt.fail then error "as asked" end end,
  optimizer = opt.sgd and het.optim.sgd { lr = opt.lr, clip = 1, rounding = opt.rounding }
    or het.optim.adamw { lr = opt.lr, weight_decay = 0.1, clip = 1, rounding = opt.rounding },
  evaluate = { every = 3, batches = 2 },
}
