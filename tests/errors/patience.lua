-- Early stopping needs evaluations, and names that others have for it are known.
local het = require "het"
local function run(evaluate, holdout, keep_best)
  return het.train {
    model = het.nn.linear(1, 1), batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
    data = het.data.pairs { inputs = het.randn(10, 1), labels = het.randn(10, 1), holdout = holdout },
    evaluate = evaluate, keep_best = keep_best,
  }
end
run({ patience = 0 }, 0.5)
run({ patience = 2, every = 0 }, 0.5)
run({ patience = 2 }, 0)
run({ min_change = 0.1 }, 0.5)
run({ every = 0 }, 0.5, "runs/patience")
run({ patience = 2, min_delta = 0.1 }, 0.5)
return het.train {
  model = het.nn.linear(1, 1), batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
  data = het.data.pairs { inputs = het.randn(10, 1), labels = het.randn(10, 1) },
  early_stopping = 3, save_best = "runs/patience", save = "runs/patience", keep_best = "runs/patience",
}
