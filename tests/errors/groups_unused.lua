local het = require "het"
local nn, x = het.nn, het.randn({ 64, 8 }, "f32", 1)
return het.train {
  model = nn.layer { parameters = { unused = { 8, 8 } }, layers = { last = nn.linear(8, 8) },
    forward = function(self, inputs) return self.last(inputs) end },
  data = het.data.pairs { inputs = x, labels = x }, batch = 8, steps = 2,
  optimizer = het.optim.adamw { lr = 0.1, groups = { { match = "^unused", lr = 0.2 } } },
}
