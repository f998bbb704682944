-- What the library finds wrong in a function that a run calls has its line.
local het = require "het"
return het.train {
  model = het.nn.linear(4, 3), batch = 4, steps = 2, evaluate = { every = 0 },
  data = het.data.pairs { inputs = het.randn({ 8, 4 }, "f32", 1), labels = het.randn({ 8, 3 }, "f32", 2) },
  optimizer = het.optim.sgd { lr = 0.1 },
  on_step = function(run)
    print(run.sate)
  end,
}
