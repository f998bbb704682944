--- What all ranks of a run do at the same place, so that what goes wrong on one of them is an error on all.
local native = require "het.native"
local errors = require "het.errors"
local source = require "het.language.source"

local together = {}

--- The ranks cannot go on: an error, on those that wait to join, too, which else would begin the run from the
-- start.
-- @string why
function together.give_up(run, why)
  run.unrecoverable = true
  if run.member then run.member:end_run(why) end
  errors.raise("peer", "%s", why)
end

--- Whether this process is the first of those on its machine.
function together.is_first_of_machine() return (os.getenv "LOCAL_RANK" or "0") == "0" end

--- Whether this is a generation of a run that goes on after a change of its ranks, and not its first one.
function together.goes_on(run)
  local roster = run.member and run.cluster:roster()
  return roster and roster.number > roster.first or false
end

--- Whether other ranks may go on with a run that fails here: not where all ranks have the error.
function together.others_go_on(run, problem)
  return run.member ~= nil and not run.unrecoverable and run.agreed ~= problem
end

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

-- Raise an error that all ranks have agreed to raise. A rank that ends looks lost to others that still wait for its
-- word, so no rank goes on before all have agreed.
local function raise_on_all(run, problem)
  run.agreed = problem
  pcall(run.cluster.all_gather, run.cluster, "")   -- where it fails, another rank has agreed and ended
  error(problem, 0)
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
  if kind then raise_on_all(run, errors.new(kind, message)) end
  return result
end

-- Raise what a method has raised: of ranks that do different things, which is found by how much they send, the method
-- and the other rank.
local function raise_expected(run, name, problem)
  local message, kind = errors.describe(problem)
  local other = kind == "peer" and message:match "(rank %d+) %a+ %d+ bytes where this rank "
  if not other then error(problem, 0) end
  if other == ("rank %d"):format(run.rank) then other = "another rank" end   -- whose message it is
  local place = source.place()
  errors.raise("peer", "%s%s is called here, and %s does something else, such as the next step; all ranks call it at "
    .. "the same place", place and place .. ": " or "", name, other)
end

local function results_of(run, name, ok, ...)
  if not ok then raise_expected(run, name, (...)) end
  return ...
end

--- A method that all ranks call at the same place, for recipes.
-- @string name for messages: "run:save"
-- @tparam function fn
function together.expected(name, fn)
  return function(run, ...) return results_of(run, name, pcall(fn, run, ...)) end
end

--- Raise a mistake on all ranks where they do not all have the same text. All ranks call it.
-- @string own what this rank has
-- @tparam function describe (first rank's text, number of the first rank that differs, its text) -> the sentence
function together.require_same(run, own, describe)
  if not run.cluster then return end
  local all = run.cluster:all_gather(own)
  together.call(run, function()
    for rank, theirs in ipairs(all) do
      if theirs ~= all[1] then errors.usage("%s", describe(all[1], rank - 1, theirs)) end
    end
  end)
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
  if first.kind then raise_on_all(run, ok and errors.new(first.kind, first.message) or result) end
  return first.text
end

-- Calls fn, of ranks that have one, in a coroutine, which yields while it waits. Until all are done the ranks exchange
-- that they are there, so that no timeout takes one for lost. Returns what calls the rest: fn's result or error.
local function in_time(run, fn)
  local routine, ok, result = fn and coroutine.create(fn), true, nil
  local works = routine ~= nil
  repeat
    if works then
      run.waits_in = routine
      ok, result = coroutine.resume(routine)
      run.waits_in = nil
      works = coroutine.status(routine) ~= "dead"
    end
  until not run.cluster:any(works)
  return function()
    if not ok then error(result, 0) end
    return result
  end
end

--- Call fn() on each rank, where some may take longer than the timeout: fn calls together.wait while it waits for
-- another thread. An error on any rank is raised on all. All ranks call it.
-- @return what fn returned here
function together.in_time(run, fn)
  if not run.cluster then return fn() end
  return together.call(run, in_time(run, fn))
end

--- What the first rank's fn() returns, a text, on all ranks, likewise. All ranks call it.
function together.by_first_in_time(run, fn)
  if not run.cluster then return fn() end
  return together.by_first(run, in_time(run, run.cluster:rank() == 0 and fn or nil))
end

--- Called by what in_time and by_first_in_time run: let the others know that it still works.
function together.wait(run)
  if run.waits_in and coroutine.running() == run.waits_in then coroutine.yield() end
end

--- Called likewise: wait for what another thread does.
-- @tparam userdata task has `done`
function together.until_done(run, task)
  while not task:done() do
    native.sleep(0.005)
    together.wait(run)
  end
end

return together
