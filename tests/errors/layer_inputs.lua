-- A layer of the library takes one value: the mask would be left out.
local het = require "het"
local nn = het.nn
local function problem(forward)
  local model = nn.layer { name = "masked", layers = { attention = nn.attention { width = 8, heads = 2 } },
    forward = forward }
  local x = het.zeros { 16, 4, 8 }
  local run = het.train { model = model, data = het.data.pairs { inputs = x, labels = x }, batch = 4, steps = 1,
    optimizer = het.optim.sgd { lr = 0.1 } }
  local _, why = pcall(run.start, run)
  return tostring(why)
end

local problems = {
  problem(function(self, x)
    local y = self.attention(x, x * 0)
    return y
  end),
  problem(function(self, x)
    return self.attention() + x
  end),
}
local _, why = pcall(nn.linear(2, 2), het.ones(1, 2), het.ones(1, 2))
problems[3] = tostring(why)
error(table.concat(problems, "\n"), 0)
