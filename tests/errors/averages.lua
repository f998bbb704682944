-- A decay lies between 0 and 1.
local het = require "het"
local function run(ema, optimizer)
  return het.train {
    model = het.nn.linear(1, 1), batch = 2, steps = 2, optimizer = optimizer or het.optim.sgd { lr = 0.1 },
    data = het.data.pairs { inputs = het.randn(10, 1), labels = het.randn(10, 1) }, ema = ema,
  }
end
run(1)
run "0.9"
run { decay = 1.5 }
run { evaluate = false }
run(0.9, het.optim.schedule_free { lr = 0.1 })
return run { decay = 0.9, interval = 2 }
