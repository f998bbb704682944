local het = require "het"
local x = het.randn({ 64, 8 }, "f32", 1)
return het.train {
  model = het.nn.linear(8, 8), data = het.data.pairs { inputs = x, labels = x, holdout = 0 }, batch = 8, steps = 4,
  optimizer = het.optim.adafactor { lr = 1e-2, beta2_decay = function(step) return step == 2 and 0 or -0.8 end },
}
