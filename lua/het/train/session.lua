--- A session trains a run by one plan, for as long as its cluster stays as it is. It has the plan's graphs, executors
-- and samplers. What outlives it is the run's: the state, the step and the cursor, which counts samples.
local native = require "het.native"
local average = require "het.train.average"
local chaos = require "het.train.chaos"
local define = require "het.language.define"
local digest = require "het.train.digest"
local errors = require "het.errors"
local evaluation = require "het.train.evaluation"
local fault = require "het.train.fault"
local graphs = require "het.train.graphs"
local ledger = require "het.train.ledger"
local packing = require "het.train.packing"
local peak = require "het.profile.peak"
local places = require "het.train.places"
local ranks = require "het.plan.ranks"
local record = require "het.train.record"
local reference = require "het.train.reference"
local saving = require "het.train.saving"
local snapshots = require "het.train.snapshots"
local text = require "het.text"
local together = require "het.train.together"
local trace = require "het.train.trace"
local validation = require "het.train.validation"

local Session = {}
Session.__index = Session

local session = {}

--- Rows of a sample: two of preferences.
function session.rows(a) return define.kind_of(a.data) == "corpus" and a.data.native.rows or 1 end

-- Types of a micro-batch's inputs and labels, { dtype, shape }; of several inputs by name.
local function batch_types(a, microbatch, context)
  if define.kind_of(a.data) == "pairs" then
    local function rows(kind) return { kind[1], { microbatch, unpack(kind[2]) } } end
    local inputs, labels = a.data:input_types(), a.data.arguments.labels
    labels = rows { labels.dtype, { unpack(labels.shape, 2) } }
    if inputs[1] then return rows(inputs), labels end
    local by_name = {}
    for name, kind in pairs(inputs) do by_name[name] = rows(kind) end
    return by_name, labels
  end
  local tokens = { "i32", { microbatch * session.rows(a), context } }
  return tokens, tokens
end

--- What het.train.graphs makes the graphs of a micro-batch of.
-- @tparam table a het.train's arguments
function session.spec(a, microbatch, context)
  local inputs, labels = batch_types(a, microbatch, context)
  return { model = a.model, loss = a.loss, reference = a.reference, inputs = inputs, labels = labels,
           precision = a.precision, seed = a.seed, optimizer = a.optimizer, samples = a.batch,
           average = average.of(a), ema = a.ema ~= nil, packed = packing.packs(a) }
end

local function program_of(self, made)
  return native.program(made.graph, { microbatches = self.microbatches, plan = self.plan, rank = self.run.place,
    runtime = self.run.arguments.runtime })
end

-- The executor of a program. Memory is checked by the engine before anything is allocated.
local function executor_of(self, program, made)
  local executor = native.executor(program, self.run.state, self.cluster)
  local share = program:share()
  self.own_microbatches, self.first_microbatch = share.microbatches, share.first_microbatch
  if made.positions then executor:write("positions", native.arange(made.positions, "i32")) end
  return executor
end

-- The shapes of the model's parameters by name.
local function shapes_of(parameters)
  local shapes = {}
  for _, parameter in ipairs(parameters) do
    if not reference.has(parameter.name) then shapes[parameter.name] = parameter.shape end
  end
  return shapes
end

-- A state that comes from snapshots: what goes with it counts where this run has done no step.
local function begin_after(run, restored)
  local about = snapshots.restored(run, restored)
  if run.has_state then return end
  record.require_alike(run, about, "the run of the snapshots")
  run.begun, run.called, run.followed = restored.step, restored.step, restored.step
  run.cursor, run.step = about.cursor, restored.step
  evaluation.restore(run, about)
  saving.learn_best(run)
  run.ledger = ledger.new(run.step, run.cursor, about.account)
  if not together.goes_on(run) then ledger.resume(run.ledger, about.account) end
end

-- What the executor's last run gave for the loss, and the figures beside it by name; nil where there are none.
local function read_loss(self, executor)
  local figures
  for _, name in ipairs(self.figures) do
    figures = figures or {}
    figures[name] = executor:number(graphs.output_of_figure(name))
  end
  return executor:number "loss", figures
end

-- Each machine has read what it finds of a save. All ranks call it.
local function require_same_step(run)
  local place = run.arguments.save or run.arguments.snapshot.folder
  together.require_same(run, ("step %d"):format(run.step), function(first, rank, theirs)
    return ("the ranks find different states to go on from: rank 0 that of %s, rank %d that of %s; %s is needed on "
      .. "each machine, in a folder that all share or as a copy"):format(first, rank, theirs, place)
  end)
end

