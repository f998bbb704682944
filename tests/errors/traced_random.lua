-- A choice in a forward would be the same in every step.
local het = require "het"
local drop = math.random() < 2
return het.train {
  model = het.nn.layer {
    layers = { inner = het.nn.linear(4, 3) },
    forward = function(self, x)
      if drop and math.random() < 0.5 then return self.inner(x) end
      return self.inner(x * 2)
    end,
  },
  batch = 4, steps = 1, evaluate = { every = 0 }, optimizer = het.optim.sgd { lr = 0.1 },
  data = het.data.pairs { inputs = het.randn({ 8, 4 }, "f32", 1), labels = het.randn({ 8, 3 }, "f32", 2) },
}
