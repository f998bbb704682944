-- Where one value is taken, a second result would be left out.
local het = require "het"
local nn = het.nn
local function problem(model)
  local x = het.zeros { 16, 8 }
  local run = het.train { model = model, data = het.data.pairs { inputs = x, labels = x }, batch = 4, steps = 1,
    optimizer = het.optim.sgd { lr = 0.1 } }
  local _, why = pcall(run.start, run)
  return tostring(why)
end
local pair = nn.layer { name = "pair", layers = { inner = nn.linear(8, 8) }, forward = function(self, x)
  x = self.inner(x)
  return x, x * 2
end }
local problems = {
  problem(pair),
  problem(nn.sequential { pair, nn.linear(8, 8) }),
  problem(nn.sequential { nn.linear(8, 8), function(x) return x, x end }),
}
error(table.concat(problems, "\n"), 0)
