--- The default of het.train's `on_change`: who waits to join comes in at once where that pays for itself; and the plan
-- for the ranks that are there.
local ahead = require "het.train.ahead"
local define = require "het.language.define"
local errors = require "het.errors"
local fault = require "het.train.fault"
local native = require "het.native"
local plan = require "het.plan"
local planning = require "het.plan.planning"
local together = require "het.train.together"

local margin = 2   -- times what the last change took: the next one may take longer

-- A change costs all ranks some time. What faster steps gain counts until the next loss, or the end of the run.
local function pays(change)
  local old, new = change.step_seconds, change.new_step_seconds
  if not change.seconds_left or not change.change_seconds or not new then return true end
  local seconds = math.min(change.seconds_left, change.seconds_between_losses or math.huge)
  return seconds * (1 - new / old) > margin * change.change_seconds
end

-- Plannings that a loss cut off are given up. The collector would wait for them, so they are kept until they end.
local function keep(run, search)
  run.plannings = run.plannings or {}
  for i = #run.plannings, 1, -1 do
    local thread = run.plannings[i].under_way()
    if thread then thread:give_up() end
    if not thread or thread:done(0) then table.remove(run.plannings, i) end
  end
  table.insert(run.plannings, search)
end

-- Has the planner begin.
local function begin(run)
  local a = run.arguments
  local wanted = setmetatable({ quick = true }, { __index = (a.plan.automatic and a.plan or plan.auto {}).automatic })
  local search = {}
  search.wait, search.is_done, search.under_way = planning.begin(run, run.cluster_here, wanted)
  keep(run, search)
  return search
end

-- The planner's, for these ranks.
local function planned(run, change)
  local a, ranks = run.arguments, change.ranks
  local search = change.kind ~= "replan" and ahead.take(run) or begin(run)
  while not search.is_done() or fault.is_held "plan" do together.wait(run) end
  local answer = search.wait()
  if not answer.feasible and change.ends then   -- they may have room for the state alone
    return plan.replicas(ranks, a.batch, a.microbatch)
  elseif not answer.feasible then
    errors.usage("no plan fits the %d ranks that are left:\n  %s", ranks, table.concat(answer.problems, "\n  "))
  end
  local found, fallbacks = planning.from_lua(planning.to_lua(answer))
  if search.renamed then ahead.rename(found, search.renamed) end
  if not search.under_way then   -- made ahead, and kept there
    run.planned_ahead = search.was_done
  else
    ahead.keep(run, answer)
  end
  if not native.settings.quiet then
    native.write("stderr", search.renamed and tostring(found) .. "\n" or planning.text_of(answer))
  end
  -- A rank that the fastest plan leaves out has nothing to do; replicas use all of them.
  if #plan.devices(found) ~= ranks then found = plan.replicas(ranks, a.batch, a.microbatch) end
  run.found = { plan = plan.resolve(found, a.batch), fallbacks = fallbacks }
  return found
end

return function(run, change)
  if define.kind_of(run) ~= "run" or type(change) ~= "table" or type(change.ranks) ~= "number" then
    errors.usage("het.policy.on_change takes the run and the change that on_change was given")
  end
  if change.kind == "waiting" then return ahead.is_ready(run, change.seconds_left) and pays(change) end
  return plan.given_for(run.arguments, change.ranks) or planned(run, change)
end
