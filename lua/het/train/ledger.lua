--- Which samples the steps of a run have counted, and what has happened to its ranks. Plain data, which ranks that
-- join take over: { at =, begun =, start =, spans =, changes =, gone =, came =, steps_repeated =, begun_again = }.
-- `at`: when it began, in seconds since 1970; `begun`: the step that it began after; `begun_again`: no rank knew the
-- generations before it, as after the loss of all ranks; `start`: the first sample of the
-- next step. A span is { step =, steps =, first =, batch = }: so many steps from `step` on, each of `batch` samples,
-- the first of these `first`. A step that is trained again after the ranks went back replaces what was counted from
-- there on, as it does in the state.
local ledger = {}

--- Of a run that goes on after a step with a sample.
function ledger.new(step, cursor)
  return { at = os.time(), begun = step, start = cursor, spans = {}, changes = 0, gone = 0, came = 0,
    steps_repeated = 0 }
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
