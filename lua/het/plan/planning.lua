--- Plans for a run on a cluster: asking the planners, in threads beside this one, and plans as Lua. Runs, policies and
-- the command line (het.plan.command) use it.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local suggest = require "het.language.suggest"
local text = require "het.text"

local planning = {}

-- What goes beyond the published planner, by name: the planner's own, and what is tried after it.
local programs = "sharding_programs"

--- The names of all extensions.
function planning.extensions()
  local names = native.extensions()
  names[#names + 1] = programs
  return names
end

--- What is wrong with switching extensions off, each a sentence.
-- @tparam list names of extensions
-- @string policy
function planning.without_problems(names, policy)
  local known, problems = planning.extensions(), {}
  for i, name in ipairs(names) do
    if type(name) ~= "string" then
      problems[#problems + 1] = ("item %d is %s; the name of an extension is needed"):format(i, text.value(name))
    elseif not text.contains(known, name) then
      problems[#problems + 1] = ("there is no extension '%s'%s"):format(name, suggest.sentence(name, known))
    elseif name == programs and policy ~= "auto" then
      problems[#problems + 1] = "sharding_programs is an extension of the policy auto alone"
    end
  end
  if type(policy) == "function" then
    problems[#problems + 1] = "a policy that is a function has no extensions to switch off"
  elseif policy == "hap" or not native.takes_extensions(policy) then
    local policies = {}
    for _, each in ipairs(native.policies()) do
      if native.takes_extensions(each) then policies[#policies + 1] = each end
    end
    problems[#problems + 1] = ("the policy %s has no extensions to switch off; these have: %s"):format(policy,
      table.concat(policies, ", "))
  end
  return problems
end

-- Which extensions are off; nil: none.
local function extensions_of(without)
  if not without then return nil end
  local chosen = {}
  for _, name in ipairs(without) do
    if name ~= programs then chosen[name] = false end
  end
  return chosen
end

--- The model in a few words: the first line of how it prints, without its number of parameters.
function planning.name_of(run)
  return (tostring(run.arguments.model):match("^[^\n]*"):gsub("%s%s+.*$", ""))
end

--- The graph of a sample, and what native.plan and native.simulate are asked beside it.
function planning.request_of(run, cluster, given)
  local graph, tokens = run:graph_of_sample()
  return graph, {
    cluster = cluster, batch = run.arguments.batch, tokens = tokens, profile = given.profile,
    name = planning.name_of(run), policy = given.policy or "auto",
    objective = given.objective or "time", extensions = extensions_of(given.without),
    events = given.html ~= nil or given.trace ~= nil,
    old = given.old, near = given.near, fallbacks = given.fallbacks, cheaper = given.cheaper,
    gentle = given.gentle,
  }
end

--- The policies by name: the planner's, and hap, which writes a sharding program.
function planning.policies()
  local names = native.policies()
  names[#names + 1] = "hap"
  return names
end

-- For what runs in threads, one after the other. Returns a function that waits for the result, and one that waits a
-- moment, or so many seconds, and says whether it is there.
-- @func under_way the thread, or nil: all are done
-- @func go_on called when it is done
-- @func result
local function waits_for(under_way, go_on, result)
  local function wait()
    while under_way() do go_on() end
    return result()
  end
  return wait, function(seconds)
    local thread = under_way()
    if thread and thread:done(seconds) then go_on() end
    return not under_way()
  end, under_way
end

-- What simulations of sharding programs leave out, as a line; "" where that is nothing.
local function of_update(run)
  local optimizer = run.arguments.optimizer
  if optimizer:for_search() == optimizer then return "" end
  return ("here the update of optim.%s takes what AdamW's does\n"):format(optimizer.name)
end

-- Looks for a sharding program: of the whole batch at once, or, where the fastest does not fit, of parts of it as long
-- as they gain; where none fits, of the smallest parts next: where these lack memory, too, nothing else is tried.
-- Returns two functions, as planning.begin.
local function begin_hap(run, cluster, given)
  local batch = run.arguments.batch
  local microbatch = given.microbatch or batch
  if batch % microbatch ~= 0 then
    errors.usage("microbatch = %d does not divide batch = %d", microbatch, batch)
  end
  local function begin()
    return native.synthesise(run:graph_for_search(microbatch), { cluster = cluster, microbatch = microbatch,
      microbatches = batch / microbatch, baselines = given.compare ~= false, gains = given.gains, check = given.check })
  end
  given.phase = "sharding programs are searched and simulated"
  local planned, best, smallest = begin(), nil, nil
  local function gains(answer)
    if not best or answer.feasible ~= best.feasible then return not best or answer.feasible end
    if not answer.feasible then return answer.lack < best.lack end
    return answer.report.step_seconds < 0.99 * best.report.step_seconds
  end
  -- Whether the answer is the last one; if not, `microbatch` is that of the next.
  local function ends(answer, is_better)
    if given.microbatch or answer.proven then return true end
    if smallest == microbatch then   -- the first one did not fit
      microbatch = batch
      if not answer.feasible or batch / 2 == smallest then return true end
    elseif microbatch % 2 ~= 0 or microbatch / 2 == smallest then
      return true
    elseif not answer.feasible and not smallest then
      smallest = microbatch
      while smallest % 2 == 0 do smallest = smallest / 2 end
      microbatch = smallest
      return false
    elseif answer.feasible and (not is_better or answer.report.too_large == "") then
      return true
    end
    microbatch = microbatch / 2
    return false
  end
  local function go_on()
    local answer = planned:wait()
    local is_better = gains(answer)
    if is_better then best = answer end
    planned = not ends(answer, is_better) and begin() or nil
    if not planned then best.text = best.text .. of_update(run) end
  end
  return waits_for(function() return planned end, go_on, function() return best end)
end

-- Whether pipelines of sharding programs are worth trying after the planner's answer: where what follows from it, such
-- as plans for losses, needs no layer times of such programs.
local function tries_programs(given)
  return (given.policy or "auto") == "auto" and (given.objective or "time") == "time"
    and not given.profile and not given.old and not given.fallbacks and not given.quick
    and not text.contains(given.without or {}, programs)
end

-- Sizes of micro-batches that divide the batch: the plan's, and the batch or also its halves.
local function sizes_of(batch, planned, most)
  local sizes, size = { planned }, batch
  while size >= 1 and #sizes < most do
    if size ~= planned then sizes[#sizes + 1] = size end
    if size % 2 ~= 0 then break end
    size = size / 2
  end
  table.sort(sizes, function(a, b) return a > b end)
  return sizes
end

-- A sharding program for all devices, beside the planner's answer; or pipelines whose stages run such programs.
local function begin_programs(run, cluster, answer, pipelines, rival_seconds)
  local plan = planning.from_lua(answer.lua)
  local batch, graphs = run.arguments.batch, {}
  for i, size in ipairs(sizes_of(batch, plan.microbatch, pipelines and 8 or 2)) do
    graphs[i] = { size, run:graph_for_search(size) }
  end
  return native.sharded_stages(graphs, { cluster = cluster, batch = batch, plan = plan, pipelines = pipelines,
    rival_seconds = rival_seconds })
end

-- What both found together.
local function joined(found, more)
  for _, candidate in ipairs(more.candidates) do found.candidates[#found.candidates + 1] = candidate end
  if more.step_seconds and (not found.step_seconds or more.step_seconds < found.step_seconds) then
    found.name, found.step_seconds, found.lua, found.text = more.name, more.step_seconds, more.lua, more.text
  end
  return found
end

--- A step of a plan from the programs of all its ranks; with events when a page or a trace is wanted, and with other
-- links unless `given.spread` is false.
function planning.simulated_programs(run, cluster, plan, given)
  local answer = native.simulate_programs((run:graph_of_sample(plan.microbatch)),
    { cluster = cluster, plan = plan, events = given.html ~= nil or given.trace ~= nil, spread = given.spread })
  answer.model.name = planning.name_of(run)
  return answer
end

--- Seconds of a step as an answer of the planner's predicts them; nil where there is no answer, or nothing fits.
function planning.step_seconds(answer)
  return answer and (answer.step_seconds or answer.feasible and answer.report.step_seconds) or nil
end

-- The planner's answer, or the plan of sharding programs where it is faster by more than simulations differ: than the
-- pipelines by their programs, and than what is said of them, layer by layer. The answer is of the plan that is taken;
-- what was said of the pipelines stands beside.
local function better_of(run, cluster, answer, found)
  if found.rival_seconds == 0 then return answer end
  answer.programs, found.text = found, nil
  local function simulated(lua)
    return planning.simulated_programs(run, cluster, (planning.from_lua(lua)), { spread = false })
  end
  local optimizer, by_programs, taken = run.arguments.optimizer, found.rival_seconds, nil
  found.rival_seconds = planning.step_seconds(answer)
  if optimizer:for_search() ~= optimizer and found.lua then   -- the search took another update (Run:graph_for_search)
    taken, by_programs = simulated(found.lua), simulated(answer.lua).report.step_seconds
    found.step_seconds = taken.report.step_seconds
  end
  if not found.step_seconds or found.step_seconds > 0.98 * math.min(by_programs, found.rival_seconds) then
    return answer
  end
  taken = taken or simulated(found.lua)
  local searched = ("\n" .. answer.text):gsub("\nstep ", "\nlayer by layer: step ", 1):sub(2)
  answer.text = ("a sharding program: %s\n%sthe best pipelines take %s, %.2f times as long; what the search says of "
    .. "them:\n%s"):format(found.name, taken.text, native.show_seconds(found.rival_seconds),
    found.rival_seconds / found.step_seconds, searched)
  answer.pipelines_lua, answer.pipelines_report = answer.lua, answer.report
  answer.lua, answer.plan, answer.report = found.lua, taken.plan, taken.report
  answer.step_seconds = found.step_seconds
  answer.cheaper = nil   -- beside the pipelines
  return answer
end

--- Begin to look for the best plan of a run on a cluster, in a thread beside this one; a policy that is a function is
-- asked at once.
-- @tparam table given `policy`, `objective`, `without` (names), `profile`, `old` (a plan), `near`, `fallbacks`,
-- `cheaper` (also look for a part of the cluster that is nearly as fast and much cheaper); and
-- `html` or `trace` when events are wanted; `quick`: others wait, so no sharding programs are tried; `gentle`: it
-- leaves the cores to others most of the time. `phase` is set to what is done, as a sentence, where that takes long
-- @treturn function that waits for it and returns what native.plan gives: feasible, problems, text, lua, plan, report,
-- cluster, events; cheaper (text, devices, step_seconds, speed, price, by_price, plan, lua); programs (what
-- native.sharded_stages found, and as rival_seconds what is said of the pipelines); where `lua` is such a plan, its
-- step_seconds, from the programs of all ranks, and pipelines_lua and pipelines_report, of the pipelines; fallbacks (of
-- each lost, devices, feasible, problems, lua, plan, report) and fallbacks_text
-- @treturn function that waits a moment, or as many seconds as it is given, and returns whether the first one returns
-- at once
-- @treturn function that returns the thread under way, with `:hurry()`, which ends `gentle`, and `:give_up()`; nil
-- when all is done
function planning.begin(run, cluster, given)
  if given.policy == "hap" then return begin_hap(run, cluster, given) end
  local graph, request = planning.request_of(run, cluster, given)
  if type(given.policy) == "function" then
    local answer = require("het.plan.policy").answer(given.policy, graph, request)
    return function() return answer end, function() return true end, function() end
  end
  -- One after the other, each in its thread: the planner, a sharding program for all devices, and where that cuts
  -- state, pipelines of such programs.
  local planned, answer, found = native.plan(graph, request), nil, nil
  local function go_on()
    if not answer then
      answer = planned:wait()
      planned = answer.feasible and tries_programs(given) and begin_programs(run, cluster, answer) or nil
      given.phase = planned and ("a plan takes %s a step; sharding programs are tried beside it (--without=%s leaves "
        .. "them out)"):format(native.show_seconds(planning.step_seconds(answer)), programs)
    elseif not found then
      found = planned:wait()
      planned = found.cuts_state and begin_programs(run, cluster, answer, true, found.rival_seconds) or nil
    else
      found, planned = joined(found, planned:wait()), nil
    end
    if not planned and found then answer, found = better_of(run, cluster, answer, found), nil end
  end
  return waits_for(function() return planned end, go_on, function() return answer end)
end

-- Lines of Lua, each that is not the first indented.
local function indented(lines, by) return (lines:gsub("\n", "\n" .. by)) end

--- A plan and its fallbacks as a Lua expression: the plan alone, or with fallbacks { plan =, fallbacks = {{ lost =,
-- plan = or problems = }} }.
function planning.to_lua(answer)
  if not answer.fallbacks then return answer.lua end
  local lines = { "{ plan = " .. indented(answer.lua, "  ") .. ",", "  fallbacks = {" }
  for _, fallback in ipairs(answer.fallbacks) do
    local what
    if fallback.feasible then
      what = "plan = " .. indented(fallback.lua, "      ")
    else
      local problems = {}
      for i, problem in ipairs(fallback.problems) do problems[i] = ("%q"):format(problem) end
      what = "problems = { " .. table.concat(problems, ", ") .. " }"
    end
    lines[#lines + 1] = ("    { lost = %q, %s },"):format(fallback.lost, what)
  end
  lines[#lines + 1] = "  } }"
  return table.concat(lines, "\n")
end

--- The het.plan that planning.to_lua wrote, and its fallbacks: a list of { lost =, plan = or problems = }.
function planning.from_lua(written)
  local het = require "het"
  local chunk = setfenv(assert(loadstring("local het = ...\nreturn " .. written, "=plan")), {})
  local value = chunk(het)
  if define.kind_of(value) == "plan" then return value, {} end
  return value.plan, value.fallbacks
end

--- The device group that an event of a step is on, from 1: interleaved stages take turns on theirs.
function planning.group_of(plan, event)
  return (event.stage - 1) % (#plan.pipelines[event.pipeline].stages / plan.chunks) + 1
end

--- The kinds of events that are on links.
planning.on_wire = { send = true, reduce = true, gather = true, exchange = true }

--- An answer for people, without the plan as Lua.
function planning.text_of(answer)
  local words = answer.text .. (answer.cheaper and answer.cheaper.text or "")
  if not answer.fallbacks then return words end
  return words .. "fallbacks:\n"
    .. (answer.fallbacks_text ~= "" and answer.fallbacks_text or "none: nothing is left after any loss\n")
end

return planning
