local het = require "het"
local nn = het.nn
return het.train {
  model = nn.sequential { nn.linear(3, 8), nn.gelu(), nn.linear(8, 5) },
  data = het.data.pairs { inputs = het.randn(40, 3), labels = het.randn(40, 4), holdout = 0 },
  batch = 10, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
}
