--- `het.train`: what to train, on what, how. It returns a run; `hetrun` starts it, at the prompt `run:start()` does.
local native = require "het.native"
local access = require "het.access"
local define = require "het.define"
local digest = require "het.train.digest"
local errors = require "het.errors"
local files = require "het.files"
local generate = require "het.generate"
local handle = require "het.handle"
local graphs = require "het.train.graphs"
local peak = require "het.peak"
local plan = require "het.plan"
local progress = require "het.train.progress"
local saving = require "het.train.saving"
local suggest = require "het.suggest"
local text = require "het.text"
local trace = require "het.train.trace"

local Run = {}
Run.__index = Run

Run.__tostring = function(self)
  local a = self.arguments
  return ("%s\n%s\n%s, %d steps of %d samples, %s"):format(tostring(a.model), tostring(a.data), tostring(a.optimizer),
    a.steps, a.batch, a.precision)
end

local function is_model(value) return define.kind_of(value) == "layer" end

-- Has the planner begin, in a thread of its own, to look for the plan that a het.plan.auto asks for. Returns a function
-- that waits for what it answers.
local function begin_plan(self, wanted, ranks)
  if wanted.profile then access.check(wanted.profile) end
  local wait = require("het.planning").begin(self, wanted.cluster or require("het.cluster").here(ranks), wanted)
  return function()
    local answer = wait()
    if not answer.feasible then errors.usage("no plan fits:\n  %s", table.concat(answer.problems, "\n  ")) end
    return answer
  end
end

-- The plan of an answer, logged by the first rank.
local function take_plan(self, written, answer)
  local found, fallbacks = require("het.planning").from_lua(written)
  self.plan, self.fallbacks = plan.resolve(found, self.arguments.batch), fallbacks
  if answer and not native.settings.quiet and (not self.cluster or self.cluster:rank() == 0) then
    native.write("stderr", require("het.planning").text_of(answer))
  end
end

-- A plan for several devices needs as many ranks; ranks without a plan are replicas that share the batch evenly.
local function settle_plan(self)
  local a, ranks = self.arguments, self.cluster and self.cluster:size() or 1
  if self.plan then
    local devices = #plan.devices(self.plan)
    if devices ~= ranks then
      errors.usage("the plan is for %d devices, %s; start the recipe with --workers %d", devices,
        ranks == 1 and "this process is alone" or ("%d ranks are here"):format(ranks), devices)
    end
  elseif ranks > 1 then
    self.plan = plan.replicas(ranks, a.batch, a.microbatch)
  end
end

-- Where ranks meet, as the command line says. A recipe's own wish counts where the person agreed to it.
local function rendezvous_of(a)
  local settings, wish = native.settings or {}, a.rendezvous
  if settings.rendezvous or not wish then return settings.rendezvous end
  local agreed = settings.trust or not native.confined() or wish == settings.approved_rendezvous
  if agreed or native.is_alone() or os.getenv "HETRUN_RENDEZVOUS" then return agreed and wish or nil end
  errors.usage("the recipe asks to meet other machines at %s; a recipe talks only to whom the command line names: "
    .. "--rendezvous=%s", wish, wish)
end

-- Has the first rank look at what it alone can see. What it raises, all ranks raise.
local function by_first_rank(self, check, ...)
  if not self.cluster then return check(self, ...) end
  local ok, problem = true, nil
  if self.rank == 0 then ok, problem = pcall(check, self, ...) end
  local message, kind = "", ""
  if not ok then message, kind = errors.describe(problem) end
  local first = self.cluster:tell(kind .. ":" .. message)[1]
  if not ok then error(problem, 0) end
  kind, message = first:match "^(%a*):(.*)$"
  if kind ~= "" then errors.raise(kind, "%s", message) end
end

-- What will be written, looked at before anything is computed: by the rank that writes it.
local function check_places(self)
  local a, settings = self.arguments, native.settings or {}
  if a.save then
    if native.path_kind(a.save) == "file" then
      errors.usage("cannot save in %s: it is a file; save = names a folder", a.save)
    end
    access.check(a.save, true)
    native.try_folder(a.save)
    local there = files.held(a.save)
    if there and there.foreign and self.overwrite then
      errors.usage("%s holds %s, which a save would leave beside its own files; another folder for `save` works",
        a.save, there.foreign)
    elseif there and there.model and not there.training and self.resume then
      errors.usage("%s holds a model but nothing to go on from (no training.safetensors); from = %q begins with its "
        .. "weights", a.save, a.save)
    end
    local held = not self.resume and not self.overwrite and saving.is_of_others(self, a.save) and there
    if held and a.overwrite then
      errors.usage("%s holds %s; the recipe asks to replace it, and --overwrite lets it; another folder for `save` "
        .. "keeps both", a.save, files.describe_held(held))
    elseif held then
      errors.usage("%s holds %s; %s, --overwrite replaces it, another folder for `save` keeps both",
        a.save, files.describe_held(held), held.training and "--resume (resume = true) goes on with it"
        or ("from = %q begins with its weights"):format(a.save))
    end
  elseif self.resume then
    errors.usage("--resume needs the folder to go on from: this run has no `save`")
  end
  local folder = settings.trace and settings.trace:match("^(.*)/[^/]*$")
  if folder and folder ~= "" and native.path_kind(folder) ~= "folder" then
    errors.usage("there is no folder %s for --trace=%s", folder, settings.trace)
  end
