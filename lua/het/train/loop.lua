--- Training from the first step to the last: steps, evaluations, saves and what is said of them.
local native = require "het.native"
local access = require "het.sandbox.access"
local chaos = require "het.train.chaos"
local claims = require "het.train.claims"
local control = require "het.train.control"
local define = require "het.language.define"
local elastic = require "het.train.elastic"
local errors = require "het.errors"
local evaluation = require "het.train.evaluation"
local fault = require "het.train.fault"
local files = require "het.model.folder"
local loader = require "het.model.load"
local writer = require "het.model.write"
local generate = require "het.model.generate"
local handle = require "het.sandbox.handle"
local peak = require "het.profile.peak"
local plan = require "het.plan"
local progress = require "het.train.progress"
local saving = require "het.train.saving"
local snapshots = require "het.train.snapshots"
local source = require "het.language.source"
local text = require "het.text"
local together = require "het.train.together"

local loop = {}

local function is_model(value) return define.kind_of(value) == "layer" end

-- What a recipe's `sample` asks for, written as it comes: it is a result, printed also when quiet. Where the last line
-- is JSON, the whole text is its `sample`, and only who follows the run sees it come. `results.sample` is the text, on
-- the rank that wrote it; after a loss another one writes it again, on a line of its own.
local function print_sample(self, _, results)
  local sample = self.arguments.sample
  if not sample or self.interrupted then return end
  if self.rank > 0 or results.sample then   -- its own part of the weights is all that this rank gives
    self:gather()
    results.sample_begun = true
    return
  end
  local settings, pieces = native.settings, {}
  local out = not settings.json and "stdout" or not settings.quiet and "stderr" or nil
  local options = setmetatable({ prompt = sample.prompt or generate.default_prompt(self.arguments.data) },
    { __index = sample })
  local function emit(piece)
    pieces[#pieces + 1] = piece
    if out then native.write(out, piece) end
  end
  local function begin()
    if results.sample_begun and out then native.write(out, "\n") end
    emit(options.prompt)
  end
  local ok, problem = pcall(self.write_text, self, options, emit, begin)
  if not ok and select(2, errors.describe(problem)) ~= "interrupted" then error(problem, 0) end
  if out then native.write(out, "\n") end
  results.sample = table.concat(pieces)
end

-- What each rank did in a step, on average: the first prints it and keeps it as `results.ranks`. All ranks call it.
local function report_ranks(self, reporter, results)
  local used = self.session.trainer:usage()
  if not self.cluster or used.runs == 0 then return end
  local own = { rank = self.rank, device = plan.devices(self.plan)[self.place + 1],
    computed_s = (used.seconds - used.waited) / used.runs,
    waited_s = used.waited / used.runs, bubble_s = used.bubble / used.runs,
    bubble_share = used.seconds > 0 and used.bubble / used.seconds or 0, sent_bytes = used.sent_bytes / used.runs,
    memory_bytes = self.session.trainer:memory().total, restored_bytes = self.state:bytes_restored(),
    behind_s = self.own_device:pace_lost(), ways = self.cluster:ways() }
  local texts = self.cluster:all_gather(native.json_encode(own))
  if self.rank > 0 then return end
  local ranks, slowest = {}, 1
  for i, words in ipairs(texts) do
    ranks[i] = native.json_decode(words)
    if ranks[i].computed_s > ranks[slowest].computed_s then slowest = i end
  end
  for i, rank in ipairs(ranks) do
    local sentence = "rank %d: a step computes %s and waits %s (%.0f %%; bubbles %.0f %%), sends %s per "
      .. "step, takes %s of memory%s"
    reporter:say(sentence:format(
      rank.rank, native.show_seconds(rank.computed_s), native.show_seconds(rank.waited_s),
      100 * rank.waited_s / (rank.computed_s + rank.waited_s), 100 * rank.bubble_share, text.bytes(rank.sent_bytes),
      text.bytes(rank.memory_bytes), i == slowest and ("; slowest rank (%s)"):format(rank.device) or ""))
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
  results.ranks = ranks
end

-- The numbers of a finished run.
local function count(self, reporter, results)
  local steps_per_s = reporter:steps_per_second()   -- nil: what was not measured is not there
  local tokens = steps_per_s and steps_per_s * self.tokens_per_step
  local numbers = {
    steps = self.step, train_loss = self.loss, validation_loss = self.validation, best_validation_loss = self.best,
    seconds = native.clock() - reporter.started, tokens_per_s = tokens,
    samples_per_s = steps_per_s and steps_per_s * self.arguments.batch, mfu = tokens and reporter:mfu(tokens),
    peak_memory_bytes = self:peak_memory(), parameters = self.parameters, precision = self.arguments.precision,
    interrupted = self.interrupted or false, best_validation_step = self.best_step,
    stopped_early = self.step < self.arguments.steps and evaluation.is_over(self),
  }
  for name, number in pairs(numbers) do results[name] = number end
end

-- The step that this run began after: of a rank that joined it, that of the ranks that had begun it.
local function begun(self) return self.member and self.begun or self.first_step end

local function introduce(self, reporter)
  local a = self.arguments
  local batch = self.unit == "samples" and text.plural(a.batch, "sample")
    or ("%d x %s%d tokens"):format(a.batch, self.session.rows > 1 and self.session.rows .. " x " or "", self.context)
  local trained = self.session.trained
  reporter:say(("%s parameters%s, %s, %s of %s, %s memory"):format(text.count(self.parameters),
    trained < self.parameters and (", %s trained"):format(text.count(trained)) or "",
    a.precision, text.plural(a.steps, "step"), batch, text.bytes(self.session.trainer:memory().total)))
  local left_out = loader.left_out(a.model)
  if left_out then reporter:say(left_out) end
  local corpus = define.kind_of(a.data) == "corpus"
  local other = corpus and writer.other_vocabulary(a.model, a.data:vocabulary())
  if other then reporter:say(other) end
  local skipped = corpus and a.data.native.skipped or 0
  if skipped > 0 then
    reporter:say(("files of %s: %d read, %d skipped (binary, links, or beyond `limit`)"):format(
      a.data.arguments.path, a.data.native.files, skipped))
  end
  for _, cuts in ipairs { corpus and a.data:cuts(self.context) or false,
    corpus and a.evaluate.data and a.evaluate.data:cuts(self.context, "holdout") or false } do
    if cuts then reporter:say(cuts) end
  end
  if self.session.has_starts then
    local examples, rows, tokens, pieces = unpack(self.session.sampler:packed())
    local what = {}
    if examples > 0 then what[1] = text.grouped(examples) .. " examples" end
    if pieces > 0 then what[#what + 1] = text.grouped(pieces) .. " pieces of documents" end
    reporter:say(("%s share %s rows of %d tokens, and fill %.0f %% of them"):format(table.concat(what, " and "),
      text.grouped(rows), self.context, 100 * tokens / (rows * self.context)))
  end
  if self.plan then reporter:say(tostring(self.plan)) end
  if self.chaos and self.step < a.steps then reporter:say(chaos.describe(self.chaos)) end
  if self.session.beyond_megatron then
    reporter:say(("layers are cut as `sharding` and `shard` say: devices that share layers send each other %s %s in a "
      .. "step than Megatron's way would take"):format(text.bytes(math.abs(self.session.beyond_megatron)),
      self.session.beyond_megatron < 0 and "less" or "more"))
  end
  if self.step >= a.steps then
    reporter:say(("already trained for all %d steps; raise `steps` to continue"):format(a.steps))
  elseif evaluation.is_over(self) then
    reporter:say(("already stopped early after step %d: %s; raise `evaluate.patience` to continue"):format(self.step,
      evaluation.why_over(self)))
  elseif self.step > 0 then
    reporter:say(("going on after step %d"):format(self.step))
  elseif self.resume then
    reporter:say(("nothing is saved in %s yet: this run begins at step 1"):format(a.save or a.snapshot.folder))
  end
  local held = self.overwrite and a.save and self.rank == 0 and saving.held_by_others(self, a.save)
  if held then
    reporter:say(("%s holds %s, which is kept until this run is saved"):format(a.save, files.describe_held(held)))
  end
end

-- Call a function of the recipe; whether an interrupt ended it.
local function is_interrupted_in(callback, ...)
  local ok, problem = source.call(callback, ...)
  if not ok and select(2, errors.describe(problem)) ~= "interrupted" then error(problem, 0) end
  return not ok
end

-- What is said of a step, and the recipe's on_step, unless that `fails` elsewhere. Returns whether the run is to end:
-- on_step was interrupted, or raised an error, `failed`, on one of several ranks, whose others go on until they learn
-- of it.
local function report(self, reporter, step, fails)
  local on_step = self.arguments.on_step
  if step.lr and (self.reported or 0) < step.step then
    self.reported = step.step
    reporter:step(step, snapshots.newest(self))
  end
  if fails or self.failed or not (on_step and step.lr and self.called < step.step) then return false end
  local ok, interrupted = pcall(is_interrupted_in, on_step, handle.of(self), handle.export(step))
  if not ok and (not self.cluster or elastic.is_loss(interrupted)) then error(interrupted, 0) end
  self.failed = not ok and interrupted or nil
  self.called = self.step   -- an earlier one where run:restore took the run back
  return self.failed ~= nil or interrupted
end

-- What follows a step: what is said of it, on_step, an evaluation, a save. After the loss of a rank all ranks call it
-- again for a step that one of them has not followed: then on_step is called again where it had not returned on all
-- ranks, and nothing is said twice. Returns whether the run was interrupted.
local function follow(self, reporter, step)
  local a = self.arguments
  if report(self, reporter, step) then
    if not self.cluster then return true end
    self.stopped = true   -- others may be in the next step, which they end with this rank alone
  end
  if self.step < step.step then return end
  if self.session.evaluator and (step.step % a.evaluate.every == 0 or step.step == a.steps) then
    local loss, figures = self:evaluate()
    if not loss then return true end
    local is_new = self.evaluated < step.step
    loss = evaluation.count(self, step.step, loss)
    if is_new then reporter:evaluated(step.step, loss, self.best, self.since, a.evaluate.patience, figures) end
  end
  if a.keep_best and self.best_step == step.step then saving.beside_steps(self, "keep_best") end
  local is_last = step.step == a.steps or evaluation.is_over(self)
  saving.go_on(self)
  local due = a.save and a.save_every > 0 and step.step % a.save_every == 0
  if due and not is_last then saving.beside_steps(self, "save") end   -- the last step is saved when all is done
  self.is_over = is_last   -- for what is kept with a snapshot (record.of)
  snapshots.after_step(self)
  self.followed = step.step
end

-- Steps and what follows them until the end, or until Ctrl-C or SIGTERM: returns whether it came, or elastic.change
-- when the ranks are to end the generation first.
local function take_steps(self, reporter)
  local a = self.arguments
  -- It came before the first step, or a rank was lost while the others learnt of it.
  if self:asked_to_stop(self.interrupted or self.stopped) then return true end
  if elastic.is_too_small(self) then
    local notice = self.notices:notice()
    if self.cluster:any(notice ~= nil and notice.source:match "^SIG" ~= nil) then return true end
    self.taken_away = ("the run ended after step %d: %s"):format(self.step, self.change_reason)
    return true
  end
  if self.follow_again then
    if follow(self, reporter, self.last_step) then return true end
  elseif self.member and a.keep_best and self.best_step == self.step then
    saving.beside_steps(self, "keep_best")   -- a rank that was lost may not have written it
  end
  self.follow_again = false
  local ending = control.stay_paused(self)
  if ending then return ending end
  while self.step < a.steps and not evaluation.is_over(self) do
    if chaos.brings_back(self) then return elastic.change end
    local step = self:train_step()
    if step then elastic.step_done(self, reporter) end
    self.last_step = step or self.last_step
    if self.session:asked_to_stop(self.stopped or not step) then
      -- Not on_step where it has failed on one of them: it may do what takes all.
      local fails = self.cluster and self.cluster:any(self.failed ~= nil) or false
      if step then report(self, reporter, step, fails) end
      return true
    end
    if follow(self, reporter, step) then return true end
    if evaluation.is_over(self) then break end
    local upon_notice = self.member and elastic.leaving(self)
    if upon_notice == "stop" then return true end
    if upon_notice == "leave" then elastic.let_leave(self) end
    ending = control.after_step(self)
    if ending then return ending end
    if self.member and self.step < a.steps and elastic.admits(self) then return elastic.change end
  end
  return self.cluster and self:asked_to_stop(self.stopped)   -- it came after the last step had shared it
end

-- Several ranks end the run: an error of any of them is that of all.
local function share_failure(self)
  local ok, problem = pcall(together.call, self, function()
    if self.failed then error(self.failed, 0) end
  end)
  if not ok and elastic.is_loss(problem) then error(problem, 0) end
  self.failed = not ok and problem or nil
end

local function train(self, reporter)
  self.is_over = false
  local ok, answer = pcall(take_steps, self, reporter)
  local interrupted = not ok and select(2, errors.describe(answer)) == "interrupted"
  if not ok and (self.cluster or not interrupted) then error(answer, 0) end
  if answer == elastic.change then return answer end
  self.interrupted = interrupted or answer or false
  if self.cluster and self.interrupted then share_failure(self) end
  if self.interrupted then native.interrupted() end   -- this one is heeded
  reporter:finish()
  if self.step < self.arguments.steps and self.step > begun(self) and evaluation.is_over(self) then
    reporter:say(("stopped early after step %d: %s"):format(self.step, evaluation.why_over(self)))
  end
end

-- Measure the peak that the reporter's utilisation is a share of. Returns the seconds it took, which are no part of the
-- run. Where it cannot be measured, as beside a model that fills the memory, none is reported.
local function measure_peak(reporter, device, dtype)
  local before = native.clock()
  local ok, flops = pcall(peak.measure, device, dtype)
  if ok then reporter.peak = math.max(reporter.peak or 0, flops) end
  return native.clock() - before
end

local function save_at_end(self, reporter)
  self.is_over = true
  saving.finish(self)
  saving.say_best(self, reporter)
  if self.ended_by then reporter:say(("stopping: %s"):format(self.ended_by)) end
  if self.arguments.save and self.step > begun(self) then
    local folder, kept = saving.folder_of_end(self, self.interrupted)
    if self.cluster then folder = self.cluster:all_gather(folder)[1] end
    together.call(self, saving.now, self, folder)   -- what one of them cannot write ends the run on all
    local how = self.failed and "failed and saved" or self.interrupted and "stopped and saved" or "saved"
    saving.say(self, reporter, how, folder, kept)
  elseif self.step > begun(self) and (self.arguments.snapshot or {}).folder then
    local ok, taken = pcall(snapshots.now, self)
    if ok then
      local done = self.failed and "failed" or self.interrupted and "stopped" or "done"
      local later = self.interrupted and "--resume goes on with it" or "--resume with more steps goes on"
      reporter:say(("%s after step %d; its snapshot is in %s: %s"):format(done, taken.step, taken.place, later))
    else
      local why, kind = errors.describe(taken)
      if kind ~= "environment" or not self.interrupted then error(taken, 0) end
      reporter:say(("stopped after step %d; it has no snapshot: %s"):format(self.step, why))
    end
  elseif self.interrupted then
    reporter:say(("stopped after step %d; nothing %s"):format(self.step,
      self.arguments.save and "is new to save" or "saved (set `save`)"))
  elseif self.arguments.from or is_model(self.arguments.model) and rawget(self.arguments.model, "folder") then
    reporter:say "the trained model is not saved anywhere (set `save`)"
  end
end

-- The peak that the run's own use is a share of is measured again now and then.
local function conclude(self, reporter, results)
  local precision = self.arguments.precision
  if self.peak_device and not self.interrupted and peak.due(self.peak_device, precision, reporter.peak or 0) then
    reporter.started = reporter.started + measure_peak(reporter, self.peak_device, precision)
  end
  count(self, reporter, results)
  report_ranks(self, reporter, results)
  elastic.account(self, reporter, results)
end

local function call_after(self, _, results)
  local after = self.arguments.after
  if after and not self.interrupted then results.interrupted = is_interrupted_in(after, handle.of(self)) end
end

-- What a run does, in this order. The ranks of a run that outlives some of them are done with a phase together: after a
-- loss they go on with the first one that is not done on all of them.
local phases = {
  { "train", train }, { "save", save_at_end }, { "results", conclude }, { "sample", print_sample },
  { "after", call_after },
}

-- All phases that are left. Returns elastic.change when a generation is to end first.
local function go_through(self, reporter, results)
  while self.phases_done < #phases do
    local name, enter = unpack(phases[self.phases_done + 1])
    fault.in_phase(name)
    if enter(self, reporter, results) == elastic.change then return elastic.change end
    if self.member then self.cluster:all_gather "" end   -- all are done with it
    self.phases_done = self.phases_done + 1
    -- And all know that: a rank that is lost in the next phase does not make the others repeat this one.
    if self.member and self.phases_done < #phases then self.cluster:all_gather "" end
  end
end

-- Floating-point operations of training on what a run counts: a token of a language model, by its matrices, or a sample
-- of numbers, by the graph of its step.
local function flops_of(self)
  local a = self.arguments
  if self.unit == "samples" then return self:graph_of_sample():cost().flops end
  local beside = a.reference and a.reference:training_flops(self.context) / 3 or 0   -- its forward pass
  return (is_model(a.model) and a.model:training_flops(self.context) or 0) + beside
end

local function new_reporter(self)
  local a, settings = self.arguments, native.settings
  self.unit = define.kind_of(a.data) == "pairs" and "samples" or "tokens"
  self.tokens_per_step = self.unit == "samples" and a.batch or a.batch * self.session.rows * self.context
  if a.metrics and self.rank == 0 then access.check(a.metrics, true) end
  local reporter = progress.new {
    steps = a.steps, first = self.step, tokens_per_step = self.tokens_per_step, unit = self.unit,
    quiet = settings.quiet or self.rank > 0, leads = self.rank == 0, memory = function() return self:peak_memory() end,
    flops_per_token = flops_of(self),
    metrics = self:metrics_path(),
    every = math.max(1, math.floor(a.steps / 20)),
  }
  if settings.trace ~= "" and not a.alone then
    self.trace_step = math.min(begun(self) + 3, a.steps)   -- the first ones are not typical
    self.say = function(sentence) reporter:say(sentence) end
  end
  return reporter
end

-- Keep what a run has learned that fails between its steps. Of several ranks one that fails alone cannot gather it.
-- Returns whether it is kept, or it was said why not.
local function keep_failed(self, reporter, problem)
  if select(2, errors.describe(problem)) ~= "usage" or self.cluster and not self.fails_together then return false end
  if self.arguments.save then
    saving.keep_failed(self, reporter)
    return true
  end
  if self.step == begun(self) or not (self.arguments.snapshot or {}).folder then return false end
  local ok, taken = pcall(snapshots.now, self)
  reporter:say(ok and ("failed after step %d; its snapshot is in %s"):format(taken.step, taken.place)
    or "what was learned could not be kept: " .. errors.describe(taken))
  return true
end

--- Train to the last step, and what follows it: the save, the results, the sample, `after`.
function loop.start(self)
  local started = native.clock()
  local a = self.arguments
  self:prepare()
  claims.claim_to_train(self)
  self.first_step = self.step
  -- A rank that joined has these from the others.
  if not self.phases_done then self.phases_done, self.interrupted = 0, false end
  local reporter, results = new_reporter(self), {}
  reporter.started = started
  -- Ranks on one machine share its peak.
  self.peak_device = is_model(a.model) and not self.cluster and peak.device_of(self.device) or nil
  reporter.peak = self.peak_device and peak.known(self.peak_device, a.precision) or nil
  self.stopped, self.ends = false, false
  self.failed, self.taken_away, self.fails_together = nil, nil, false   -- of an earlier start
  if self.member then
    if self.rank == 0 then native.speak_for_run() else native.be_silent() end
  end
  introduce(self, reporter)
  if self.peak_device and not reporter.peak then
    reporter:say("measuring this machine's peak, once")
    reporter.started = reporter.started + measure_peak(reporter, self.peak_device, a.precision)
  end
  native.run_trains(true)
  local ok, problem = pcall(elastic.through_losses, self, reporter, go_through, results)
  local done = self.phases_done
  self.phases_done = nil
  -- Whoever ends the run knows that all ranks have come to its end.
  if not ok and done == #phases - 1 and select(2, errors.describe(problem)) == "ended" then ok = true end
  control.leave(self, ok and "the run has ended" or "the run failed: " .. errors.describe(problem))
  if not ok then
    local why = saving.finish_failed(self, problem)
    if why then reporter:say("the last save was not written: " .. why) end
    local kept = done == 0 and keep_failed(self, reporter, problem)
    claims.release(self, together.others_go_on(self, problem))
    local why_failed, kind = errors.describe(problem)
    local lost = tonumber(why_failed:match "rank (%d+)")
    local speaks = self.member or self.rank == (lost == 0 and 1 or 0)   -- one of the ranks that are left
    local is_new = kind ~= "ended" and done == 0 and not kept and self.step > (begun(self) or self.step)
    local may_lose = kind == "peer" or is_new
    if self.cluster and may_lose and speaks then saving.say_kept(self) end
    error(problem, 0)
  end
  if not results.steps then count(self, reporter, results) end   -- it joined when the others had done so
  self.results = results
  snapshots.leave(self)
  if self.leaves then pcall(self.notices.acknowledge, self.notices) end   -- the machine may be taken away now
  if self.member then elastic.leave(self) elseif self.cluster then self.cluster:leave() end
  native.run_trains(false)
  if self.failed then error(self.failed, 0) end
  if self.taken_away then errors.raise("peer", "%s", self.taken_away) end   -- a scheduler may run it again
  return results
end

return loop
