local het = require "het"
local nn = het.nn
local x = het.randn { 20, 4 }
return het.train {
  model = nn.sequential { nn.linear(4, 8), nn.residual { nn.linear(9, 8) } },
  data = het.data.pairs { inputs = x, labels = het.randn { 20, 8 } },
  batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
}
