local het = require "het"
local x = het.zeros({ 4, 2 })
return het.train {
  model = het.nn.frozen(het.nn.linear(2, 2)), data = het.data.pairs { inputs = x, labels = x }, batch = 4, steps = 1,
  optimizer = het.optim.sgd { lr = 0.1 },
}
