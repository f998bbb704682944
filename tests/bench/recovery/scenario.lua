-- A GPT of 44 M parameters, whose state is about 530 MB, in steps of few tokens: what tests/bench/recovery measures.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  way       = { "pipeline", "of four ranks", choices = { "pipeline", "two", "tensor" } },
  snapshots = { "", "folder for snapshots on disk", path = "write" },
  store     = { "", "gets a copy of each" },
  every     = { 20, "steps between them", min = 1 },
  memory    = { true, "snapshots in the hosts' memory" },
  memory_every = { 1, "steps between these; 0: as pays", min = 0 },
  layers    = { 14, "of the model", min = 1 },
  width     = { 512, "of the model", min = 64 },
  batch     = { 12, "samples of a step", min = 1 },
  microbatch = { 2, "samples of a micro-batch of the plans", min = 1 },
  steps     = { 100000, "optimizer steps", min = 1 },
}
local corpus = data.text { path = "text.txt", tokenizer = "char" }

-- How fast a machine's type is beside the others': those after the first five are of a slower one.
local function speed_of(device) return tonumber(device:match "%d+") < 5 and 1 or 0.5 end

-- One pipeline over stages, each a list of devices, with as many layers in each as its machines are fast.
local function pipeline(stages, microbatches)
  local made, all, sum, before = {}, opt.layers + 2, 0, 0
  for _, devices in ipairs(stages) do sum = sum + speed_of(devices[1]) end
  for i, devices in ipairs(stages) do
    local after = before + speed_of(devices[1])
    devices.layers = i < #stages and math.floor(all * after / sum) - math.floor(all * before / sum) or nil
    made[i], before = het.stage(devices), after
  end
  return het.pipeline { microbatches = microbatches, unpack(made) }
end

local function plan_of(devices)
  local d, all, microbatch = devices, opt.batch / opt.microbatch, opt.microbatch
  if #d == 4 and opt.way == "two" then
    return het.plan { microbatch = microbatch, pipeline({ { d[1] }, { d[2] } }, all / 2),
      pipeline({ { d[3] }, { d[4] } }, all / 2) }
  elseif #d == 4 and opt.way == "tensor" then
    return het.plan { tensor = 2, microbatch = microbatch, pipeline({ { d[1], d[2] }, { d[3], d[4] } }, all) }
  end
  local stages = {}
  for i, device in ipairs(d) do stages[i] = { device } end
  return het.plan { microbatch = microbatch, pipeline(stages, all) }
end

return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = opt.width, layers = opt.layers, heads = 8 },
  data = corpus, batch = opt.batch, microbatch = 2, steps = opt.steps, optimizer = optim.adamw { lr = 1e-4 },
  evaluate = { every = 0 },
  snapshot = { memory = opt.memory, memory_every = opt.memory_every > 0 and opt.memory_every or nil,
    every = opt.every, keep = 2, folder = opt.snapshots ~= "" and opt.snapshots or nil,
    store = opt.store ~= "" and opt.store or nil },
  on_change = function(_, change)
    if change.kind == "waiting" then return true end
    local devices = { unpack(change.devices) }
    table.sort(devices)   -- machine_0:0, machine_1:0, ...
    return plan_of(devices)
  end,
}