-- What this rank's program of the training graph needs of the state, from the ranks that have it, else from snapshots.
-- A step that was decided and not finished is finished first: then its loss is known. Nothing happens where there is no
-- state anywhere.
local function take_state(self, graph, program, before)
  local run = self.run
  local step_before = run.step
  local broken_off = before and before.frozen and not before.closed
  local trainer = broken_off and before.trainer or nil
  snapshots.finish(run)
  local ok, restored, lost = pcall(native.restore, self.cluster, run.state, program, trainer, run.snapshots,
    { step_seconds = run.step_seconds, host = native.host(), bandwidth = (ranks.own_link(run) or {}).bandwidth })
  snapshots.say_warnings(run)
  if not ok then
    if select(2, errors.describe(restored)) ~= "environment" then error(restored, 0) end
    run.unrecoverable = true   -- here alone, as without memory: the others go on
    errors.raise("peer", "%s", (errors.describe(restored)))
  elseif lost then
    if run.resume and not run.has_state then require_same_step(run) end
    if not run.has_state and (run.step > 0 or not run.resume) then   -- from the last save, or from the start
      return snapshots.say_not_whole(run, lost)
    end
    run.unrecoverable = true
    if not run.has_state then
      together.call(run, places.require_states, run, graph)
      lost = lost .. "; where what lacks will not come back, --overwrite starts the run over"
    end
    together.give_up(run, lost)
  end
  if not restored then
    together.call(run, places.expect_none, run)
    return snapshots.say_none(run)
  end
  if not run.has_state and restored.step < run.step then   -- the last save has had more steps
    run.state:clear()
    run.state:set_step(run.step)
    return
  end
  self.restored = restored
  if restored.about then begin_after(run, restored) end
  run.cursor = run.cursor + (self.restored.step - run.step) * run.arguments.batch
  run.step = self.restored.step
  ledger.go_back(run.ledger, run.step)
  for step = ledger.last_step(run.ledger) + 1, run.step do   -- others have done them, or this rank just now
    local after = run.cursor - (run.step - step) * run.arguments.batch
    ledger.count(run.ledger, step, after - run.arguments.batch, after)
  end
  -- Every rank that was in the step has finished it: here, or in a generation that ended before it had a session.
  if broken_off and run.step > step_before then
    local figures
    run.loss, figures = read_loss(before, before.trainer)
    run.last_step = { step = run.step, loss = run.loss, lr = run.arguments.optimizer:rate(run.step,
      run.arguments.steps), gradient_norm = before.trainer:number "gradient_norm", seconds = 0, figures = figures }
  end
end

