-- Train a saved model with an optimizer that is written with operators; optimizers.py does the same in PyTorch.
local het = require "het"
local op, optim = het.op, het.optim

local opt = het.options {
  folder    = { "", "a model in Hugging Face's layout, to begin with", path = "read" },
  tokens    = { "", "a file of 16-bit token ids", path = "read" },
  steps     = { 50, "optimizer steps" },
  optimizer = { "muon", "which" },
  plan      = { "one", "how ranks share the work" },
  save      = { "", "folder for the model", path = "write" },
}

-- AdamW once more, with het.op: it has to do what optim.adamw does.
local function adamw(step)
  local function average(share, old, new) return old * share + new * (1 - share) end
  local function debiased(x, beta) return x / (1 - op.exp(step.count * math.log(beta))) end
  local m = average(0.9, step.state "m", step.gradient)
  local v = average(0.95, step.state "v", op.square(step.gradient))
  local direction = debiased(m, 0.9) / (op.sqrt(debiased(v, 0.95)) + 1e-8)
  return { param = step.param * (1 - step.lr * step.decay) - direction * step.lr, m = m, v = v }
end

local optimizers = {
  adamw = optim.adamw { lr = 1e-3, beta2 = 0.95, weight_decay = 0.1, clip = 1 },
  custom = optim.custom { name = "own_adamw", lr = 1e-3, weight_decay = 0.1, clip = 1, update = adamw },
  lion = optim.lion { lr = 3e-4, weight_decay = 0.3, clip = 1 },
  adafactor = optim.adafactor { lr = 1e-2, weight_decay = 0.1, clip = 1 },
  muon = optim.muon { lr = 2e-3, weight_decay = 0.1, clip = 1 },
  muon_whole = optim.muon { lr = 2e-3, weight_decay = 0.1, clip = 1, split = false },
  -- A rate that a function says.
  rate = optim.adamw { lr = function(step, steps) return 1e-3 * (1 - (step - 1) / steps) end, beta2 = 0.95, clip = 1,
    weight_decay = 0.1 },
}

-- Betas and a momentum that functions say.
local function falling(step, steps) return 0.95 - 0.3 * (step - 1) / steps end
local function rising(step) return math.min(0.95, 0.8 + 0.01 * (step - 1)) end
optimizers.betas = optim.adamw { lr = 1e-3, beta1 = falling, beta2 = rising, weight_decay = 0.1, clip = 1 }
optimizers.muon_momentum = optim.muon { lr = 2e-3, weight_decay = 0.1, momentum = rising, beta2 = falling, clip = 1 }
optimizers.sgd_momentum = optim.sgd { lr = 0.2, momentum = rising, nesterov = true, weight_decay = 1e-3, clip = 1 }
optimizers.beta2_decay = optim.adafactor { lr = 1e-2, weight_decay = 0.1, clip = 1,
  beta2_decay = function(step, steps) return -0.9 + 0.3 * (step - 1) / steps end }

-- Groups with other rates and decays.
local function grouped(name, lr, more)
  local settings = { lr = lr, weight_decay = 0.1, clip = 1, decay = { { "norm.weight", 0.05 } }, groups = {
    { match = "^tokens", lr = 5e-4, weight_decay = 0 },
    { match = "^blocks.1.*up", lr = function(step, steps) return 3e-3 * step / steps end },
    { match = "^blocks.1", lr = 4e-3, weight_decay = 0.3 },
    { match = "mlp", weight_decay = 0.2 },
  } }
  for field, value in pairs(more or {}) do settings[field] = value end
  return optim[name](settings)
end
optimizers.groups = grouped("adamw", optim.linear { peak = 1e-3, warmup = 5 }, { beta2 = 0.95 })
optimizers.groups_sgd = grouped("sgd", 0.2, { momentum = 0.8, groups = { { match = "^blocks.0", lr = 0.05 } } })
optimizers.groups_custom = grouped("custom", optim.linear { peak = 1e-3, warmup = 5 }, { name = "own_adamw",
  update = adamw })

optimizers.ema = optimizers.adamw
optimizers.schedule_free = optim.schedule_free { lr = optim.constant { peak = 5e-3, warmup = 9 }, weight_decay = 0.1,
  beta1 = 0.9, beta2 = 0.95, clip = 1 }
optimizers.schedule_free_beta1 = optim.schedule_free { lr = 5e-3, weight_decay = 0.1, beta1 = falling, beta2 = 0.95,
  clip = 1 }

local plans = {
  one = nil,
  zero = het.plan { microbatch = 1, sharded_optimizer = true,
    het.pipeline { microbatches = 3, het.stage { "a:0" } }, het.pipeline { microbatches = 1, het.stage { "a:1" } } },
  tensor = het.plan { tensor = 2, microbatch = 2, het.pipeline { microbatches = 2, het.stage { "a:0-1" } } },
  pipeline = het.plan { microbatch = 2,
    het.pipeline { microbatches = 2, het.stage { "a:0", layers = 2 }, het.stage { "a:1" } } },
}

return het.train {
  model = het.load(opt.folder), data = het.data.tokens { path = opt.tokens, holdout = 0 }, batch = 4, steps = opt.steps,
  precision = "f32", seed = 5, optimizer = optimizers[opt.optimizer], plan = plans[opt.plan], evaluate = { every = 0 },
  ema = opt.optimizer == "ema" and 0.9 or nil, save = opt.save ~= "" and opt.save or nil,
}
