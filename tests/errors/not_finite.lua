local het = require "het"
local nn, op = het.nn, het.op
local logarithm = nn.layer { name = "logarithm", forward = function(_, x)
  return op.log(op.scale(op.square(x), { factor = -1 }))
end }
return het.train {
  model = nn.sequential { nn.linear(4, 4), logarithm, nn.linear(4, 4) },
  data = het.data.pairs { inputs = het.full({ 20, 4 }, 1), labels = het.randn { 20, 4 } },
  batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
}
