-- A GPT of 44 M parameters, whose state is about 530 MB, in steps of few tokens: what tests/bench/recovery measures.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  plan      = { "pipeline", "of the first ranks", choices = { "pipeline", "two", "tensor", "auto" } },
  snapshots = { "", "folder for snapshots on disk", path = "write" },
  store     = { "", "gets a copy of each" },
  every     = { 10, "steps between them", min = 1 },
  memory    = { true, "snapshots in the hosts' memory" },
  replicas  = { 2, "hosts that should have each part of the state", min = 1 },
  layers    = { 14, "of the model", min = 1 },
  width     = { 512, "of the model", min = 64 },
  steps     = { 100000, "optimizer steps", min = 1 },
}
local corpus = data.text { path = "text.txt", tokenizer = "char" }

-- A quarter of the layers, from the first to the fourth.
local function stage(device, part)
  return het.stage { device, layers = math.floor(opt.layers / 4 * part) - math.floor(opt.layers / 4 * (part - 1)) }
end

local plans = {
  pipeline = het.plan { microbatch = 2,
    het.pipeline { microbatches = 6, stage("a:0", 1), stage("b:0", 2), stage("c:0", 3), het.stage { "d:0" } } },
  two = het.plan { microbatch = 2,
    het.pipeline { microbatches = 3, het.stage { "a:0", layers = math.floor(opt.layers / 2) }, het.stage { "b:0" } },
    het.pipeline { microbatches = 3, het.stage { "c:0", layers = math.floor(opt.layers / 2) }, het.stage { "d:0" } } },
  tensor = het.plan { tensor = 2, microbatch = 2,
    het.pipeline { microbatches = 6, het.stage { "a:0", "b:0", layers = math.floor(opt.layers / 2) },
                   het.stage { "c:0", "d:0" } } },
  auto = het.plan.auto {},
}

return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = opt.width, layers = opt.layers, heads = 8 },
  data = corpus, batch = 12, microbatch = 2, steps = opt.steps, optimizer = optim.adamw { lr = 1e-4 },
  evaluate = { every = 0 },
  snapshot = { memory = opt.memory, replicas = opt.replicas, every = opt.every,
    folder = opt.snapshots ~= "" and opt.snapshots or nil, store = opt.store ~= "" and opt.store or nil },
  plan = plans[opt.plan],
}
