local het = require "het"
local nn, op = het.nn, het.op
local doubled = nn.layer { name = "doubled", forward = function(_, x)
  return op.add(x, op.reshape(x, { shape = { 7, 2 } }))
end }
return het.train {
  model = nn.sequential { nn.linear(4, 8), doubled },
  data = het.data.pairs { inputs = het.randn { 20, 4 }, labels = het.randn { 20, 8 } },
  batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
}
