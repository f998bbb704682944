--- What a run with --elastic does when ranks come, go, or will be taken away. The first rank decides, and all follow:
-- by the recipe's `on_change` and `on_notice`, else by the functions of this folder.
local ahead = require "het.train.ahead"
local define = require "het.language.define"
local errors = require "het.errors"
local handle = require "het.sandbox.handle"
local native = require "het.native"
local planning = require "het.plan.planning"
local plan = require "het.plan"
local ranks = require "het.plan.ranks"
local source = require "het.language.source"
local text = require "het.text"
local together = require "het.train.together"

local policy = {}

policy.on_change = define.document({
  name = "policy.on_change", signature = "het.policy.on_change(run, change)",
  sentence = "The default of het.train's `on_change`, for a function of a recipe that decides some changes alone. "
    .. "`change.kind` is \"waiting\": others wait to join; true lets them in now, false asks again in a second. Else "
    .. "it is \"begin\", \"changed\" or \"replan\", and the answer is the plan for `change.ranks` ranks: it may name "
    .. "them as `change.devices` does (\"host:0\"), in any order. Others of its fields: generation, reason, step, "
    .. "steps_left; lost, joined, of \"changed\"; of \"waiting\" waiting (how many), seconds_between_losses and "
    .. "new_step_seconds, which a step will take with them, as predicted; where known step_seconds, seconds_left and "
    .. "change_seconds, which the last change took.",
  example = "on_change = function(run, change)\n"
    .. "    if change.kind == \"waiting\" then return change.steps_left > 1000 end\n"
    .. "    return het.policy.on_change(run, change)\n  end",
}, require "het.policy.on_change")

policy.on_notice = define.document({
  name = "policy.on_notice", signature = "het.policy.on_notice(run, notice)",
  sentence = "The default of het.train's `on_notice`: after each step while the machines of some ranks will be taken "
    .. "away, it says what to do. \"leave\": these ranks leave now, and what only they have is written to the others "
    .. "first; \"wait\": one more step; \"stop\": the run ends, saved. Fields of `notice`: ranks (a list), of (how "
    .. "many there are), least (that the run needs), step, waited (seconds since the first notice), source, detail, "
    .. "and where the cloud says it seconds_left.",
  example = "on_notice = function(run, notice)\n"
    .. "    return (notice.seconds_left or 0) > 60 and \"wait\" or \"leave\"\n  end",
}, require "het.policy.on_notice")

-- What a function of the recipe answers, or the default; on the first rank. Of ranks that are too few, and only save
-- what they have, a recipe need not know. `asked` learns whether the recipe's function is at work, or has answered.
local function ask(run, name, what, asked)
  local own = not what.ends and not asked.by_default and run.arguments[name]
  local answer
  run.deciding = name
  local ok, problem = pcall(function()
    asked.own = own and true or false
    if own then answer = handle.import_all(own(handle.of(run), handle.export(what))) end
    asked.own = answer ~= nil
    if answer == nil then answer = policy[name](run, what) end
  end)
  run.deciding = nil
  if not ok then error(problem, 0) end
  return answer
end

local function in_words(answer)
  return type(answer) == "table" and "a " .. define.kind_of(answer) or text.value(answer)
end

local function refuse(run, name, words, wanted)
  local place = source.place_of(run.arguments[name])
  errors.usage("%s%s returned %s; %s is needed", place and place .. ": " or "", name, words, wanted)
end

-- What check(answer) makes of the answer. Where a function of the recipe fails, or answers what cannot be, while the
-- run trains, the default decides: what was learned is worth more than that function. Who asked for another plan learns
-- of it.
local function decide(run, name, what, check, question)
  question = question or ask
  local is_asked_for = what.kind == "begin" or what.kind == "replan"
  local asked = {}
  if is_asked_for or not run.arguments[name] then return check(question(run, name, what, asked)) end
  local ok, answer = pcall(function() return check(question(run, name, what, asked)) end)
  if ok then return answer end
  local why, kind = errors.describe(answer)
  if kind ~= "usage" or not asked.own then error(answer, 0) end
  run.said_of_policy = run.said_of_policy or {}
  if run.said_of_policy[name] ~= why then   -- on_notice is asked after each step
    native.write("stderr", ("%s; het.policy.%s decides instead\n"):format(why, name))
  end
  run.said_of_policy[name] = why
  return check(question(run, name, what, { by_default = true }))
