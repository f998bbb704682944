--- The default of het.train's `on_change`: who waits to join comes in at once where that pays for itself; and the plan
-- for the ranks that are there.
local define = require "het.language.define"
local errors = require "het.errors"
local fault = require "het.train.fault"
local native = require "het.native"
local plan = require "het.plan"
local planning = require "het.plan.command"
local together = require "het.train.together"

-- A change costs all ranks some time. One that takes longer than what is left of the run gains nothing.
local function pays(change)
  if not change.seconds_left or not change.change_seconds then return true end
  return change.seconds_left > change.change_seconds
end

-- Plannings that a loss cuts off go on: the collector would wait for them.
local function keep(run, is_done)
  run.plannings = run.plannings or {}
  for i = #run.plannings, 1, -1 do
    if run.plannings[i]() then table.remove(run.plannings, i) end
  end
  table.insert(run.plannings, is_done)
end

-- The planner's, for these ranks.
local function planned(run, ranks)
  local a = run.arguments
  local wanted = setmetatable({ quick = true }, { __index = (a.plan.automatic and a.plan or plan.auto {}).automatic })
  local wait, is_done = planning.begin(run, run.cluster_here, wanted)
  keep(run, is_done)
  while not is_done() or fault.is_held "plan" do together.wait(run) end
  local answer = wait()
  if not answer.feasible then
    errors.usage("no plan fits the %d ranks that are left:\n  %s", ranks, table.concat(answer.problems, "\n  "))
  end
  if not native.settings.quiet then native.write("stderr", planning.text_of(answer)) end
  local found, fallbacks = planning.from_lua(planning.to_lua(answer))
  -- A rank that the fastest plan leaves out has nothing to do; replicas use all of them.
  if #plan.devices(found) ~= ranks then found = plan.replicas(ranks, a.batch, a.microbatch) end
  run.found = { plan = plan.resolve(found, a.batch), fallbacks = fallbacks }
  return found
end

return function(run, change)
  if define.kind_of(run) ~= "run" or type(change) ~= "table" or type(change.ranks) ~= "number" then
    errors.usage("het.policy.on_change takes the run and the change that on_change was given")
  end
  if change.kind == "waiting" then return pays(change) end
  return plan.given_for(run.arguments, change.ranks) or planned(run, change.ranks)
end
