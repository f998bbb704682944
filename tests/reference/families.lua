-- What families.py asks of a saved model: the tokens that it writes with its cache and from the whole context, as two
-- lines, or a training under a plan. Run with --trust: it uses the engine below the library.
local het = require "het"
local native = require "het.native"
local generate = require "het.model.generate"
local handle = require "het.sandbox.handle"

local opt = het.options {
  folder = { "", "a model in Hugging Face's layout", path = "read" },
  tokens = { "", "a file of 16-bit token ids to train on; empty: write", path = "read" },
  plan = { "none", "that it is trained under", choices = { "none", "tensor", "sequence", "pipeline",
    "data", "sharded" } },
  steps = { 20, "optimizer steps" },
  write = { 10, "tokens to write" },
}
local model = het.load(opt.folder)

if opt.tokens == "" then
  local inner = handle.inner(model)
  local state = native.state(native.device "cpu", 0)
  require("het.model.load").set_initial_weights(opt.folder, inner, state)
  local prompt = { 3, 1, 4, 1, 5 }
  local written = generate.new({ model = inner, state = state }):ids(prompt,
    { tokens = opt.write, temperature = 0, top_p = 1, seed = 0 })
  local all, whole = { unpack(prompt) }, {}
  for i = 1, opt.write do
    local last = model(het.tensor({ all }, "i32"))[1][#all]:tolist()
    local best = 1
    for id, logit in ipairs(last) do
      if logit > last[best] then best = id end
    end
    all[#all + 1], whole[i] = best - 1, best - 1
  end
  print(inner:is_incremental() and "with a cache" or "without a cache")
  print(table.concat(written, " "))
  print(table.concat(whole, " "))
  os.exit(0)
end

local plans = {
  tensor = function()
    return het.plan { tensor = 2, microbatch = 2, het.pipeline { microbatches = 2, het.stage { "cpu:0-1" } } }
  end,
  sequence = function()
    return het.plan { tensor = 2, sequence = true, microbatch = 2,
      het.pipeline { microbatches = 2, het.stage { "cpu:0-1" } } }
  end,
  data = function()
    return het.plan { microbatch = 2, het.pipeline { microbatches = 1, het.stage { "cpu:0" } },
      het.pipeline { microbatches = 1, het.stage { "cpu:1" } } }
  end,
  sharded = function()
    return het.plan { microbatch = 2, sharded_optimizer = true,
      het.pipeline { microbatches = 1, het.stage { "cpu:0" } },
      het.pipeline { microbatches = 1, het.stage { "cpu:1" } } }
  end,
  pipeline = function()
    return het.plan { microbatch = 2,
      het.pipeline { microbatches = 2, het.stage { "cpu:0", layers = 2 }, het.stage { "cpu:1" } } }
  end,
}

return het.train {
  model = model, data = het.data.tokens { path = opt.tokens, holdout = 0 }, context = 16, batch = 4,
  microbatch = 2, steps = opt.steps, seed = 5,
  optimizer = het.optim.adamw { lr = 1e-3, beta2 = 0.95, weight_decay = 0.1, clip = 1.0 },
  evaluate = { every = 0 }, plan = plans[opt.plan] and plans[opt.plan]() or nil,
}
