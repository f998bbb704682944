local het = require "het"
return het.train {
  model = het.nn.linear(4, 8),
  data = het.data.pairs { inputs = het.randn { 20, 4 }, labels = het.randn { 20, 8 } },
  batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
}
