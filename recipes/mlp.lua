-- A first recipe: a network of two layers learns y = sin(3x) from 2,000 examples.
--   hetrun recipes/mlp.lua --hidden=32
local het = require "het"
local nn = het.nn

local opt = het.options {
  hidden = { 64, "features between the two layers", min = 1 },
  steps  = { 500, "optimizer steps", min = 1 },
}

local x = het.uniform({ 2000, 1 }, "f32", 1)          -- 2,000 numbers between -1 and 1
local y = {}
for i = 1, 2000 do y[i] = { math.sin(3 * x[i][1]) } end

return het.train {
  model     = nn.sequential { nn.linear(1, opt.hidden), nn.tanh(), nn.linear(opt.hidden, 1) },
  data      = het.data.pairs { inputs = x, labels = het.tensor(y) },   -- a tenth is held out for validation
  batch     = 50, steps = opt.steps,
  optimizer = het.optim.adamw { lr = 1e-2 },
  evaluate  = { every = 100, batches = 4 },
}
