local het = require "het"
local x = het.zeros({ 4, 2 })
return het.train {
  model = het.nn.layer { name = "mixed", parameters = { gain = { 2 } }, forward = function(self, y)
    return y * self.gain + het.ones({ 40000, 2 })
  end },
  data = het.data.pairs { inputs = x, labels = x }, batch = 4, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
}