end

-- The other ranks of the run, when there are any. Returns a function that gives the run the plan that all of them
-- follow: until it is called, one that the planner looks for is looked for beside what else the start takes.
local function join(self)
  local a, settings = self.arguments, native.settings or {}
  local automatic = a.plan and a.plan.automatic
  local answer, begun
  if native.is_alone() then check_places(self) end   -- before a planner begins
  -- With a cluster that is written down every rank finds the same plan; of this machine the first one's counts.
  if automatic and automatic.cluster then
    begun = begin_plan(self, automatic)
  elseif not automatic then
    self.plan = plan.resolve(a.plan, a.batch)
  end
  if a.pace and begun then   -- whose links the ranks join by
    answer = begun()
    self.plan = plan.resolve(require("het.planning").from_lua(answer.lua), a.batch)
  end
  self.pace = a.pace and native.pace(a.pace, plan.devices(self.plan or errors.usage("train.pace needs a plan")))
  self.cluster = native.join {
    rendezvous = rendezvous_of(a), interface = settings.interface, run = a.name,
    secret_file = settings.secret_file, timeout = settings.timeout, warn_after = settings.warn_after,
    links = self.pace and self.pace.links,
    recipe = digest.of_recipe(a), data = digest.of_data(a.data),
    device = self.device, memory = native.device(self.device):available_bytes(),
  }
  self.rank = self.cluster and self.cluster:rank() or 0
  if self.cluster then by_first_rank(self, check_places) end
  if not automatic then
    settle_plan(self)
    return function() end
  end
  local told = not automatic.cluster and self.cluster   -- by the first rank
  if not begun and self.rank == 0 then
    begun = begin_plan(self, automatic, self.cluster and self.cluster:size() or 1)
  end
  return function()
    if begun then answer = answer or begun() end
    local written = answer and require("het.planning").to_lua(answer) or ""
    if told then written = self.cluster:tell(written)[1] end
    take_plan(self, written, answer)
    settle_plan(self)
  end
end

-- Where this rank computes.
local function device_of(self)
  return native.device(self.device, self.pace and self.pace.devices[self.rank + 1])
end

-- Types of a micro-batch's inputs and labels, { dtype, shape }.
local function batch_types(self)
  local a = self.arguments
  if define.kind_of(a.data) == "pairs" then
    local function rows(tensor)
      local shape = { unpack(tensor.shape) }
      shape[1] = self.microbatch
      return { tensor.dtype, shape }
    end
    return rows(a.data.arguments.inputs), rows(a.data.arguments.labels)
  end
  local tokens = { "i32", { self.microbatch, self.context } }
  return tokens, tokens
end

local function spec_of(self)
  local a = self.arguments
  local inputs, labels = batch_types(self)
  return { model = a.model, loss = a.loss, inputs = inputs, labels = labels, precision = a.precision, seed = a.seed,
           optimizer = a.optimizer }
end

-- A program with its executor. Memory is checked by the engine before anything is allocated.
local function executor_of(self, made)
  local program = native.program(made.graph, { microbatches = self.microbatches, plan = self.plan, rank = self.rank })
  local executor = native.executor(program, self.state, self.cluster)
  local share = program:share()
  self.own_microbatches, self.first_microbatch = share.microbatches, share.first_microbatch
  if made.positions then executor:write("positions", native.arange(self.context, "i32")) end
  return executor
end

-- Weights to begin with, and where an earlier run stopped. Tensors are read when programs ask for them.
local function restore(self)
  local a = self.arguments
  local about
  if self.resume then
    about = files.offer_training(a.save, self.state)
    if about then
      local metadata = files.offer_weights(a.save, a.model, self.state)
      if tonumber(metadata.step) ~= about.step then
        errors.usage("%s: the model is of step %s, its training state of step %d; they were not saved together",
          a.save, tostring(metadata.step), about.step)
      end
      local known, now = files.vocabulary(a.save), a.data:vocabulary()
      if known and now and native.json_encode(known) ~= native.json_encode(now) then
        errors.usage("%s was begun with another vocabulary than this text's; go on with the same text, or give the "
          .. "data that of the model: vocabulary = \"%s\"", a.save, a.save)
      end
      if about.seed ~= a.seed or about.precision ~= a.precision then
        errors.usage("%s was begun with seed = %s and precision = %s, this run has seed = %s and precision = %s; go on "
          .. "with the same", a.save, about.seed, about.precision, a.seed, a.precision)
      end
      return about
    end
  end
  local folder = a.from or rawget(a.model, "folder")
  if folder then files.offer_weights(folder, a.model, self.state) end
  return nil
