--- Training from the first step to the last: steps, evaluations, saves and what is said of them.
local native = require "het.native"
local access = require "het.access"
local define = require "het.define"
local elastic = require "het.train.elastic"
local errors = require "het.errors"
local files = require "het.files"
local generate = require "het.generate"
local handle = require "het.handle"
local peak = require "het.peak"
local plan = require "het.plan"
local progress = require "het.train.progress"
local saving = require "het.train.saving"
local text = require "het.text"

local loop = {}

local function is_model(value) return define.kind_of(value) == "layer" end

-- What a recipe's `sample` asks for, written as it comes: it is a result, printed also when quiet. Where the last line
-- is JSON, the whole text is its `sample`, and only who follows the run sees it come. Returns the text on rank 0.
local function print_sample(self)
  local sample = self.arguments.sample
  if not sample then return nil end
  if self.rank > 0 then
    self:write_text(sample)
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
  local ok, problem = pcall(self.write_text, self, options, emit)
  if out then native.write(out, "\n") end
  if not ok and select(2, errors.describe(problem)) ~= "interrupted" then error(problem, 0) end
  return table.concat(pieces)
end

-- What each rank did in a step, on average: the first says it and keeps it. All ranks call it at the same place.
local function tell_ranks(self, reporter)
  local used = self.session.trainer:usage()
  if not self.cluster or used.runs == 0 then return nil end
  local own = { rank = self.rank, device = plan.devices(self.plan)[self.rank + 1],
    computed_s = (used.seconds - used.waited) / used.runs,
    waited_s = used.waited / used.runs, bubble_s = used.bubble / used.runs,
    bubble_share = used.seconds > 0 and used.bubble / used.seconds or 0, sent_bytes = used.sent_bytes / used.runs,
    memory_bytes = self.session.trainer:memory().total, restored_bytes = self.state:bytes_taken(),
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
    a.precision, a.steps, batch, text.bytes(self.session.trainer:memory().total)))
  local skipped = define.kind_of(a.data) == "corpus" and a.data.native.skipped or 0
  if skipped > 0 then
    reporter:say(("files of %s: %d read, %d skipped (binary, links, or beyond `limit`)"):format(
      a.data.arguments.path, a.data.native.files, skipped))
  end
  if self.plan then reporter:say(tostring(self.plan)) end
  if self.session.beyond_megatron then
    reporter:say(("layers are cut as `sharding` and `shard` say: devices that share layers send each other %s %s in a "
      .. "step than Megatron's way would take"):format(text.bytes(math.abs(self.session.beyond_megatron)),
      self.session.beyond_megatron < 0 and "less" or "more"))
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

-- Call a function of the recipe; whether an interrupt ended it.
local function is_interrupted_in(callback, ...)
  local ok, problem = pcall(callback, ...)
  if not ok and select(2, errors.describe(problem)) ~= "interrupted" then error(problem, 0) end
  return not ok
end

-- What follows a step: what is said of it, the recipe's on_step, an evaluation, a save. It may be called again for a
-- step after the loss of a rank: what was said and called once is not again. Returns whether the run was interrupted.
local function follow(self, reporter, step)
  local a = self.arguments
  if step.lr and (self.reported or 0) < step.step then
    self.reported = step.step
    reporter:step(step)
    if a.on_step and is_interrupted_in(a.on_step, handle.of(self), handle.export(step)) then
      if not self.cluster then return true end
      self.stopped = true   -- others may be in the next step, which they end with this rank alone
    end
  end
  if self.session.evaluator and (step.step % a.evaluate.every == 0 or step.step == a.steps) then
    local loss = self:evaluate()
    if not loss then return true end
    reporter:evaluated(step.step, loss)
    self.validation, self.best = loss, math.min(self.best or math.huge, loss)
  end
  saving.go_on(self)
  local due = a.save and a.save_every > 0 and step.step % a.save_every == 0
  -- The last step is saved when all is done.
  if due and step.step < a.steps then saving.beside_steps(self) end
  self.followed = step.step
end

-- The step that others went on from, on a rank that had not come so far, or has forgotten it.
local function step_again(self)
  local last = self.last_step
  return last and last.step == self.step and last
    or { step = self.step, loss = self.loss, lr = self.loss and self.arguments.optimizer:rate(self.step,
      self.arguments.steps), gradient_norm = 0 / 0, seconds = last and last.seconds or 1 }
