-- What a loss returns: a number that is scaled, and figures.
local het = require "het"
local nn, op = het.nn, het.op
local function problem(model, loss, labels)
  local x = het.zeros { 16, 8 }
  local run = het.train { model = model, data = het.data.pairs { inputs = x, labels = labels or x, holdout = 0 },
    batch = 4, steps = 1, optimizer = het.optim.sgd { lr = 0.1 }, loss = loss }
  local ok, why = pcall(run.start, run)
  return ok and "no problem" or tostring(why)
end
local classes = het.zeros({ 16 }, "i32")
local table_model = nn.layer { layers = { inner = nn.linear(8, 8) }, forward = function(self, x)
  return { y = self.inner(x) }
end }
local problems = {
  problem(nn.linear(8, 8), function(output, labels)
    return op.mean(op.square(op.reshape(output - labels, { shape = { -1 } })))
  end),
  problem(nn.linear(8, 8), function(output, labels, scale)
    local error = op.sum(op.square(output - labels))
    return error, { scaled = error * scale }
  end),
  problem(table_model),
  problem(nn.linear(8, 8), function(output, _, scale)
    return op.sum(output * scale), output * scale
  end),
  -- These are no mistakes.
  problem(nn.linear(8, 8), function(output, labels, scale) return op.cross_entropy(output, labels, scale) end, classes),
  problem(nn.linear(8, 8), function(output, _, scale)
    return op.sum(op.square(output)) * scale, { figure = op.sum(output) * scale }
  end),
}
error(table.concat(problems, "\n"), 0)
