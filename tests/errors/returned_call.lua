-- `return` of a call leaves no frame of the function: the message still names its line.
local het = require "het"
local op = het.op

local function make(width)
  return het.nn.layer {
    name = "narrow", parameters = { weight = { 3, width } },
    forward = function(self, x)
      local y = op.relu(x)
      return op.linear(y, self.weight)
    end,
  }
end

return het.train {
  model = het.nn.sequential { het.nn.linear(4, 4), make(5) }, batch = 4, steps = 1, evaluate = { every = 0 },
  data = het.data.pairs { inputs = het.randn({ 8, 4 }, "f32", 1), labels = het.randn({ 8, 3 }, "f32", 2) },
  optimizer = het.optim.sgd { lr = 0.1 },
}
