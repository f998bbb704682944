-- A list with a gap.
local het = require "het"
local nn = het.nn
local dropout = nil
return het.train {
  model = nn.sequential { nn.linear(4, 4), dropout, nn.linear(4, 3) },
  batch = 4, steps = 1, evaluate = { every = 0 }, optimizer = het.optim.sgd { lr = 0.1 },
  data = het.data.pairs { inputs = het.randn({ 8, 4 }, "f32", 1), labels = het.randn({ 8, 3 }, "f32", 2) },
}
