-- A layer of the recipe's own that takes and returns two values, in a model that returns a table.
local het = require "het"
local nn, op = het.nn, het.op

local cell = nn.layer {
  name = "cell", layers = { new = nn.linear(2, 2), norm = nn.layer { forward = function(_, x)
    return op.layer_norm(x)   -- and its mean, which self.new does not take
  end } },
  forward = function(self, x, state)
    state = state * 0.5 + self.new(self.norm(x))
    return op.tanh(state), state
  end,
}
local model = nn.layer { name = "twice", layers = { cell = cell }, forward = function(self, x)
  local y, state = self.cell(x, x * 0)
  y, state = self.cell(y, state)
  return { y = y, state = state, inner = { half = y * 0.5 } }
end }

local x = het.tensor { { 1, 2 }, { 3, 5 }, { 2, -1 }, { 0, 4 } }
local y, state = cell(x, het.ones { 4, 2 })
assert(het.op.sum(op.abs(op.tanh(state) - y)):item() < 1e-6)

return het.train {
  model = model, data = het.data.pairs { inputs = x, labels = x * 0.1, holdout = 0 }, batch = 4, steps = 30,
  optimizer = het.optim.adamw { lr = 0.02 },
  loss = function(output, labels, scale)
    return op.sum(op.square(output.y - labels)) * scale + op.sum(op.square(output.state - labels)) * scale
  end,
  after = function(run)
    local found = run:model()(x)
    local same = op.sum(op.abs(op.tanh(found.state) - found.y)):item() < 1e-6
      and op.sum(op.abs(found.inner.half * 2 - found.y)):item() < 1e-6
    print(same, #found.y.shape, run.loss < 2)
  end,
}
