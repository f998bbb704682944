--- A run: what het.train was given, the state, the step and the cursor. They outlive the cluster; what a plan needs on
-- it is a session's.
local native = require "het.native"
local access = require "het.sandbox.access"
local average = require "het.train.average"
local claims = require "het.train.claims"
local define = require "het.language.define"
local elastic = require "het.train.elastic"
local errors = require "het.errors"
local evaluation = require "het.train.evaluation"
local files = require "het.model.folder"
local loader = require "het.model.load"
local writer = require "het.model.write"
local generate = require "het.model.generate"
local graphs = require "het.train.graphs"
local ledger = require "het.train.ledger"
local loop = require "het.train.loop"
local meeting = require "het.train.meeting"
local places = require "het.train.places"
local plan = require "het.plan"
local ranks = require "het.plan.ranks"
local record = require "het.train.record"
local reference = require "het.train.reference"
local restoring = require "het.train.restoring"
local saving = require "het.train.saving"
local session = require "het.train.session"
local snapshots = require "het.train.snapshots"
local text = require "het.text"
local together = require "het.train.together"
local tokenizer = require "het.model.tokenizer"

local Run = {}
Run.__index = Run

Run.__tostring = function(self)
  local a = self.arguments
  return ("%s\n%s\n%s, %s of %s, %s"):format(tostring(a.model), tostring(a.data), tostring(a.optimizer),
    text.plural(a.steps, "step"), text.plural(a.batch, "sample"), a.precision)
end

local function is_model(value) return define.kind_of(value) == "layer" end

-- Tokens that the model sees at once; 1 where its samples are no texts.
local function context_of(a) return a.context or (is_model(a.model) and a.model.arguments.context) or 1 end

-- Where this rank computes.
local function device_of(self)
  return native.device(self.device, self.pace and self.pace.devices[self.rank + 1])
end

-- The training state of a save, opened; nil where there is none. One that is damaged for any rank gives way to
-- snapshots on all. All ranks call it.
local function training_in(self, folder)
  local ok, training = pcall(files.training, folder)
  local damaged = not ok
  if self.cluster then damaged = self.cluster:any(damaged) end
  if not damaged then return training end
  local newest = self.snapshots and places.newest_in_folder(self)
  together.call(self, function()
    if newest then return end
    if not ok then error(training, 0) end
    errors.usage("another rank cannot read the save in %s, and this one has no snapshots to go on from", folder)
  end)
  if not ok then
    native.write("stderr", ("%s; the snapshots in %s, up to step %d, are taken in its place\n"):format(
      (errors.describe(training)), self.arguments.snapshot.folder, newest.step))
  end
  saving.mark_own(self, folder)
  return nil
end

