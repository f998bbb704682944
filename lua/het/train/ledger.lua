--- Which samples the steps of a run have counted, and what has happened to its ranks. Plain data, which ranks that
-- join take over: { at =, begun =, start =, spans =, changes =, gone =, came =, steps_repeated =, at_least = },
-- and what het.train.money counts. `at`: when it began, in seconds since 1970; `begun`: the step that it
-- began after; `start`: the first sample of the next step. `at_least`: all ranks were lost, or the run was resumed,
-- maybe in a later step than they had said. It is kept with snapshots and saves, and
-- in the run's status (het.train.control). A span is { step =, steps =, first =, batch = }: so many steps from `step`
-- on, each of `batch` samples, the first of these `first`. A step that is trained again after the ranks went back
-- replaces what was counted from there on, as it does in the state.
local text = require "het.text"

local ledger = {}

local counts = { "begun", "start", "changes", "gone", "came", "steps_repeated", "changes_paid" }
local sums = { "paid", "money_lost" }

--- Of a run that goes on after a step with a sample.
-- @tparam[opt] table kept what `kept` gave of it (default: the run begins)
function ledger.new(step, cursor, kept)
  local self = { at = os.time(), begun = step, start = cursor, spans = {}, changes = 0, gone = 0, came = 0,
    steps_repeated = 0 }
  if not kept then return self end
  for _, names in ipairs { counts, sums } do
    for _, name in ipairs(names) do self[name] = kept[name] end
  end
  for i, span in ipairs(kept.spans) do
    self.spans[i] = { step = span.step, steps = span.steps, first = span.first, batch = span.batch }
  end
  self.at, self.at_least = self.at - kept.age, kept.at_least
  ledger.restore(self, step, cursor)
  return self
end

--- A run is resumed from what was kept with a snapshot or a save: unless that was the last of the run, it may have
-- done more, and lost ranks, since.
function ledger.resume(self, kept)
  if kept and not kept.final then self.at_least = true end
end

--- What is kept of it: how old it is in place of when it began.
-- @bool[opt] final the run has ended
function ledger.kept(self, final)
  local kept = { age = ledger.age(self), spans = self.spans, at_least = self.at_least, final = final or nil }
  for _, names in ipairs { counts, sums } do
    for _, name in ipairs(names) do kept[name] = self[name] end
  end
  return kept
end

local function is_whole(value)
  local number = text.finite(value)
  return number ~= nil and number >= 0 and number <= 2 ^ 53 and number % 1 == 0
end

--- Take over what was kept of the same run later, maybe without all of its steps.
function ledger.learn(self, step, cursor, kept)
  local other = ledger.new(step, cursor, kept)
  if other.begun < self.begun then self.begun, self.start, self.spans = other.begun, other.start, other.spans end
  self.at, self.at_least = math.min(self.at, other.at), self.at_least or other.at_least
  for _, name in ipairs { "changes", "gone", "came", "steps_repeated", "changes_paid", unpack(sums) } do
    if other[name] then self[name] = math.max(self[name] or 0, other[name]) end
  end
end

--- Whether a value, which may come from a file of anyone, is what `kept` gives.
function ledger.is_kept(value)
  if type(value) ~= "table" or not is_whole(value.age) or type(value.spans) ~= "table" then return false end
  for _, name in ipairs(counts) do
    if not (is_whole(value[name]) or name == "changes_paid" and value[name] == nil) then return false end
  end
  for _, name in ipairs(sums) do
    if value[name] ~= nil and not text.finite(value[name]) then return false end
  end
  for _, span in ipairs(value.spans) do
    if type(span) ~= "table" then return false end
    for _, name in ipairs { "step", "steps", "first", "batch" } do
      if not is_whole(span[name]) then return false end
    end
  end
  for _, name in ipairs { "at_least", "final" } do
    if value[name] ~= nil and type(value[name]) ~= "boolean" then return false end
  end
  return true
end

--- Seconds since the run began.
function ledger.age(self) return math.max(0, os.time() - self.at) end

--- The ranks go on after this step: what was counted later is in no state any more.
function ledger.go_back(self, step)
  local spans = self.spans
  while #spans > 0 and spans[#spans].step > step do table.remove(spans) end
  local last = spans[#spans]
  if last then last.steps = math.min(last.steps, step - last.step + 1) end
end

--- The last step that is counted.
function ledger.last_step(self)
  local last = self.spans[#self.spans]
  return last and last.step + last.steps - 1 or self.begun
end

-- The first sample of the step after `step`; nil where that is not known.
local function cursor_after(self, step)
  if step == self.begun then return self.start end
  for _, span in ipairs(self.spans) do
    if step >= span.step and step < span.step + span.steps then
      return span.first + (step - span.step + 1) * span.batch
    end
  end
end

--- The run goes on after a step of another run, or of an earlier one of this run, with a sample: where these are not
-- its steps and samples, counting begins again.
function ledger.restore(self, step, cursor)
  if cursor_after(self, step) == cursor then return ledger.go_back(self, step) end
  self.begun, self.start, self.spans = step, cursor, {}
end

--- A step has counted the samples from `first` to before `after`.
function ledger.count(self, step, first, after)
  ledger.go_back(self, step - 1)
  local last = self.spans[#self.spans]
  if last and last.step + last.steps == step and last.first + last.steps * last.batch == first
    and last.batch == after - first then
    last.steps = last.steps + 1
  else
    table.insert(self.spans, { step = step, steps = 1, first = first, batch = after - first })
  end
end

--- How many samples were counted until a step of steps of `batch` samples, how many of these more than once, and how
-- many of those that an undisturbed run counts never.
-- @treturn table { counted =, repeated =, lost = }
function ledger.totals(self, step, batch)
  local counted, repeated, lost, reached = 0, 0, 0, self.start
  for _, span in ipairs(self.spans) do
    counted = counted + span.steps * span.batch
    lost, repeated = lost + math.max(0, span.first - reached), repeated + math.max(0, reached - span.first)
    reached = math.max(reached, span.first + span.steps * span.batch)
  end
  local all = self.start + (step - self.begun) * batch
  return { counted = counted, repeated = repeated, lost = lost + math.max(0, all - reached) }
end

return ledger
