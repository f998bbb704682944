-- A loss that is no single number.
local het = require "het"
return het.train {
  model = het.nn.linear(4, 3), batch = 4, steps = 1, evaluate = { every = 0 },
  data = het.data.pairs { inputs = het.randn({ 8, 4 }, "f32", 1), labels = het.randn({ 8, 3 }, "f32", 2) },
  loss = function(output, labels, scale) return het.op.square(output - labels) * scale end,
  optimizer = het.optim.sgd { lr = 0.1 },
}
