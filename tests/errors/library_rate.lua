local het = require "het"
local x = het.randn({ 64, 8 }, "f32", 1)
return het.train {
  model = het.nn.linear(8, 8), data = het.data.pairs { inputs = x, labels = x, holdout = 0 }, batch = 8, steps = 4,
  optimizer = het.optim.sgd {
    lr = math.cos,
  },
}