end

-- A plan and its fallbacks, as the other ranks get them.
local function written(found, fallbacks)
  local answer = { lua = tostring(found) }
  for i, fallback in ipairs(fallbacks or {}) do
    answer.fallbacks = answer.fallbacks or {}
    answer.fallbacks[i] = { lost = fallback.lost, feasible = fallback.plan ~= nil, problems = fallback.problems,
      lua = fallback.plan and tostring(fallback.plan) }
  end
  return planning.to_lua(answer)
end

--- The plan for the ranks that are there, and its fallbacks. All ranks call it.
-- @tparam table change see policy.on_change
function policy.plan(run, change)
  run.deciding = nil   -- a loss may have cut off a decision
  local a = run.arguments
  local wants_cluster = a.on_change or not plan.given_for(a, change.ranks) or ahead.wants(run)
  run.cluster_here, run.planned_ahead = wants_cluster and ranks.cluster(run) or nil, false
  change.devices = run.cluster_here and run.device_names
  local function check(found)
    if define.kind_of(found) ~= "plan" or found.automatic then
      refuse(run, "on_change", in_words(found), "a het.plan { ... }, or nil for the default,")
    end
    found = plan.resolve(found, run.arguments.batch)
    local count = #plan.devices(found)
    if count ~= change.ranks then
      refuse(run, "on_change", "a plan for " .. text.plural(count, "device"),
        ("a plan for the %d ranks that are here"):format(change.ranks))
    end
    return found
  end
  local words = together.by_first_in_time(run, function()
    run.found = nil
    local found = decide(run, "on_change", change, check)
    -- Fallbacks are the planner's: they count as long as the plan is.
    local planners = run.found and tostring(run.found.plan) == tostring(found)
    return written(found, planners and run.found.fallbacks or nil)
  end)
  local found, fallbacks = planning.from_lua(words)
  found = plan.resolve(found, run.arguments.batch)
  if not (run.cluster_here and ranks.arrange(run, plan.devices(found))) then ranks.arrange(run) end
  return found, fallbacks
end

-- What ask() does, between two steps: Ctrl-C meanwhile is answered with `stopped`, and ends the run as it does in a
-- step.
local function between_steps(stopped)
  return function(run, name, what, asked)
    local ok, answer = pcall(ask, run, name, what, asked)
    if ok then return answer end
    if select(2, errors.describe(answer)) ~= "interrupted" then error(answer, 0) end
    run.stopped = true
    return stopped
  end
end

--- Whether those who wait to join are let in now. All ranks call it.
-- @treturn boolean
-- @treturn ?number else, the steps after which it is asked again
function policy.admits(run, change)
  local words = together.by_first(run, function()
    local answer = decide(run, "on_change", change, function(answer)
      if type(answer) ~= "boolean" then
        refuse(run, "on_change", in_words(answer), "true or false, or nil for the default,")
      end
      return answer
    end, between_steps(false))
    return answer and "yes" or ("%d"):format(math.max(1, math.ceil(1 / (run.step_seconds or 1))))
  end)
  return words == "yes", tonumber(words)
end

local answers_to_notice = { leave = true, wait = true, stop = true }

--- What happens upon notices: "leave", "wait" or "stop". All ranks call it.
function policy.notice(run, notice)
  return together.by_first(run, function()
    local answer = decide(run, "on_notice", notice, function(answer)
      if not answers_to_notice[answer] then
        refuse(run, "on_notice", in_words(answer), '"leave", "wait" or "stop", or nil for the default,')
      end
      return answer
    end, between_steps "stop")
    local too_few = notice.of - #notice.ranks < math.max(1, notice.least)
    return answer == "leave" and too_few and "stop" or answer
  end)
end

return policy