end

-- Elements of all parameters of a graph, whichever rank holds them.
local function count_parameters(graph)
  local total = 0
  for _, parameter in ipairs(graph:parameters()) do
    local elements = 1
    for _, size in ipairs(parameter.shape) do elements = elements * size end
    total = total + elements
  end
  return total
end

--- The training graph of a micro-batch of `samples` (1): what planners count.
function Run:graph_of_sample(samples)
  local a = self.arguments
  local context = a.context or (is_model(a.model) and a.model.arguments.context) or 1
  return graphs.training(spec_of { arguments = a, microbatch = samples or 1, context = context }).graph, context
end

local build

--- Build everything a run needs: graphs, state, executors, samplers. Nothing has been computed yet.
function Run:prepare()
  if self.prepared then return end
  if self.preparing then errors.usage("the run is being prepared; this function of the recipe is part of that") end
  self.preparing = true
  local ok, problem = pcall(build, self)
  self.preparing, self.prepared = false, ok
  if not ok then error(problem, 0) end
end

function build(self)
  local a = self.arguments
  self.device = native.settings and native.settings.device or "cpu"
  local settings = native.settings or {}
  -- What the command line says counts; a stranger's recipe replaces models that the person lets it replace.
  self.resume = settings.resume or a.resume and not settings.overwrite
  self.overwrite = settings.overwrite or a.overwrite and not settings.resume and not native.confined()
  self.wrote = {}   -- het.train.saving
  local finish_planning = join(self)
  self.own_device = device_of(self)
  self.state = native.state(self.own_device, a.seed)
  local about = restore(self)
  if about then saving.mark_own(self, a.save) end
  about = about or {}
  finish_planning()
  self.microbatch = self.plan and self.plan.microbatch or a.microbatch or a.batch
  self.microbatches = a.batch / self.microbatch
  self.context = a.context or (is_model(a.model) and a.model.arguments.context) or 1
  local training = graphs.training(spec_of(self))
  self.has_counter = training.counter
  self.parameters = count_parameters(training.graph)
  self.step, self.best, self.validation = about.step or 0, about.best, about.validation
  self.beyond_megatron = self.plan and native.bytes_beyond_megatron(training.graph, self.plan)
  self.train_executor = executor_of(self, training)
  local sampled = { context = self.context, batch = a.batch, microbatch = self.microbatch, seed = a.seed,
    first = self.first_microbatch * self.microbatch, count = self.own_microbatches * self.microbatch }
  self.cursor = about.cursor or self.step * a.batch   -- samples that the steps done have seen
  sampled.split, sampled.start = "train", self.cursor
  self.sampler = a.data:sampler(sampled)
  if a.evaluate.every > 0 and a.data:has_holdout() then
    self.evaluate_executor = executor_of(self, graphs.evaluation(spec_of(self)))
    sampled.split, sampled.start = "holdout", 0
    self.holdout = a.data:sampler(sampled)
  end
  self.state:drop_offers()   -- layers of other ranks
end

-- Give an executor a batch.
local function write_batch(self, executor, batch)
  for i = 1, self.own_microbatches do
    executor:write("inputs", batch.inputs[i], i)
    executor:write("labels", batch.labels[i], i)
  end
  executor:write("scale", native.tensor({ 1 / math.max(1, batch.count) }, "f32"))
end

--- The mean loss over the holdout's first batches; nil when interrupted.
function Run:evaluate()
  self:prepare()
  if not self.evaluate_executor then
    errors.usage("this run has nothing to evaluate on: its data holds nothing out, or evaluate.every is 0")
  end
  self.holdout:seek(0)
  local total, batches = 0, self.arguments.evaluate.batches
  for _ = 1, batches do
    write_batch(self, self.evaluate_executor, self.holdout:next())
    if not self.evaluate_executor:run() then return nil end
    total = total + self.evaluate_executor:number("loss")
  end
  return total / batches
end

local function finite(value) return value == value and value < math.huge and value > -math.huge end

-- A loss or gradient that is not finite: say where it arose.
local function stop_non_finite(self, loss, norm)
  local where = self.train_executor:find_non_finite()
  errors.usage("step %d: the %s is %s%s; the weights are as they were before this step. A lower learning rate, a "
    .. "longer warm-up or clipping (clip = 1.0) usually helps", self.step + 1, finite(loss) and "gradient" or "loss",
    finite(loss) and tostring(norm) or tostring(loss), where ~= "" and ": " .. where or "")
end

