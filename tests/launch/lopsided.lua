-- A small GPT with dropout; with --spread over five ranks in two unequal pipelines, one stage recomputing; with
-- --tensor over six, each layer on two of them; with --mixed over six whose stages share their layers differently; with
-- --reversed over as many as there are.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  steps    = { 12, "optimizer steps", min = 1 },
  spread   = { false, "run the plan instead of one device" },
  tensor   = { false, "run a plan in which two ranks share each layer" },
  mixed    = { false, "run a plan in which one, two or three ranks share each layer, unevenly" },
  reversed = { false, "run a pipeline over the ranks that are there, the last one first" },
  schedule = { "1f1b", "of the plan", choices = { "1f1b", "gpipe", "split_backward" } },
  save     = { "", "folder to save the model in", path = "write" },
  stop     = { 0, "steps after which it stops, as if interrupted; 0: never", min = 0 },
  precision = { "f32", "of the computation", choices = { "f32", "bf16" } },
  rounding = { "nearest", "of the weights' copy", choices = { "nearest", "stochastic" } },
  sharded  = { false, "divide optimizer state over replicas" },
  every    = { 6, "steps between evaluations", min = 1 },
  batches  = { 2, "of an evaluation", min = 1 },
  fresh    = { false, "begin again though something is saved" },
  swap     = { 0, "step after which four ranks go on as two pipelines of two stages; 0: none", min = 0 },
  memory   = { true, "with --elastic: snapshots in the hosts' memory" },
  memory_every = { 1, "steps between these; 0: as pays", min = 0 },
  memory_limit = { "", "of a host's memory, for these" },
  replicas = { 2, "hosts that should have each part of the state", min = 1 },
  snapshots = { "", "folder for snapshots on disk", path = "write" },
  snapshot_every = { 5, "steps between these", min = 1 },
  store    = { "", "gets a copy of each" },
  eager    = { false, "take in who waits to join, whether it pays or not" },
  renew    = { 0, "steps between two that begin the same plan again; 0: none", min = 0 },
  collect  = { false, "gather the weights after each step, which takes all ranks" },
}
local corpus = data.text { path = "text.txt", tokenizer = "char", holdout = 0.1 }

local plan
if opt.spread then
  plan = het.plan { microbatch = 2, schedule = opt.schedule, sharded_optimizer = opt.sharded,
    het.pipeline { microbatches = 4, het.stage { "a:0", layers = 2 }, het.stage { "a:1", layers = 1, recompute = true },
                   het.stage { "a:2" } },
    het.pipeline { microbatches = 2, het.stage { "b:0", layers = 4 }, het.stage { "b:1" } } }
elseif opt.tensor then
  plan = het.plan { tensor = 2, microbatch = 2, schedule = opt.schedule, sharded_optimizer = opt.sharded,
    het.pipeline { microbatches = 4, het.stage { "a:0", "a:1", layers = 2, recompute = true },
                   het.stage { "a:2", "a:3" } },
    het.pipeline { microbatches = 2, het.stage { "b:0", "b:1" } } }
elseif opt.mixed then
  plan = het.plan { microbatch = 2, schedule = opt.schedule, sharded_optimizer = opt.sharded, sequence = true,
    het.pipeline { microbatches = 4, het.stage { "a:0-1", tensor = { 3, 1 }, layers = 2, recompute = true },
                   het.stage { "a:2" } },
    het.pipeline { microbatches = 2, het.stage { "b:0-2", tensor = { 2, 1, 1 } } } }
end

if opt.reversed then
  plan = het.plan.auto { policy = function(problem)
    local stages = {}
    for i = #problem.devices, 2, -1 do stages[#stages + 1] = het.stage { problem.devices[i].name, layers = 1 } end
    stages[#stages + 1] = het.stage { problem.devices[1].name }
    return het.plan { microbatch = 2, het.pipeline { microbatches = 6, unpack(stages) } }
  end }
end

return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = 32, layers = 4, heads = 4, dropout = 0.1 },
  data = corpus, batch = 12, microbatch = 2, steps = opt.steps, precision = opt.precision,
  optimizer = optim.adamw { lr = optim.cosine { peak = 3e-3, warmup = 4 }, weight_decay = 0.1, clip = 0.5,
    rounding = opt.rounding },
  evaluate = { every = opt.every, batches = opt.batches },
  sample = { prompt = "the ", tokens = 20 },
  save = opt.save ~= "" and opt.save or nil, save_every = 3, resume = opt.save ~= "" and not opt.fresh,
  snapshot = { memory = opt.memory, memory_every = opt.memory_every > 0 and opt.memory_every or nil,
    memory_limit = opt.memory_limit ~= "" and opt.memory_limit or nil,
    replicas = opt.replicas, every = opt.snapshot_every,
    folder = opt.snapshots ~= "" and opt.snapshots or nil, store = opt.store ~= "" and opt.store or nil },
  on_change = opt.eager and function(run, change)
    return change.kind == "waiting" or het.policy.on_change(run, change)
  end or nil,
  on_step = function(run, step)
    if opt.collect then run:gather() end
    if opt.renew > 0 and step.step % opt.renew == 0 then run:use_plan(run.plan) end
    if step.step == opt.swap then
      run:use_plan(het.plan { microbatch = 2,
        het.pipeline { microbatches = 3, het.stage { "a:0", layers = 3 }, het.stage { "a:1" } },
        het.pipeline { microbatches = 3, het.stage { "b:0", layers = 2 }, het.stage { "b:1" } } })
    end
    if step.step == opt.stop then error "stopped here" end
  end,
  plan = plan,
}
