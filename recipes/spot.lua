-- Spot training: a GPT learns from text while machines vanish and come again, and ends with the losses that it would
-- have had in peace. All of it on one machine, whose processes stand for machines:
--
--   hetrun --workers 4 --elastic 2:4 --chaos 7 recipes/spot.lua
--   hetrun --workers 4 --elastic 2:4 --chaos 8 recipes/spot.lua --text=shakespeare.txt
--
-- --chaos has processes killed, or terminated with notice as spot machines are, and started again, as the seed draws
-- it: the schedule is printed first, and a seed repeats it. Watch what happens after each loss: the ranks that are left
-- find each other, share the samples of a step among them, and repeat what was not done. At the end one process trains
-- the same model again, undisturbed, and both curves are drawn.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  text    = { "/usr/include/c++", "text file, or folder of text files", path = "read" },
  limit   = { "1 MB", "most text read from a folder" },
  steps   = { 300, "optimizer steps", min = 1 },
  batch   = { 12, "samples of a step", min = 4 },
  context = { 64, "characters that the model sees at once", min = 2 },
  layers  = { 3, "blocks", min = 1 },
  heads   = { 4, "attention heads", min = 1 },
  width   = { 96, "features of a token", min = 1 },
  seed    = { 1337, "of the weights and the order of samples", min = 0 },
}

local corpus = data.text { path = opt.text, tokenizer = "char", limit = opt.limit }

local function describe(more)
  local a = {
    model = nn.gpt { vocab = corpus.vocab, context = opt.context, width = opt.width, layers = opt.layers,
      heads = opt.heads },
    data = corpus, batch = opt.batch, microbatch = 1, steps = opt.steps, seed = opt.seed,
    optimizer = optim.adamw { lr = optim.cosine { peak = 2e-3, warmup = 20 }, weight_decay = 0.1, clip = 1.0 },
    evaluate = { every = 0 },
  }
  for name, value in pairs(more) do a[name] = value end
  return het.train(a)
end

-- Losses by step, of a step that was recorded twice the last one; the pauses; what became of the samples.
local function read(run)
  local losses, pauses, account = {}, {}, nil
  for _, record in ipairs(run:records()) do
    if record.loss then losses[record.step] = record.loss end
    if record.timeline then pauses[#pauses + 1] = record end
    if record.samples then account = record end
  end
  return losses, pauses, account
end

-- What each change of the ranks took. A loss is noticed some time after the step before; the other times count from
-- then on. Bytes come from other ranks or from snapshots in memory.
local function print_timeline(pauses)
  if #pauses == 0 then return end
  print "\nafter step  went  came  ranks  noticed  connected  planned  restored  from ranks  from memory  next step"
  for _, pause in ipairs(pauses) do
    local noticed = pause.after_loss and ("%4.0f ms"):format(1e3 * (pause.noticed_seconds or 0)) or "      -"
    print(("%10d  %4d  %4d  %5d  %s  %6.0f ms  %4.0f ms  %5.0f ms  %6.2f MiB  %7.2f MiB  %6.0f ms"):format(
      pause.last_step, pause.lost, pause.joined, pause.members, noticed, 1e3 * pause.connected_seconds,
      1e3 * pause.planned_seconds, 1e3 * pause.restored_seconds, (pause.bytes.live or 0) / 2 ^ 20,
      (pause.bytes.memory or 0) / 2 ^ 20, 1e3 * pause.first_step_seconds))
  end
end

-- The losses of the same run by one process, undisturbed. The other ranks wait: after some steps they hear of this one.
local function train_undisturbed(run)
  local calm, losses = run.rank == 0 and describe { alone = true }, {}
  for step = 1, opt.steps do
    local done = calm and calm:train_step()
    losses[step] = done and done.loss   -- none when interrupted
    if step % 10 == 0 and run:asked_to_stop() then return nil end
  end
  return losses
end

local function compare(run)
  if run.rank == 0 then print "\nThe same training by one process, undisturbed ..." end
  local calm = train_undisturbed(run)
  if not calm or run.rank > 0 then return end
  local losses, pauses, account = read(run)
  local greatest, at = 0, 1
  for step, loss in ipairs(calm) do
    if math.abs(losses[step] - loss) >= greatest then greatest, at = math.abs(losses[step] - loss), step end
  end
  print(het.plot { { "loss of this run", losses }, { "undisturbed", calm }, height = 14 })
  print(("greatest difference of losses: %.2g, at step %d (%.6f and %.6f)"):format(greatest, at, losses[at], calm[at]))
  print_timeline(pauses)
  if account then
    print(("\nranks: %d went, %d came; steps: %d repeated; %d samples lost, %d repeated"):format(account.ranks_gone,
      account.ranks_joined, account.steps_repeated, account.samples_lost, account.samples_repeated))
  end
end

return describe {
  metrics = "runs/spot/metrics.jsonl",   -- where `compare` reads what the run has reported
  after = compare,
  -- Each rank has the whole model, and a part of the optimizer's state (ZeRO): what a lost rank had of that alone comes
  -- from snapshots in memory. With --elastic there are as many such replicas as ranks. Here ranks are lost every few
  -- seconds: one snapshot follows the other.
  snapshot = { memory_every = 1 },
  plan = het.plan { microbatch = 1, sharded_optimizer = true,
    het.pipeline { microbatches = opt.batch, het.stage { "here:0" } } },
}
