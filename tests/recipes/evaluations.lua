-- A run whose loss falls until a step, and then stays or rises: rows of numbers by SGD.
local het = require "het"
local opt = het.options {
  steps = { 40, "steps" }, falls = { 40, "the loss falls until this step" }, rate = { 1e-30, "after that" },
  patience = { 0, "evaluations, 0: none" }, change = { -1.5, "min_change, below 0: none" },
  save = { "", "folder", path = "write" }, best = { "", "folder", path = "write" },
  every = { 0, "steps between saves" }, fail = { 0, "after this step" }, held = { "", "label of the rows held out" },
  stages = { false, "a stage a rank" }, sharded = { false, "optimizer state" },
  ema = { -0.5, "decay of averages, below 0: none" }, evaluated = { true, "they are" }, saved = { true, "they are" },
  from = { "", "folder of a model to begin with", path = "read" },
  free = { false, "a schedule-free optimizer" },
  back = { "", "its parameters are restored after step 8", path = "read" },
  only = { "*", "what is restored then" },
  apart = { false, "what is evaluated on is other data" }, label = { 0, "added to its labels" },
  again = { "", "folder in which the best, restored at the end, are saved", path = "write" },
}
local rows, x, y = 48, {}, {}
for i = 1, rows do
  local a, b = math.sin(i), math.cos(3 * i)
  x[i], y[i] = { a, b }, { opt.held ~= "" and i > 40 and tonumber(opt.held) or 0.5 * a - b }
end
local function part(from, to, label, holdout)
  local inputs, labels = {}, {}
  for i = from, to do
    inputs[#inputs + 1], labels[#labels + 1] = x[i], { y[i][1] + label }
  end
  return het.data.pairs { inputs = het.tensor(inputs), labels = het.tensor(labels), holdout = holdout }
end
-- Of two layers, which a plan may place.
local second = het.nn.layer { name = "second", layers = { inner = het.nn.linear(4, 1) },
  forward = function(self, hidden)
    self.builder:begin_layer "second"
    return self.inner(hidden)
  end }
return het.train {
  model = het.nn.sequential { het.nn.linear(2, 4), second },
  data = opt.apart and part(1, 40, 0) or part(1, rows, 0, 8 / rows),
  batch = 4, microbatch = 1, steps = opt.steps, seed = 3, from = opt.from ~= "" and opt.from or nil,
  ema = opt.ema > 0 and (opt.evaluated and opt.saved and opt.ema
    or { decay = opt.ema, evaluate = opt.evaluated, save = opt.saved }) or nil,
  optimizer = (opt.free and het.optim.schedule_free or het.optim.sgd) { clip = 1,
    lr = function(step) return step <= opt.falls and 0.05 or opt.rate end },
  plan = opt.stages and het.plan { microbatch = 1,
    het.pipeline { microbatches = 4, het.stage { "a:0", layers = 1 }, het.stage { "a:1" } } }
    or opt.sharded and het.plan { microbatch = 1, sharded_optimizer = true,
      het.pipeline { microbatches = 3, het.stage { "a:0" } }, het.pipeline { microbatches = 1, het.stage { "a:1" } } }
    or nil,
  evaluate = { data = opt.apart and part(41, rows, opt.label) or nil, every = 2, batches = 2,
    patience = opt.patience > 0 and opt.patience or nil,
    min_change = opt.change >= 0 and opt.change or nil },
  save = opt.save ~= "" and opt.save or nil, save_every = opt.every,
  keep_best = opt.best ~= "" and opt.best or nil,
  on_step = function(run, step)
    if step.step == opt.fail then error "as asked" end
    if step.step == 8 and opt.back ~= "" then
      run:restore { from = opt.back, only = opt.only ~= "" and opt.only or nil }
    end
  end,
  after = opt.again ~= "" and function(run)
    run:restore { from = opt.best, only = "*" }
    run:save(opt.again)
  end or nil,
}
