--- What evaluations lead to: the lowest loss, and the end of a run whose loss does not get lower any more.
--
-- A run has `validation`, the loss of the last evaluation; `evaluated`, its step; `best` and `best_step`, the lowest
-- loss and its step; `lowest`, the last loss that was lower than the one before it by `evaluate.min_change`, and
-- `since`, how many evaluations came after that. They are saved with the state, and the same on all ranks. So is
-- `averages_since`, of a run with `ema`: the step that its averages (average.lua) begin after.
local text = require "het.text"

local evaluation = {}

-- What is saved of a run.
local names = { "validation", "evaluated", "best", "best_step", "lowest", "since", "averages_since" }

--- What a save or a snapshot keeps of the evaluations: numbers that are finite, by name.
function evaluation.numbers(run)
  local numbers = {}
  for _, name in ipairs(names) do numbers[name] = text.finite(run[name]) end
  return numbers
end

--- The run goes on after a step with what was kept there.
-- @tparam table kept what evaluation.numbers gave, among other fields
function evaluation.restore(run, kept)
  for _, name in ipairs(names) do run[name] = kept[name] end
  run.evaluated = math.min(kept.evaluated or run.step, run.step)
  run.lowest, run.since = kept.lowest or kept.best, kept.since or 0
  run.averages_since = run.arguments.ema and (kept.averages_since or run.step) or nil
end

--- Take over what the rank that has counted most evaluations knows of them.
-- @tparam table all what evaluation.numbers gave on each rank
function evaluation.take_over(run, all)
  local last
  for _, kept in ipairs(all) do
    if not last or (kept.evaluated or 0) > (last.evaluated or 0) then last = kept end
  end
  for _, name in ipairs(names) do run[name] = last[name] end
  run.since = last.since or 0
end

-- The first rank's loss, on all ranks.
local function agreed(run, loss)
  if not run.cluster then return loss end
  local first = run.cluster:all_gather(text.finite(loss) and ("%.17g"):format(loss) or "")[1]
  return tonumber(first) or 0 / 0
end

--- Count the loss that was found after a step. An evaluation that is repeated after the loss of a rank counts once. All
-- ranks call it.
-- @treturn number the loss that counts, the same on all ranks; NaN where it is not finite
function evaluation.count(run, step, loss)
  loss = agreed(run, loss)
  run.validation = loss
  if step <= (run.evaluated or 0) then return loss end
  run.evaluated = step
  local is_finite = text.finite(loss) ~= nil
  if is_finite and loss < (run.best or math.huge) then run.best, run.best_step = loss, step end
  if is_finite and loss < (run.lowest or math.huge) - (run.arguments.evaluate.min_change or 0) then
    run.lowest, run.since = loss, 0
  else
    run.since = run.since + 1
  end
  return loss
end

--- Whether the run ends early: the recipe has called run:stop(), or `evaluate.patience` evaluations in a row have found
-- no lower loss.
function evaluation.is_over(run)
  if run.ended and run.step >= run.ended then return true end
  local patience = run.arguments.evaluate.patience
  return patience ~= nil and run.since >= patience
end

--- Why it ends early: "3 evaluations in a row found no loss below 1.2345".
function evaluation.why_over(run)
  if run.ended then return "the recipe called run:stop()" end
  local change = run.arguments.evaluate.min_change or 0
  local wanted = not run.lowest and "finite loss"
    or change > 0 and ("loss lower than %.4f by more than %.14g"):format(run.lowest, change)
    or ("loss below %.4f"):format(run.lowest)
  return ("%d %s found no %s"):format(run.since, run.since == 1 and "evaluation" or "evaluations in a row", wanted)
end

return evaluation