-- Parameters that the recipe gives values begin with these where the run has no state yet: each rank writes what it
-- makes, and its program takes its part. Returns their names.
local function write_given(run, given)
  local names, hashes = {}, {}
  for _, name in ipairs(run.has_state and {} or text.keys(given)) do
    if not run.initial[name] then
      local tensor = given[name]()
      hashes[#hashes + 1] = ("%s %s"):format(name, digest.hash_of(tensor))
      if not run.state:has(name) then
        run.state:write(name, tensor)
        names[#names + 1] = name
      end
    end
  end
  if not run.cluster or not next(given) then return names end
  local all = run.cluster:all_gather(table.concat(hashes, "\n"))
  for rank, theirs in ipairs(all) do
    if theirs ~= all[1] then
      errors.usage("rank %d begins with other values of parameters than rank 0: a function `init` has to return the "
        .. "same on all ranks, as het.randn does with a seed", rank - 1)
    end
  end
  return names
end

-- What no program of this rank has taken belongs to other ranks.
local function drop_unused(run, names)
  local unused = {}
  for _, name in ipairs(names) do unused[name] = true end
  for _, entry in ipairs(run.state:names()) do
    if unused[entry.name] and not entry.trained then run.state:drop(entry.name) end
  end
end

--- All that steps by the run's plan need. Nothing is computed yet. The state of a run that has one comes from the ranks
-- that have its parts; before that it is read from the run's initial tensors, else initialised.
-- @tparam[opt] table before the session that trained until now: it is closed once the state is settled
function session.new(run, before)
  local a = run.arguments
  local self = setmetatable({ run = run, cluster = run.cluster, plan = run.plan }, Session)
  ranks.follow_types(run)
  self.microbatch = self.plan and self.plan.microbatch or a.microbatch or a.batch
  self.microbatches = a.batch / self.microbatch
  self.rows = session.rows(a)
  local spec = session.spec(a, self.microbatch, run.context)
  local training = graphs.training(spec)
  if run.goes_on then record.require_states(run, training.graph) end
  self.has_counter, self.has_starts, self.figures = training.counter, training.starts, training.figures
  local parameters = training.graph:parameters()   -- whichever rank holds them
  self.shapes, self.parameters = shapes_of(parameters), graphs.elements_of(parameters)
  self.trained = training.trained
  self.beyond_megatron = self.plan and native.bytes_beyond_megatron(training.graph, self.plan)
  local program = program_of(self, training)
  if run.has_state and self.cluster or run.restores then take_state(self, training.graph, program, before) end
  run.restores = false
  if run.resume and not run.has_state then require_same_step(run) end
  local given = write_given(run, training.given)
  self.restored_at = native.clock()
  self.first_step = run.step   -- it begins after this one
  if before then before:close "the run goes on in another session" end
  self.trainer = executor_of(self, program, training)
  require("het.train.control").follow(run)
  self:say {}
  snapshots.follow(run, program)
  local sampled = { context = run.context, batch = a.batch, microbatch = self.microbatch, seed = a.seed,
    first = self.first_microbatch * self.microbatch, count = self.own_microbatches * self.microbatch }
  sampled.split, sampled.start = "train", run.cursor
  self.sampler = a.data:sampler(sampled)
  local held = validation.data(a)
  if a.evaluate.every > 0 and held then
    local made = graphs.evaluation(spec, training.averaged)
    self.evaluates_average, self.evaluates_counter = made.average_weight, made.counter
    self.evaluator = executor_of(self, program_of(self, made), made)
    sampled.split, sampled.start = "holdout", 0
    self.holdout = held:sampler(sampled)
  end
  drop_unused(run, given)
  run.state:clear_initial()   -- layers of other ranks
  run.has_state = true
  return self
end

-- Give an executor a batch.
local function write_batch(self, executor, batch)
  for i = 1, self.own_microbatches do
    for name, tensor in pairs(graphs.named_inputs(batch.inputs[i])) do executor:write(name, tensor, i) end
    executor:write("labels", batch.labels[i], i)
    if batch.starts and self.has_starts then executor:write("starts", batch.starts[i], i) end
  end
  executor:write("scale", native.tensor({ 1 / math.max(1, batch.count) }, "f32"))
end

-- Say where the batch of an executor stands, whose first sample is number `first`: in all that is drawn.
local function write_counter(self, executor, step, first)
  for i = 1, self.own_microbatches do
    local sample = first + (self.first_microbatch + i - 1) * self.microbatch
    executor:write("counter", native.tensor({ step, sample * self.rows }, "i64"), i)
  end
end

-- Add `share` times the sums of a batch's loss and figures, whose first sample is number `first`; false when
-- interrupted.
local function add_evaluated(self, sums, batch, share, first)
  write_batch(self, self.evaluator, batch)
  if self.evaluates_counter then write_counter(self, self.evaluator, 0, first) end
  if self.evaluates_average then self.evaluator:write("average_weight", average.weight(self.run)) end
  if not self.evaluator:run() then return false end
  local loss, figures = read_loss(self, self.evaluator)
  local weight = share * batch.count
  sums.loss, sums.count = sums.loss + loss * weight, sums.count + weight
  for name, figure in pairs(figures or {}) do
    sums.figures = sums.figures or {}
    sums.figures[name] = (sums.figures[name] or 0) + figure * weight
  end
  return true
end

--- The mean loss over the counted labels of the first batches of what is evaluated on, and the mean of the figures
-- beside it (nil where there are none); nil when interrupted. Batches without any counted label are not computed:
-- `count` is the same on all ranks. NaN, which is no lowest loss, where no label counts.
function Session:evaluate()
  if not self.evaluator then
    errors.usage("this run has nothing to evaluate on: its data holds nothing out, or evaluate.every is 0")
  end
  self.holdout:seek(0)
  local sums = { loss = 0, count = 0 }
  for i = 1, self.run.arguments.evaluate.batches do
    local batch, first = self.holdout:next(), (i - 1) * self.run.arguments.batch
    if batch.count > 0 then
      if not add_evaluated(self, sums, batch, 1, first) then return nil end
      local copies, share = batch.copies, -(batch.filled or 0) / self.run.arguments.batch
      if copies and copies.count > 0 and not add_evaluated(self, sums, copies, share, first) then return nil end
    end
  end
  for name, sum in pairs(sums.figures or {}) do sums.figures[name] = sum / sums.count end
  return sums.loss / sums.count, sums.figures
end

local function finite(value) return value == value and value < math.huge and value > -math.huge end

-- A loss or gradient that is not finite: say where it arose.
local function stop_non_finite(self, loss, norm)
  local where = self.trainer:find_non_finite()
  self.run.fails_together = true   -- on all ranks, which have the same loss
  local began_with_it = self.run.step == 0 and where:find("before the step", 1, true)
  errors.usage("step %d: the %s is %s%s; %s", self.run.step + 1,
    finite(loss) and "gradient" or "loss", finite(loss) and tostring(norm) or tostring(loss),
    where ~= "" and ": " .. where or "", began_with_it and "the run began with it"
    or "the weights are as they were before this step. A lower learning rate, a longer warm-up or clipping (clip = "
    .. "1.0) usually helps")
end

-- The rate of a step, and other numbers of the optimizer by the inputs that take them. Functions of the recipe that
-- fail at a step do so on all ranks.
local function numbers_of(self, step)
  local a = self.run.arguments
  local ok, rate, numbers = pcall(function()
    local all = {}
    for name, number in pairs(a.optimizer:numbers(step, a.steps)) do all["optimizer." .. name] = number end
    for i, lr in pairs(a.optimizer:rates(step, a.steps)) do all["lr." .. i] = lr end
    return a.optimizer:rate(step, a.steps), all
  end)
  if ok then return rate, numbers end
  self.run.fails_together = true
  self.sampler:seek(self.run.cursor)
  error(rate, 0)
end

--- The run's next step; returns { step, loss, lr, gradient_norm, seconds, figures }, or nil when interrupted.
function Session:train_step()
  local run, executor = self.run, self.trainer
  local a, step = run.arguments, run.step + 1
  local started, first_sample = native.clock(), self.sampler:cursor()
  write_batch(self, executor, self.sampler:next())
  local lr, numbers = numbers_of(self, step)
  executor:write("lr", lr)
  for name, number in pairs(numbers) do executor:write(name, number) end
  executor:write("step", step)
  if a.ema then executor:write("average_weight", average.weight_of_step(run, step)) end
  if self.has_counter then write_counter(self, executor, step, 0) end
  fault.in_step(executor, step)
  chaos.in_step(run, executor, step)
  if step == run.trace_step then
    trace.write(run, executor:timings(), native.settings.trace, run.say)
  elseif not executor:run() then
    self.sampler:seek(run.cursor)
    return nil
  end
  local loss, figures = read_loss(self, executor)
  local norm = executor:number "gradient_norm"
  if not finite(loss) or not finite(norm) then stop_non_finite(self, loss, norm) end
  run.step, run.loss, run.cursor = step, loss, self.sampler:cursor()
  ledger.count(run.ledger, step, first_sample, run.cursor)
  local seconds = native.clock() - started
  run.step_seconds = run.step_seconds and 0.9 * run.step_seconds + 0.1 * seconds or seconds
  return { step = step, loss = loss, lr = lr, gradient_norm = norm, seconds = seconds, figures = figures }
end

--- What this rank says to the others in the steps that follow, beside what it always does.
-- @tparam table words `stop`
function Session:say(words)
  local run = self.run
  local writes = run.snapshotting or {}
  words.member, words.notices, words.control = run.member, run.notices, run.control
  words.memory, words.disk = writes.memory, writes.disk
  words.not_begun, words.disk_not_begun = run.snapshot_failed and true, run.disk_failed and true
  self.trainer:say(words)
end

--- Whether this rank, or with several any of them, shall stop behind the step that was just done.
-- @bool own this rank shall; of several ranks the others learn of it in the next step
function Session:asked_to_stop(own)
  if not self.cluster or self.cluster:size() == 1 then return native.interrupted() or own end
  if own then self:say { stop = true } end
  return self.trainer:asked_to_stop()
end

--- Whether the ranks shall end this session behind the step that was just done: others wait to join.
function Session:asked_to_change() return self.run.member ~= nil and self.trainer:asked_to_change() end

--- Bytes at most: what the programs of this rank take of a GPU; elsewhere what the process took of the machine.
function Session:peak_memory()
  if not peak.is_gpu(self.run.device) then return native.memory_peak() end
  local total = self.trainer:memory().total
  if self.evaluator then
    local memory = self.evaluator:memory()
    total = total + memory.total - memory.state   -- the state is shared
  end
  return total
end

--- Ends a step that the loss of a rank has broken off; what it takes to finish it is kept until the next session has
-- begun.
function Session:freeze()
  if self.frozen then return end
  self.frozen = true
  self.trainer:freeze()
  if self.evaluator then self.evaluator:freeze() end
end

--- Gives back the memory, kernels and groups of its executors and the threads of its samplers, now. The state stays.
function Session:close(why)
  self.closed = true
  self.trainer:close(why)
  self.sampler:close()
  if self.evaluator then
    self.evaluator:close(why)
    self.holdout:close()
  end
end

return session