-- Weights to begin with, and where an earlier run stopped. Tensors are read when programs ask for them.
local function restore(self)
  local a = self.arguments
  self.initial = {}       -- the tensors that a save or a folder has, by name
  self.goes_on = false    -- whether a save has them, with what its optimizer kept
  local state = { set_initial = function(_, name, tensor)
    self.state:set_initial(name, tensor)
    self.initial[name] = true
  end }
  reference.read(a, function(name, tensor) state:set_initial(name, tensor) end)
  local training = self.resume and a.save and training_in(self, a.save)
  if not training then
    local folder = a.from or rawget(a.model, "folder")
    if folder then loader.set_initial_weights(folder, a.model, state) end
    saving.precision(self)   -- before a save replaces the folder that it begins with
    return nil
  end
  local what = "the run saved in " .. a.save
  local about = record.read(training:summary(), what)
  local metadata = loader.set_initial_weights(a.save, a.model, state)
  if tonumber(metadata.step) ~= about.step then
    errors.usage("%s: the model is of step %s, its training state of step %d; they were not saved together",
      a.save, tostring(metadata.step), about.step)
  end
  local known, now = files.vocabulary(a.save), a.data:vocabulary()
  if known and now and native.json_encode(known) ~= native.json_encode(now) then
    errors.usage("%s was begun with another vocabulary than this text's; go on with the same text, or give the "
      .. "data that of the model: vocabulary = \"%s\"", a.save, a.save)
  end
  record.require_alike(self, about, what)
  self.state:set_initial_from(training)   -- the trained parameters, where the model has averaged ones
  self.kept = {}          -- names of all that the save has
  for _, tensor in ipairs(training:tensors()) do
    self.initial[tensor.name] = true
    self.kept[#self.kept + 1] = tensor.name
  end
  self.goes_on = true
  return about
end

--- Raises where nothing can be computed in the run's precision.
function Run:check_precision()
  if self.arguments.precision == "f16" then
    errors.usage("precision = \"f16\" can be planned and simulated, but not run: hetrun has no kernels for f16 "
      .. "and does not scale losses; precision = \"bf16\" or \"f32\" works")
  end
end

--- The training graph of a micro-batch of `samples` (1), what planners count; the tokens of a sample, and
-- those of a row.
function Run:graph_of_sample(samples)
  local context, count = context_of(self.arguments), samples or 1
  local graph = count == 1 and self.sample_graph
    or graphs.training(session.spec(self.arguments, count, context)).graph
  if count == 1 then self.sample_graph = graph end   -- plans made ahead ask for it between steps
  return graph, context * session.rows(self.arguments), context
end

--- The same graph for searches of sharding programs, with one operator for each parameter's update
-- (Optimizer:for_search).
function Run:graph_for_search(samples)
  local spec = session.spec(self.arguments, samples, (context_of(self.arguments)))
  local optimizer = spec.optimizer:for_search()
  if optimizer == spec.optimizer then return (self:graph_of_sample(samples)) end
  spec.optimizer = optimizer
  return graphs.training(spec).graph
end

-- All that does not depend on the plan, beside the planner that may look for one; then the first session.
local function build(self)
  local a, settings = self.arguments, native.settings or {}
  Run.check_precision(self)
  self.device = settings.device or "cpu"
  -- What the command line says counts; a stranger's recipe replaces models that the person lets it replace.
  self.resume = settings.resume or a.resume and not settings.overwrite
  self.overwrite = settings.overwrite or a.overwrite and not settings.resume and not native.confined()
  saving.begin(self)
  local finish_planning = meeting.join(self)
  self.own_device = device_of(self)
  self.state = native.state(self.own_device, a.seed)
  self.context = context_of(a)
  -- The state to begin with: fresh, or as it was saved.
  local function begin_state()
    if self.cluster and self.member then together.by_first(self, meeting.check_places, self) end
    self.state:clear()
    local about = restore(self)
    if about then saving.mark_own(self, a.save) end
    about = about or {}
    snapshots.begin_state(self)
    self.step = about.step or 0
    evaluation.restore(self, about)
    saving.learn_best(self)
    if self.resume and a.keep_best then
      if self.cluster then together.by_first(self, meeting.check_best, self) else meeting.check_best(self) end
    end
    self.begun = self.step      -- from there on steps are this run's
    self.called, self.followed = self.step, self.step   -- the last steps whose on_step, and all that follows, has been
    self.phases_done = 0        -- of het.train.loop
    self.cursor = about.cursor or self.step * a.batch   -- samples that the steps done have seen
    self.ledger = ledger.new(self.step, self.cursor, about.account)
    if not together.goes_on(self) then ledger.resume(self.ledger, about.account) end
    self.state:set_step(self.step)
  end
  snapshots.begin(self)
  if self.member then
    elastic.begin(self, begin_state)
  else
    local own = ("%.0f"):format(native.random_number())
    local nonce = tonumber(self.cluster and self.cluster:all_gather(own)[1] or own)
    self.state:set_nonce(nonce)
    self.number = nonce
    if self.training or self.overwrite then claims.claim(self) end   -- else when it trains, or writes
    claims.note_places(self)
    begin_state()
    finish_planning()
    self.session = session.new(self)
  end
  self.parameters = self.session.parameters
end

--- Build everything a run needs: graphs, state, executors, samplers. Nothing has been computed yet.
function Run:prepare()
  if self.deciding then
    errors.usage("%s is called on the first rank alone; what all ranks do together cannot be done there", self.deciding)
  end
  if self.prepared then return end
  if self.preparing then errors.usage("the run is being prepared; this function of the recipe is part of that") end
  self.preparing = true
  local ok, problem = pcall(build, self)
  self.preparing, self.prepared = false, ok
  if not ok then
    claims.release(self, together.others_go_on(self, problem))
    error(problem, 0)
  end
end

--- Go on by another plan, from the next step on. The state moves between the ranks; no step is lost, no sample is seen
-- twice or left out. All ranks call it at the same place.
-- @tparam table wanted what het.plan gives
function Run:use_plan(wanted)
  self:prepare()
  if wanted.automatic then errors.usage("run:use_plan takes a plan, not het.plan.auto: run.fallbacks has plans") end
  local before = self.plan
  self.plan = plan.resolve(wanted, self.arguments.batch)
  local ok, problem = pcall(meeting.settle_plan, self)
  if not ok then
    self.plan = before
    error(problem, 0)
  end
  ranks.arrange(self)
  self.session = session.new(self, self.session)
end

--- The mean loss over the first batches of what is evaluated on, and that of its figures; nil when interrupted.
function Run:evaluate()
  self:prepare()
  return self.session:evaluate()
end

--- One step of training; returns { step, loss, lr, gradient_norm, seconds }, or nil when interrupted.
function Run:train_step()
  self:prepare()
  if is_model(self.arguments.model) then rawset(self.arguments.model, "trained", true) end
  return self.session:train_step()
end

--- The whole state of the run on rank 0, wherever its parts are; nil on other ranks. All ranks call it at the same
-- place.
function Run:gather()
  self:prepare()
  if not self.cluster then return self.state end
  return self.cluster:gather(self.state)
end

--- The model with the weights as they are, for calls on tensors; nil on other ranks than the first. All ranks call it
-- at the same place.
function Run:model()
  local model = self.arguments.model
  local state = self:gather()
  if not state then return nil end
  return loader.with_weights(model, average.saved(self, state, average.weight(self)), reference.has)
end

local save_fields = { overwrite = true, merge = true }

--- Save the model, its vocabulary and what is needed to go on exactly. Of several ranks the first writes; all call it.
-- A model that this run has not written is not replaced.
-- @string[opt] folder default: the recipe's `save`
-- @tparam[opt] table options `overwrite = true`: replace any model; `merge = true`: of a model with adapters (nn.lora)
-- the base model with what they add, from which no run goes on
function Run:save(folder, options)
  local a = self.arguments
  folder = folder or a.save
  if type(folder) ~= "string" then
    errors.usage('run:save: give a folder, as in run:save "runs/mine"%s', folder and "; it was given "
      .. text.value(folder) or ' (or het.train { save = "runs/mine" })')
  end
  for name in pairs(type(options) == "table" and options or { [options or "overwrite"] = true }) do
    if not save_fields[name] then
      errors.usage("run:save: %s is not an option; there are { overwrite = true, merge = true }", text.value(name))
    end
  end
  local merge = options and options.merge
  if merge and not (is_model(a.model) and rawget(a.model, "lora")) then
    errors.usage "run:save: merge = true is for models with adapters (nn.lora); this one has none"
  end
  self:prepare()
  local function save()
    together.by_first(self, saving.check, self, folder, options and options.overwrite, merge)
    if not merge then return saving.now(self, folder) end
    local state = self:gather()
    if state then
      state = average.saved(self, state, average.weight(self))
      writer.save_merged(folder, a.model, state, a.data:vocabulary(), a.save_precision)
    end
  end
  for _, field in ipairs { "save", "keep_best" } do
    if a[field] and native.resolve(folder) == native.resolve(a[field]) then
      return claims.while_claimed(self, field, save)
    end
  end
  save()
end

--- A snapshot of the state as it is. All ranks call it at the same place.
-- @treturn table { step =, place = (the folder), memory = (whether there is one in memory) }
function Run:snapshot()
  self:prepare()
  return claims.while_claimed(self, "snapshots", snapshots.now, self)
end

--- Replace weights, or all of the training state, by those of a snapshot or a saved model. All ranks call it at the
-- same place.
-- @tparam table given `from`, `only`, `step`: see restoring.fields
-- @treturn table { step =, parameters = }
function Run:restore(given)
  self:prepare()
  return restoring.restore(self, given)
end

--- Write what follows a prompt, with checked options: emit(piece) gets it as it comes, after a call of begin() when all
-- weights are here. Returns it on the first rank.
function Run:write_text(options, emit, begin)
  local a = self.arguments
  local problem = generate.problem(a.model, a.data)
  if problem then errors.usage("%s", problem) end
  self:prepare()
  local state = self:gather()
  if not state then return nil end
  if not self.generator or self.cluster then
    local ends = is_model(a.model) and rawget(a.model, "ends") or tokenizer.ends_by_name(a.data:vocabulary())
    self.generator = generate.new { model = a.model, state = state, precision = a.precision, context = self.context,
      vocab = a.data.vocab, ends = ends }
  end
  if begin then begin() end
  return self.generator:text(a.data, options, emit)
end

--- Write text with the model as it is now. Of several ranks the first writes; all call it.
-- @tparam table options `prompt`, `tokens`, `context`, `temperature`, `top_k`, `top_p`, `seed`
-- @tparam[opt] function emit called with pieces of what follows the prompt as they come
-- @treturn ?string prompt and what follows; nil on other ranks than the first
function Run:generate(options, emit)
  local a = generate.arguments(options)
  local followed = self:write_text(a, emit)
  return followed and (a.prompt or generate.default_prompt(self.arguments.data)) .. followed
end

--- Bytes at most: what the programs of this rank take of a GPU; elsewhere what the process took of the machine.
function Run:peak_memory() return self.session:peak_memory() end

--- The file that the run's metrics go to: that of the command line, else the recipe's; nil without.
function Run:metrics_path()
  local a, settings = self.arguments, native.settings or {}
  return not a.alone and (settings.metrics or "") ~= "" and settings.metrics or a.metrics or nil
end

--- What the metrics file of the run holds, written by whichever rank speaks for the run: a list of tables.
function Run:records()
  local path = self:metrics_path()
  if not path then
    errors.usage 'run:records: this run writes no metrics; het.train { metrics = "runs/mine/metrics.jsonl" } does'
  end
  access.check(path)
  local found = {}
  for line in native.read_text(path):gmatch "[^\n]+" do found[#found + 1] = native.json_decode(line) end
  return found
end

--- End the training after this step, as if it had been the last: what is due at the end is done. All ranks call it at
-- the same place.
function Run:stop() self.ended = self.step or 0 end

--- Whether this rank, or with several any of them, shall stop here.
function Run:asked_to_stop(stopped)
  local asked = native.interrupted() or stopped
  if not self.cluster then return asked end
  self.stopped = asked or self.stopped   -- also when a rank is lost before the others learn of it
  return self.cluster:any(asked)
end

--- Train. Returns the run's numbers: steps, train_loss, validation_loss, best_validation_loss, seconds, tokens_per_s,
-- samples_per_s, mfu, peak_memory_bytes, sample (the text), interrupted. A row of data.pairs counts as one token.
function Run:start()
  -- A function of the recipe may call run:start(), also from another coroutine.
  if self.training then errors.usage("the run is training already; run:start() cannot be called from within") end
  self.training = true
  local ok, results = pcall(loop.start, self)
  self.training = false
  if not ok then error(results, 0) end
  return results
end

return Run
