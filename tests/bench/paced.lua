-- A GPT on ranks that are slowed to stated rates: what a step takes is then a matter of the plan, not of this machine.
-- distributed.py runs it and compares with what the plan allows.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  setting = { "dp2", "plan", choices = { "dp2", "pp4", "asymmetric", "tp2", "exchange" } },
  link    = { "4 GB/s", "between devices" },
  steps   = { 12, "optimizer steps", min = 1 },
}
local corpus = data.text { path = "text.txt", tokenizer = "char" }
local stage, pipeline = het.stage, het.pipeline

local plans = {
  dp2 = function()
    return het.plan { microbatch = 4, pipeline { microbatches = 4, stage { "a:0" } },
      pipeline { microbatches = 4, stage { "a:1" } } }
  end,
  pp4 = function()
    return het.plan { microbatch = 4,
      pipeline { microbatches = 8,
        stage { "a:0", layers = 3 }, stage { "a:1", layers = 2 },
        stage { "a:2", layers = 2 }, stage { "a:3", layers = 3 } } }
  end,
  asymmetric = function()
    return het.plan { microbatch = 4,
      pipeline { microbatches = 4,
        stage { "a:0", layers = 4 }, stage { "a:1", layers = 3 }, stage { "a:2", layers = 3 } },
      pipeline { microbatches = 4, stage { "b:0", layers = 5 }, stage { "b:1", layers = 5 } } }
  end,
  tp2 = function()
    return het.plan { tensor = 2, microbatch = 16, pipeline { microbatches = 2, stage { "a:0", "a:1" } } }
  end,
  -- One micro-batch each: all gradients are exchanged during one backward pass.
  exchange = function()
    return het.plan { microbatch = 16, pipeline { microbatches = 1, stage { "a:0" } },
      pipeline { microbatches = 1, stage { "a:1" } } }
  end,
}

local function device_type(name, rate)
  return het.device_type { name = name, f32 = rate, memory = "4 GiB", memory_bandwidth = "1 TB/s", efficiency = 1,
    launch = "0 us", bandwidth = opt.link, latency = "20 us" }
end
local cluster = het.cluster { bandwidth = opt.link, latency = "20 us", all_reduce = "mesh",
  device_type("slow", "12 GFLOP/s"), device_type("fast", "18 GFLOP/s"),
  het.node { name = "a", type = "slow", devices = 4 }, het.node { name = "b", type = "fast", devices = 2 },
}

-- What tensor parallelism sends grows with the width, what it computes with the width squared: narrow layers would
-- measure this machine's loopback.
local narrow, wide = { width = 128, layers = 8 }, { width = 256, layers = 4 }
local shape = opt.setting == "tp2" and wide or narrow

return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 64, width = shape.width, layers = shape.layers, heads = 4 },
  data = corpus, batch = 32, steps = opt.steps, evaluate = { every = 0 },
  optimizer = optim.adamw { lr = 1e-3 }, plan = plans[opt.setting](), pace = cluster,
}
