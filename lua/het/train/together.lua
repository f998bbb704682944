--- What all ranks of a run do at the same place, so that what goes wrong on one of them is an error on all.
local native = require "het.native"
local errors = require "het.errors"

local together = {}

-- The error that all ranks raise, or nil: that of the first rank that has one, named unless all say the same.
local function agreed(texts)
  local all = {}
  for i, words in ipairs(texts) do all[i] = native.json_decode(words) end
  for rank, problem in ipairs(all) do
    local same = true
    for _, other in ipairs(all) do same = same and other.message == problem.message end
    if problem.kind and same then return problem.kind, problem.message end
    if problem.kind then return problem.kind, ("rank %d: %s"):format(rank - 1, problem.message) end
  end
end

--- Call fn(...) on each rank; an error on any of them is raised on all. All ranks call it.
-- @return what fn returned here
function together.call(run, fn, ...)
  if not run.cluster then return fn(...) end
  local ok, result = pcall(fn, ...)
  local own = {}
  if not ok then own.message, own.kind = errors.describe(result) end
  if own.kind == "peer" or own.kind == "interrupted" then error(result, 0) end
  local kind, message = agreed(run.cluster:all_gather(native.json_encode(own)))
  if kind then errors.raise(kind, "%s", message) end
  return result
end

--- What the first rank's fn(...) returns, a text, on all ranks; its error is raised on all. All ranks call it.
function together.by_first(run, fn, ...)
  if not run.cluster then return fn(...) end
  local own = {}
  local ok, result = true, nil
  if run.cluster:rank() == 0 then
    ok, result = pcall(fn, ...)
    own.text = ok and result or nil
    if not ok then own.message, own.kind = errors.describe(result) end
  end
  local first = native.json_decode(run.cluster:all_gather(native.json_encode(own))[1])
  if not ok then error(result, 0) end
  if first.kind then errors.raise(first.kind, "%s", first.message) end
  return first.text
end

return together
