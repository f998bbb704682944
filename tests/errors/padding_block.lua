local het = require "het"
local nn, ids = het.nn, het.zeros({ 10, 4 }, "i32")
return het.train {
  model = nn.bert { vocab = 8, context = 4, width = 8, layers = 1, heads = 1, padding = 0,
    block = function(width) return nn.sequential { nn.linear(width, width) } end },
  data = het.data.pairs { inputs = ids, labels = ids }, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
}
