-- A layer that a forward uses, and `layers` does not have, would not be trained.
local het = require "het"
local nn, op = het.nn, het.op
local x = het.randn({ 16, 8 }, "f32", 1)

local function run_of(model, loss)
  return het.train { model = model, data = het.data.pairs { inputs = x, labels = x }, batch = 5, steps = 1,
    optimizer = het.optim.sgd { lr = 0.1 }, evaluate = { every = 0 }, loss = loss }
end

local function problem(...)
  local run = run_of(...)
  local ok, why = pcall(run.start, run)
  return ok and "no problem" or tostring(why)
end

local outside = nn.linear(8, 8)
local problems = {
  problem(nn.layer { layers = { inner = nn.linear(8, 8) }, forward = function(self, y)
    y = self.inner(y)
    return y + outside(y)
  end }),
  problem(nn.layer { layers = { inner = nn.linear(8, 8) }, forward = function(self, y)
    return self.inner(y) + outside(het.ones(1, 8))
  end }),
  problem(nn.sequential { nn.linear(8, 8), function(y) return outside(y) end }),
  problem(nn.linear(8, 8), function(output, labels, scale)
    local loss = op.sum(op.square(outside(output) - labels))
    return loss * scale
  end),
}

-- A model that was trained may be a constant of another one, and layers compute data.
local teacher = run_of(nn.linear(8, 8))
teacher:start()
local frozen = teacher:model()
local labels = outside(x)
problems[5] = problem(nn.linear(8, 8), function(output, _, scale)
  return op.sum(op.square(output - frozen(op.slice(labels, { dim = 0, start = 0, length = 5 })))) * scale
end)
error(table.concat(problems, "\n"), 0)
