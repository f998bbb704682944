local het = require "het"
local x = het.randn({ 64, 8 }, "f32", 1)
return het.train {
  model = het.nn.linear(8, 8), data = het.data.pairs { inputs = x, labels = x }, batch = 8, steps = 2,
  optimizer = het.optim.adamw { lr = 0.1, groups = { { match = "i", lr = 0.2 }, { match = "^bias", lr = 0.3 } } },
}
