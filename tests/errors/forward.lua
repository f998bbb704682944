-- A mistake in a forward is reported with its line.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local function scaled(forward)
  return nn.layer { name = "scaled", layers = { inner = nn.linear(8, 8) }, parameters = { gain = { 8, init = "ones" } },
    forward = forward }
end

local function problem(forward)
  local x = het.zeros({ 16, 8 })
  local run = het.train { model = nn.sequential { scaled(forward), nn.linear(8, 8) },
    data = data.pairs { inputs = x, labels = x }, batch = 16, steps = 1, optimizer = optim.adamw { lr = 1e-2 } }
  local _, why = pcall(run.start, run)
  return tostring(why)
end

local problems = {
  problem(function(self, x)
    return self.inner(x) * self.gian
  end),
  problem(function(self, x)
    return self.inner(x) * nil
  end),
  problem(function(self, x)
    local twice = het.op.concat(x, x, { dim = 1 })
    local y = self.inner(twice)
    return y
  end),
}
error(table.concat(problems, "\n"), 0)
