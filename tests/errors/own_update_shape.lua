-- A new value of another shape than the parameter's.
local het = require "het"
local function update(step)
  return { param = het.op.sum(step.param, { dims = { 0 } }) }
end
return het.train {
  model = het.nn.linear(8, 4), batch = 4, steps = 2, evaluate = { every = 0 },
  data = het.data.pairs { inputs = het.randn({ 32, 8 }, "f32", 1), labels = het.randn({ 32, 4 }, "f32", 2) },
  optimizer = het.optim.custom { update = update, lr = 0.1 },
}
