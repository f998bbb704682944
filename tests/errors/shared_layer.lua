-- One layer under two names, and what is asked of a layer in a forward.
local het = require "het"
local nn = het.nn
local x = het.zeros { 16, 8 }
local function run_of(model)
  return het.train { model = model, data = het.data.pairs { inputs = x, labels = x }, batch = 4, steps = 1,
    optimizer = het.optim.sgd { lr = 0.1 } }
end
local function problem(forward)
  local run = run_of(nn.layer { name = "own", layers = { inner = nn.linear(8, 8) }, forward = forward })
  local _, why = pcall(run.start, run)
  return tostring(why)
end
local activation, twice = nn.relu(), nn.sequential { nn.linear(8, 8) }
run_of(nn.sequential { activation, nn.linear(8, 8), activation })
run_of(nn.sequential { twice, activation, twice })
run_of(nn.layer { layers = { first = twice, second = twice }, forward = function(self, y)
  return self.second(self.first(y))
end })
local problems = {
  problem(function(self, y)
    return het.op.linear(y, self.inner.weight)
  end),
  problem(function(self)
    return self.inner
  end),
  problem(function(self, y)
    return self:inner(y) + 1
  end),
}
error(table.concat(problems, "\n"), 0)
