local het = require "het"
local x = het.randn({ 8, 8 }, "f32", 1)
return het.train {
  model = het.nn.layer { name = "own", parameters = { w = { 8 } }, forward = function(self, y)
    return math.max(y * self.w, 0)
  end },
  data = het.data.pairs { inputs = x, labels = x, holdout = 0 }, batch = 8, steps = 1,
  optimizer = het.optim.sgd { lr = 0.1 },
}
