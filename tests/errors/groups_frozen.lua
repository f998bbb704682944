local het = require "het"
local nn, x = het.nn, het.randn({ 64, 8 }, "f32", 1)
return het.train {
  model = nn.layer { layers = { first = nn.frozen(nn.linear(8, 8)), last = nn.linear(8, 8) },
    forward = function(self, inputs) return self.last(self.first(inputs)) end },
  data = het.data.pairs { inputs = x, labels = x }, batch = 8, steps = 2,
  optimizer = het.optim.adamw { lr = 0.1, groups = { { match = "^first", lr = 0.2 } } },
}