end

-- Steps and what follows them until the end, or until Ctrl-C or SIGTERM; returns whether it was interrupted.
local function train(self, reporter)
  local a = self.arguments
  if self:asked_to_stop() then return true end   -- it came before the first step
  if self.unfollowed and follow(self, reporter, step_again(self)) then return true end
  self.unfollowed = false
  while self.step < a.steps do
    local step = self:train_step()
    self.last_step = step or self.last_step
    if self.session:asked_to_stop(self.stopped or not step) then return true end
    if follow(self, reporter, step) then return true end
    if self.step < a.steps and self.session:asked_to_change() then return elastic.change end
  end
  return self.cluster and self:asked_to_stop(self.stopped) or false   -- it came after the last step had told of it
end

-- Measure the peak that the reporter's utilisation is a share of. Returns the seconds it took, which are no part of the
-- run. Where it cannot be measured, as beside a model that fills the memory, none is reported.
local function measure_peak(reporter, device, dtype)
  local before = native.clock()
  local ok, flops = pcall(peak.measure, device, dtype)
  if ok then reporter.peak = math.max(reporter.peak or 0, flops) end
  return native.clock() - before
end

--- Train to the last step, and what follows it: the save, the results, the sample, `after`.
function loop.start(self)
  local started = native.clock()
  local a, settings = self.arguments, native.settings
  self:prepare()
  self.first_step = self.step
  local begun = self.member and self.begun or self.first_step   -- the same for ranks that came later
  self.unit = define.kind_of(a.data) == "pairs" and "samples" or "tokens"
  self.tokens_per_step = self.unit == "samples" and a.batch or a.batch * self.context
  local peak_device = peak.device_of(self.device)
  local with_peak = is_model(a.model) and not self.cluster   -- ranks on one machine share its peak
  if a.metrics and self.rank == 0 then access.check(a.metrics, true) end
  local metrics = a.metrics or (settings.metrics ~= "" and settings.metrics) or nil
  local reporter = progress.new {
    steps = a.steps, first = self.step, tokens_per_step = self.tokens_per_step, unit = self.unit,
    quiet = settings.quiet or self.rank > 0, leads = self.rank == 0, memory = function() return self:peak_memory() end,
    flops_per_token = is_model(a.model) and a.model:training_flops(self.context) or 0,
    peak = with_peak and peak.known(peak_device, a.precision) or nil,
    metrics = metrics, best = self.best, every = math.max(1, math.floor(a.steps / 20)),
  }
  if self.member and self.rank == 0 then native.speak_for_run() end
  introduce(self, reporter)
  if with_peak and not reporter.peak then
    reporter:say("measuring this machine's peak, once")
    started = started + measure_peak(reporter, peak_device, a.precision)
  end
  native.run_trains(true)
  if settings.trace ~= "" then
    self.trace_step = math.min(begun + 3, a.steps)   -- the first ones are not typical
    self.say = function(sentence) reporter:say(sentence) end
  end
  local ok, interrupted = pcall(elastic.through_losses, self, reporter, train)
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
  if a.save and self.step > begun then
    saving.go_on(self, true)
    local folder, kept
    elastic.through_losses(self, reporter, function()
      folder, kept = saving.folder_of_end(self, interrupted)
      saving.now(self, folder)
      if self.member then self.cluster:tell "" end   -- it is written
    end)
    saving.say(self, reporter, interrupted and "stopped and saved" or "saved", folder, kept)
  elseif interrupted then
    reporter:say(("stopped after step %d; give save = \"folder\" to keep what was learned"):format(self.step))
  end
  if with_peak and not interrupted and peak.due(peak_device, a.precision, reporter.peak or 0) then
    started = started + measure_peak(reporter, peak_device, a.precision)
  end
  local results = results_of(self, reporter, started)
  results.interrupted = interrupted
  results.ranks = elastic.through_losses(self, reporter, tell_ranks)
  self.results = results
  if not interrupted then
    results.sample = elastic.through_losses(self, reporter, print_sample)
    if a.after and is_interrupted_in(a.after, handle.of(self)) then results.interrupted = true end
  end
  if self.member then elastic.leave(self) elseif self.cluster then self.cluster:leave() end
  native.run_trains(false)
  return results
end

return loop