--- One step of training; returns { step, loss, lr, gradient_norm, seconds }, or nil when interrupted.
function Run:train_step()
  self:prepare()
  local a, executor = self.arguments, self.train_executor
  local step = self.step + 1
  local started = native.clock()
  write_batch(self, executor, self.sampler:next())
  local lr = a.optimizer:rate(step, a.steps)
  executor:write("lr", lr)
  executor:write("step", step)
  if self.has_counter then
    for i = 1, self.own_microbatches do
      local sample = (self.first_microbatch + i - 1) * self.microbatch
      executor:write("counter", native.tensor({ step, sample }, "i64"), i)
    end
  end
  if step == self.trace_step then
    trace.write(self, executor:timings(), native.settings.trace, self.say)
  elseif not executor:run() then
    self.sampler:seek(self.cursor)
    return nil
  end
  local loss, norm = executor:number("loss"), executor:number("gradient_norm")
  if not finite(loss) or not finite(norm) then stop_non_finite(self, loss, norm) end
  self.step, self.loss, self.cursor = step, loss, self.sampler:cursor()
  return { step = step, loss = loss, lr = lr, gradient_norm = norm, seconds = native.clock() - started }
end

--- The whole state of the run on rank 0, wherever its parts are; nil on other ranks. All ranks call it at the same
-- place.
function Run:gather()
  self:prepare()
  if not self.cluster then return self.state end
  return self.cluster:gather(self.state)
end

local save_fields = { overwrite = true }

--- Save the model, its vocabulary and what is needed to go on exactly. Of several ranks the first writes; all call it.
-- A model that this run has not written is not replaced.
-- @string[opt] folder default: the recipe's `save`
-- @tparam[opt] table options `overwrite = true`: replace any model
function Run:save(folder, options)
  local a = self.arguments
  folder = folder or a.save
  if type(folder) ~= "string" then
    errors.usage('run:save: give a folder, as in run:save "runs/mine"%s', folder and "; it was given "
      .. text.value(folder) or ' (or het.train { save = "runs/mine" })')
  end
  for name in pairs(type(options) == "table" and options or { [options or "overwrite"] = true }) do
    if not save_fields[name] then
      errors.usage("run:save: %s is not an option; there is { overwrite = true }", text.value(name))
    end
  end
  self:prepare()
  by_first_rank(self, saving.check, folder, options and options.overwrite)
  saving.now(self, folder)
end

-- Write what follows a prompt, with checked options: emit(piece) gets it as it comes. Returns it on the first rank.
local function write_text(self, options, emit)
  local a = self.arguments
  if define.kind_of(a.data) ~= "corpus" then errors.usage("only runs on text can generate text") end
  self:prepare()
  local state = self:gather()
  if not state then return nil end
  if not self.generator or self.cluster then
    self.generator = generate.new { model = a.model, state = state, precision = a.precision }
  end
  return self.generator:text(a.data, options, emit)
end

--- Write text with the model as it is now. Of several ranks the first writes; all call it.
-- @tparam table options `prompt`, `tokens`, `context`, `temperature`, `top_k`, `top_p`, `seed`
-- @tparam[opt] function emit called with pieces of what follows the prompt as they come
-- @treturn ?string prompt and what follows; nil on other ranks than the first
function Run:generate(options, emit)
  local a = generate.arguments(options)
  local followed = write_text(self, a, emit)
  return followed and (a.prompt or generate.default_prompt(self.arguments.data)) .. followed
end

