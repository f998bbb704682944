local het = require "het"
local opt = het.options { steps = { 20, "optimizer steps" } }
return het.train {
  model = het.nn.linear(4, 8),
  data = het.data.pairs { inputs = het.randn { 20, 4 }, labels = het.randn { 20, 8 } },
  batch = 2, steps = opt.steps, optimizer = het.optim.sgd { lr = 0.1 },
}
