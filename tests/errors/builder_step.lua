-- Evaluations have no step.
local het = require "het"
local op = het.op
return het.train {
  model = het.nn.layer {
    layers = { inner = het.nn.linear(4, 3) },
    forward = function(self, x)
      local warm = op.minimum(op.cast(self.builder:step(), { dtype = "f32" }) / 1000, 1)
      return self.inner(x) * warm
    end,
  },
  batch = 4, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
  data = het.data.pairs { inputs = het.randn({ 16, 4 }, "f32", 1), labels = het.randn({ 16, 3 }, "f32", 2) },
}