-- What a recipe's `sample` asks for, written as it comes: it is a result, printed also when quiet. Where the last line
-- is JSON, the whole text is its `sample`, and only who follows the run sees it come. Returns the text on rank 0.
local function print_sample(self)
  local sample = self.arguments.sample
  if not sample then return nil end
  if self.rank > 0 then
    write_text(self, sample)
    return nil
  end
  local settings, pieces = native.settings, {}
  local out = not settings.json and "stdout" or not settings.quiet and "stderr" or nil
  local options = setmetatable({ prompt = sample.prompt or generate.default_prompt(self.arguments.data) },
    { __index = sample })
  local function emit(piece)
    pieces[#pieces + 1] = piece
    if out then native.write(out, piece) end
  end
  emit(options.prompt)
  local ok, problem = pcall(write_text, self, options, emit)
  if out then native.write(out, "\n") end
  if not ok and select(2, errors.describe(problem)) ~= "interrupted" then error(problem, 0) end
  return table.concat(pieces)
end

-- What each rank did in a step, on average: the first says it and keeps it. All ranks call it at the same place.
local function tell_ranks(self, reporter)
  local used = self.train_executor:usage()
  if not self.cluster or used.runs == 0 then return nil end
  local own = { rank = self.rank, device = plan.devices(self.plan)[self.rank + 1],
    computed_s = (used.seconds - used.waited) / used.runs,
    waited_s = used.waited / used.runs, bubble_s = used.bubble / used.runs,
    bubble_share = used.seconds > 0 and used.bubble / used.seconds or 0, sent_bytes = used.sent_bytes / used.runs,
    memory_bytes = self.train_executor:memory().total, restored_bytes = self.state:bytes_taken(),
    behind_s = self.own_device:pace_lost(), ways = self.cluster:ways() }
  local told = self.cluster:tell(native.json_encode(own))
  if self.rank > 0 then return nil end
  local ranks, slowest = {}, 1
  for i, words in ipairs(told) do
    ranks[i] = native.json_decode(words)
    if ranks[i].computed_s > ranks[slowest].computed_s then slowest = i end
  end
  for i, rank in ipairs(ranks) do
    local sentence = "rank %d: a step computes %s and waits %s (%.0f %%; bubbles %.0f %%), hands %s to others, "
      .. "takes %s of memory%s"
    reporter:say(sentence:format(
      rank.rank, native.show_seconds(rank.computed_s), native.show_seconds(rank.waited_s),
      100 * rank.waited_s / (rank.computed_s + rank.waited_s), 100 * rank.bubble_share, text.bytes(rank.sent_bytes),
      text.bytes(rank.memory_bytes), i == slowest and ("; it computes longest (%s)"):format(rank.device) or ""))
    if rank.behind_s > 0 then
      reporter:say(("rank %d fell %s behind the pace of its device: this machine is slower than that"):format(rank.rank,
        native.show_seconds(rank.behind_s)))
    end
  end
  local said = {}
  for _, rank in ipairs(ranks) do
    for _, way in ipairs(rank.ways) do
      if not said[way] then reporter:say(way) end
      said[way] = true
    end
  end
  return ranks
end

--- Bytes at most: what the programs of this rank take of a GPU; elsewhere what the process took of the machine.
function Run:peak_memory()
  if not peak.is_gpu(self.device) then return native.memory_peak() end
  local total = self.train_executor:memory().total
  if self.evaluate_executor then
    local memory = self.evaluate_executor:memory()
    total = total + memory.total - memory.state   -- the state is shared
  end
  return total
end

-- The numbers of a finished run.
local function results_of(self, reporter, started)
  local done = self.step - self.first_step
  local steps_per_s = done > 0 and done / reporter.train_seconds or nil   -- what was not measured is not there
  local tokens = steps_per_s and steps_per_s * self.tokens_per_step
  return {
    steps = self.step, train_loss = self.loss, validation_loss = self.validation, best_validation_loss = self.best,
    seconds = native.clock() - started, tokens_per_s = tokens,
    samples_per_s = steps_per_s and steps_per_s * self.arguments.batch, mfu = tokens and reporter:mfu(tokens),
    peak_memory_bytes = self:peak_memory(), parameters = self.parameters, precision = self.arguments.precision,
  }
end

local function introduce(self, reporter)
  local a = self.arguments
  local batch = self.unit == "samples" and ("%d samples"):format(a.batch)
    or ("%d x %d tokens"):format(a.batch, self.context)
  reporter:say(("%s parameters, %s, %d steps of %s, %s memory"):format(text.count(self.parameters),
    a.precision, a.steps, batch, text.bytes(self.train_executor:memory().total)))
  local skipped = define.kind_of(a.data) == "corpus" and a.data.native.skipped or 0
  if skipped > 0 then
    reporter:say(("files of %s: %d read, %d skipped (binary, links, or beyond `limit`)"):format(
      a.data.arguments.path, a.data.native.files, skipped))
  end
  if self.plan then reporter:say(tostring(self.plan)) end
  if self.beyond_megatron then
    reporter:say(("layers are cut as `sharding` and `shard` say: devices that share layers send each other %s %s in a "
      .. "step than Megatron's way would take"):format(text.bytes(math.abs(self.beyond_megatron)),
      self.beyond_megatron < 0 and "less" or "more"))
  end
  if self.step >= a.steps then
    reporter:say(("%d steps were done before: none is left of %d; a greater `steps` goes on"):format(self.step,
      a.steps))
  elseif self.step > 0 then
    reporter:say(("going on after step %d"):format(self.step))
  elseif self.resume then
    reporter:say(("nothing is saved in %s yet: this run begins at step 1"):format(a.save))
  end
  local held = self.overwrite and a.save and self.rank == 0 and saving.held_by_others(self, a.save)
  if held then
    reporter:say(("%s holds %s, which is kept until this run is saved"):format(a.save, files.describe_held(held)))
  end
end

--- Whether this rank, or with several any of them, shall stop here.
function Run:asked_to_stop(stopped)
  local asked = native.interrupted() or stopped
  if self.cluster then return self.cluster:any(asked) end
  return asked
end

-- Call a function of the recipe; whether an interrupt ended it.
local function is_interrupted_in(callback, ...)
  local ok, problem = pcall(callback, ...)
  if not ok and select(2, errors.describe(problem)) ~= "interrupted" then error(problem, 0) end
  return not ok
end

-- Steps and evaluations until the end, or until Ctrl-C or SIGTERM; returns whether it was interrupted.
local function train(self, reporter)
  local a = self.arguments
  if self:asked_to_stop() then return true end   -- it came before the first step
  local stopped = false   -- this rank was interrupted in on_step
  while self.step < a.steps do
    local step = self:train_step()
    if self:asked_to_stop(stopped or not step) then return true end
    reporter:step(step)
    if a.on_step and is_interrupted_in(a.on_step, handle.of(self), handle.export(step)) then
      if not self.cluster then return true end
      stopped = true   -- others may be in the next step, which they end with this rank alone
    end
    if self.evaluate_executor and (step.step % a.evaluate.every == 0 or step.step == a.steps) then
      local loss = self:evaluate()
      if not loss then return true end
      reporter:evaluated(step.step, loss)
      self.validation, self.best = loss, math.min(self.best or math.huge, loss)
    end
    saving.go_on(self)
    local due = a.save and a.save_every > 0 and step.step % a.save_every == 0
    -- The last step is saved when all is done.
    if due and step.step < a.steps then saving.beside_steps(self) end
  end
  return self.cluster and a.on_step and self:asked_to_stop(stopped) or false
end

-- Measure the peak that the reporter's utilisation is a share of. Returns the seconds it took, which are no part of the
-- run. Where it cannot be measured, as beside a model that fills the memory, none is reported.
local function measure_peak(reporter, device, dtype)
  local before = native.clock()
  local ok, flops = pcall(peak.measure, device, dtype)
  if ok then reporter.peak = math.max(reporter.peak or 0, flops) end
  return native.clock() - before
end

local function start(self)
  local started = native.clock()
  local a, settings = self.arguments, native.settings
  self:prepare()
  self.first_step = self.step
  self.unit = define.kind_of(a.data) == "pairs" and "samples" or "tokens"
  self.tokens_per_step = self.unit == "samples" and a.batch or a.batch * self.context
  local peak_device = peak.device_of(self.device)
  local with_peak = is_model(a.model) and not self.cluster   -- ranks on one machine share its peak
  if a.metrics and self.rank == 0 then access.check(a.metrics, true) end
  local metrics = a.metrics or (settings.metrics ~= "" and settings.metrics) or nil
  local reporter = progress.new {
    steps = a.steps, first = self.step, tokens_per_step = self.tokens_per_step, unit = self.unit,
    quiet = settings.quiet or self.rank > 0, memory = function() return self:peak_memory() end,
    flops_per_token = is_model(a.model) and a.model:training_flops(self.context) or 0,
    peak = with_peak and peak.known(peak_device, a.precision) or nil,
    metrics = self.rank == 0 and metrics or nil, best = self.best, every = math.max(1, math.floor(a.steps / 20)),
  }
  introduce(self, reporter)
  if with_peak and not reporter.peak then
    reporter:say("measuring this machine's peak, once")
    started = started + measure_peak(reporter, peak_device, a.precision)
  end
  native.run_trains(true)
  if settings.trace ~= "" then
    self.trace_step = math.min(self.first_step + 3, a.steps)   -- the first ones are not typical
    self.say = function(sentence) reporter:say(sentence) end
  end
  local ok, interrupted = pcall(train, self, reporter)
  if not ok and not self.cluster and select(2, errors.describe(interrupted)) == "interrupted" then
    ok, interrupted = true, true
  end
  if not ok then
    local saved, why = pcall(saving.go_on, self, true)   -- what was begun before
    if not saved then reporter:say("the last save was not written: " .. errors.describe(why)) end
    saving.keep_failed(self, reporter, interrupted)
    error(interrupted, 0)
  end
  reporter:finish()
  if interrupted then native.interrupted() end
  if a.save and self.step > self.first_step then
    saving.go_on(self, true)
    local folder, kept = saving.folder_of_end(self, interrupted)
    saving.now(self, folder)
    saving.say(self, reporter, interrupted and "stopped and saved" or "saved", folder, kept)
  elseif interrupted then
    reporter:say(("stopped after step %d; give save = \"folder\" to keep what was learned"):format(self.step))
  end
  if with_peak and not interrupted and peak.due(peak_device, a.precision, reporter.peak or 0) then
    started = started + measure_peak(reporter, peak_device, a.precision)
  end
  local results = results_of(self, reporter, started)
  results.interrupted = interrupted
  results.ranks = tell_ranks(self, reporter)
  self.results = results
  if not interrupted then
    results.sample = print_sample(self)
    if a.after and is_interrupted_in(a.after, handle.of(self)) then results.interrupted = true end
  end
  if self.cluster then self.cluster:leave() end
  native.run_trains(false)
  return results
end

--- Train. Returns the run's numbers: steps, train_loss, validation_loss, best_validation_loss, seconds, tokens_per_s,
-- samples_per_s, mfu, peak_memory_bytes, sample (the text), interrupted. A row of data.pairs counts as one token.
function Run:start()
  -- A function of the recipe may call run:start(), also from another coroutine.
  if self.training then errors.usage("the run is training already; run:start() cannot be called from within") end
  self.training = true
  local ok, results = pcall(start, self)
  self.training = false
  if not ok then error(results, 0) end
  return results
end

-- Methods that check for recipes what the library does right.
local recipe_methods = {
  generate = function(self, options, emit)
    if emit ~= nil then define.expect("run:generate: the second argument", emit, "function") end
    return self:generate(options, emit)
  end,
  graph_of_sample = function(self, samples)
    if samples ~= nil and define.expect("run:graph_of_sample", samples, "integer") < 1 then
      errors.usage("run:graph_of_sample: %.14g samples are asked for; 1 is the least", samples)
    end
    return (self:graph_of_sample(samples))
  end,
  peak_memory = function(self)
    self:prepare()
    return self:peak_memory()
  end,
  asked_to_stop = function(self)
    self:prepare()
    return self:asked_to_stop()
  end,
}

define.object {
  name = "run",
  sentence = "What het.train returns: a model that can be trained, saved and asked for text.",
  members = {
    { "start", "run:start()", "Train. Returns the run's numbers as a table: steps, train_loss, validation_loss, "
      .. "best_validation_loss, seconds, tokens_per_s, samples_per_s, mfu, peak_memory_bytes, sample, interrupted.",
      example = "print(run:start().validation_loss)" },
    { "generate", "run:generate { ... }", "A prompt and the text that follows it, by the weights as they are now. A "
      .. "second argument is a function that gets pieces of what follows as they come.",
      fields = generate.fields, example = 'run:generate { prompt = "ROMEO:", tokens = 100 }' },
    { "save", "run:save([folder[, { overwrite = true }]])", "Save the model, its vocabulary and what is needed to go "
      .. "on exactly (default: the recipe's `save`). With overwrite it may replace a model that this run has not "
      .. "written. Of several ranks the first writes; all call it.", example = 'run:save "runs/shakespeare"',
      how = 'save "folder"' },
    { "arguments", "run.arguments", "What het.train was given, with defaults: run.arguments.steps. Nothing can be "
      .. "set." },
    { "step", "run.step", "Steps done, of a run that was prepared." },
    { "loss", "run.loss", "The loss of the last step." },
    { "validation", "run.validation", "The loss of the last evaluation." },
    { "best", "run.best", "The lowest loss of an evaluation." },
    { "rank", "run.rank", "Which rank of the run this process is, from 0, of a run that was prepared." },
    { "plan", "run.plan", "The het.plan that the ranks follow, of a run that was prepared; nil without one." },
    { "results", "run.results", "What run:start() returned, of a run that has ended." },
    { "fallbacks", "run.fallbacks", "Of a run with plan = het.plan.auto { fallbacks = n }: a list of { lost =, plan = "
      .. "} or { lost =, problems = }, planned ahead." },
    { "evaluate", "run:evaluate()", "The mean loss over the first batches of the holdout, of a run that has begun." },
    { "prepare", "run:prepare()", "Build everything that training needs, and compute nothing yet. start and generate "
      .. "call it." },
    { "train_step", "run:train_step()", "One step, of a run that was prepared: { step, loss, lr, gradient_norm, "
      .. "seconds }, or nil when interrupted." },
    { "gather", "run:gather()", "The weights and optimizer state on rank 0, wherever their parts are; nil on other "
      .. "ranks. All ranks call it." },
    { "graph_of_sample", "run:graph_of_sample([samples])", "The training graph of a micro-batch (default: of one "
      .. "sample), as planners count it; print it to read it." },
    { "peak_memory", "run:peak_memory()", "Bytes taken at most, of the GPU or by this process." },
    { "asked_to_stop", "run:asked_to_stop()", "Whether Ctrl-C or SIGTERM was seen, by this rank or any other. All "
      .. "ranks call it." },
  },
  classes = { Run }, methods = recipe_methods,
}

define.object {
  name = "weights", kind = "state", sentence = "Weights and optimizer state of a run, as run:gather() returns them.",
  members = {
    { "names", "weights:names()", "What there is: a list of { name, dtype, shape, trained }." },
    { "read", "weights:read(name)", "A copy of one as a tensor.", example = 'run:gather():read "tokens.weight"' },
  },
  classes = { "state" }, show = function() return "weights and optimizer state" end,
  methods = {
    names = function(state) return state:names() end,
    read = function(state, name) return state:read(define.expect("weights:read", name, "string")):clone() end,
  },
}

-- A graph prints, and that is all: its builder could make a program of it that no check foresaw.
handle.class({ kind = "graph" }, "graph")

-- Of a step: sizes that are computed from it have to stay countable.
local most_tokens = 2 ^ 40

local function check(a, report)
  if a.batch % (a.microbatch or a.batch) ~= 0 then
    report("microbatch", ("train.microbatch = %d does not divide batch = %d; nearest that do: %s"):format(
      a.microbatch, a.batch, suggest.divisors(a.batch, a.microbatch)))
  end
  local corpus = define.kind_of(a.data) == "corpus"
  local context = a.context or (is_model(a.model) and a.model.arguments.context)
  if corpus and not context then
    report(nil, "train needs 'context': this model does not say how many tokens it sees at once")
  end
  local share = corpus and a.data.objective == "masked" and a.data.arguments.mask_share
  if share and context and share * a.batch * context < 1 then
    report("data", ("data.masked.mask_share = %s hides less than one of the %d tokens of a step; %.2g and more work")
      :format(text.value(share), a.batch * context, 1 / (a.batch * context)))
  end
  if corpus and context and a.batch * context > most_tokens then
    report("batch", ("train.batch = %.14g samples of %.14g tokens are more than 2^40 tokens in a step"):format(a.batch,
      context))
  end
  if is_model(a.model) and a.model.class.model then
    local arguments = a.model.arguments
    if a.context and a.context > arguments.context then
      report("context", ("train.context = %d is more than the model's context = %d"):format(a.context,
        arguments.context))
    end
    if corpus and a.data.vocab > arguments.vocab then
      report("model", ("the data has %d different tokens, the model's vocab = %d; vocab = corpus.vocab fits"):format(
        a.data.vocab, arguments.vocab))
    end
    if not corpus then report("data", "a language model is trained on data.text, data.tokens or data.masked") end
  end
  local wordless = a.sample and generate.problem(a.model)
  if wordless then
    report("sample", "train.sample: " .. wordless)
  elseif corpus and a.sample and a.sample.prompt then
    local ok, problem = pcall(a.data.encode, a.data, a.sample.prompt)
    if not ok then report("sample.prompt", (errors.describe(problem))) end
  end
  if a.optimizer.arguments.rounding == "stochastic" and a.precision == "f32" then
    report("optimizer", ("optim.%s.rounding = \"stochastic\" is of the bf16 copy of the weights, and with precision = "
      .. "f32 there is none; precision = \"bf16\" or rounding = \"nearest\" works"):format(a.optimizer.name))
  end
  if a.resume and a.overwrite then
    report("overwrite", "resume = true goes on with a saved model, overwrite = true replaces it; take one")
  end
  for _, name in ipairs { "save", "from", "metrics" } do
    if a[name] == "" then report(name, ("train.%s is empty; give a path, or leave it out"):format(name)) end
  end
  if a.resume and not a.save then report("resume", "train.resume needs 'save', the folder to go on from") end
end

return define.constructor {
  name = "train", kind = "run",
  sentence = "A run: what to train, on what, how. `hetrun` starts what a recipe returns; run:start() does so at the "
    .. "prompt.",
  example = "return het.train { model = model, data = corpus, batch = 12, steps = 2000,\n"
    .. "                   optimizer = optim.adamw { lr = 1e-3 } }",
  fields = {
    { "model", "layer", "what is trained", required = true },
    { "data", "corpus|pairs", "what it is trained on", required = true },
    { "optimizer", "optimizer", "how the weights change", required = true },
    { "batch", "integer", "samples of a step", required = true, min = 1 },
    { "microbatch", "integer", "samples computed at once; gradients are summed over the batch (default: batch; a plan "
      .. "has its own)", min = 1 },
    { "steps", "integer", "steps in all", required = true, min = 1 },
    { "context", "integer", "tokens of a sample (default: the model's context)", min = 1 },
    { "precision", "string", "of matrices and activations; master weights and sums are f32", default = "f32",
      choices = { "f32", "bf16" } },
    { "seed", "integer", "of weights, sample order, dropout and stochastic rounding", default = 1337, min = 0 },
    { "loss", "function", "function(output, labels, scale): the summed loss times scale (default: cross-entropy, or "
      .. "squared error for labels with fractions)" },
    { "evaluate", "record", "on the held-out part", default = {}, fields = {
      { "every", "integer", "steps between evaluations; 0: none", default = 250, min = 0 },
      { "batches", "integer", "batches of an evaluation", default = 20, min = 1 },
    } },
    { "sample", "record", "text to write at the end", fields = generate.fields },
    { "save", "string", "folder for the model, its vocabulary and the training state", path = "write" },
    { "save_every", "integer", "steps between saves, which are written beside the steps that follow, from a copy in "
      .. "the host's memory (the steps wait where there is no room for one); 0: only at the end and when interrupted",
      default = 0, min = 0 },
    { "resume", "boolean", "go on exactly where `save` stopped, if it is there (--resume)", default = false },
    { "overwrite", "boolean", "replace the model that `save` holds, as soon as this run is saved; without it and "
      .. "`resume` a folder with a model is refused (--overwrite)", default = false },
    { "from", "string", "folder of a saved model whose weights it begins with", path = "read" },
    { "metrics", "string", "file for one JSON object per report", path = "write" },
    { "after", "function", "function(run), called at the end" },
    { "on_step", "function", "function(run, step), called after each step" },
    { "rendezvous", "string", "where ranks on several machines find each other: \"etcd://host:2379\" (default: "
      .. "MASTER_ADDR and MASTER_PORT; HETRUN_RENDEZVOUS)" },
    { "name", "string", "of the run, by which its ranks find each other", default = "hetrun" },
    { "pace", "cluster", "run each rank as slowly as its device in this cluster, over links as slow: to try plans "
      .. "for a mixed cluster on one machine whose own rates are well above" },
    { "plan", "plan", "who computes what (default: one device does everything; each device of a plan is a process, "
      .. "started by `hetrun --workers N`)" },
  },
  check = check,
  build = function(a) return setmetatable({ arguments = a }, Run) end,
}
