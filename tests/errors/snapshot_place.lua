-- A place of a store where a folder is asked for.
local het = require "het"
return het.train {
  model = het.nn.linear(4, 3), batch = 4, steps = 1, evaluate = { every = 0 }, optimizer = het.optim.sgd { lr = 0.1 },
  data = het.data.pairs { inputs = het.randn({ 8, 4 }, "f32", 1), labels = het.randn({ 8, 3 }, "f32", 2) },
  snapshot = { folder = "file:///somewhere" },
}
