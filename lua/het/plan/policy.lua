--- Planning policies of a recipe: functions that choose a plan in place of the planner.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local handle = require "het.sandbox.handle"
local mistakes = require "het.language.mistakes"
local text = require "het.text"

local policy = {}

local Problem = {}
Problem.__index = Problem

function Problem:simulate(plan)
  if define.kind_of(plan) ~= "plan" or plan.automatic then
    errors.usage("problem:simulate is given %s; het.plan { ... } is needed", text.value(plan))
  end
  local done, answer = pcall(self.simulated, plan)
  if not done then
    local sentence, kind = errors.describe(answer)
    if kind ~= "usage" then error(answer, 0) end
    return nil, sentence
  end
  answer.report.over_bytes = answer.over_bytes
  return answer.report
end

function Problem:find(name)
  name = name or "auto"
  local known = native.policies()
  local problem = define.value_problem({ "name", "string", choices = known }, name)
  if problem then errors.usage("problem:find: %s%s", text.value(name), problem) end
  local answer = self.searched(name)
  if not answer.feasible then return nil, table.concat(answer.problems, "\n") end
  return (require("het.plan.planning").from_lua(answer.lua))
end

define.object {
  name = "problem",
  sentence = "What a policy of a recipe decides from: a function(problem) returns het.plan { ... }, or nil and why "
    .. "there is none.",
  example = 'plan = het.plan.auto { policy = function(problem) return problem:find "megatron" end }',
  members = {
    { "devices", "problem.devices", "A list of { name = \"a:0\", host, type, zone, memory (bytes), flops (a second, in "
      .. "the model's precision) }, in the order of the cluster." },
    { "layers", "problem.layers", "A list of { name, kind, parameters, forward_flops, activation_bytes (kept for the "
      .. "backward), boundary_bytes (sent to the next layer) }, of one sample." },
    { "shared", "problem.shared", "A list of { layers, parameters }: parameters that several layers use, such as a "
      .. "table of tokens that is the classifier. Each of these layers counts them; a stage keeps them once." },
    { "batch", "problem.batch", "Samples of a step." },
    { "precision", "problem.precision", "\"f32\", \"bf16\" or \"f16\"." },
    { "simulate", "problem:simulate(plan)", "A step of the plan as `hetrun simulate --json` reports it: { "
      .. "step_seconds, tokens_per_second, bubble, devices, ... }; `over_bytes` is how much memory a device lacks, nil "
      .. "where the plan fits. nil and why, of a plan that cannot be run." },
    { "find", "problem:find([policy])", "The plan of one of the planner's policies (default: \"auto\"); nil and why, "
      .. "where none fits.", example = 'problem:find "megatron"' },
  },
  classes = { Problem }, methods = Problem,
  show = function(self)
    return ("a step of %s, %s, on %s"):format(text.plural(self.batch, "sample"), text.plural(#self.layers, "layer"),
      text.plural(#self.devices, "device"))
  end,
}

--- Ask a policy for its plan.
-- @tparam function decide function(problem): returns het.plan { ... }, or nil and why there is none
-- @param graph the graph of a micro-batch of one sample
-- @tparam table request as native.simulate takes it
-- @treturn table as native.plan's answer
function policy.answer(decide, graph, request)
  local planning = require "het.plan"
  local function simulated(plan)
    request.plan = planning.resolve(plan, request.batch)
    return native.simulate(graph, request)
  end
  local problem = native.planning_problem(graph, request)
  problem.simulated = simulated
  function problem.searched(name)
    request.policy = name
    return native.plan(graph, request):wait()
  end
  local plan, why = handle.import_all(decide(handle.of(setmetatable(problem, Problem))))
  mistakes.raise()
  if plan == nil then return { feasible = false, problems = { why and tostring(why) or "the policy returned nil" } } end
  if define.kind_of(plan) ~= "plan" or plan.automatic then
    errors.usage("the policy returned %s; het.plan { ... } is needed, or nil and why there is none", text.value(plan))
  end
  local answer = simulated(plan)
  if answer.over_bytes then
    return { feasible = false,
      problems = { ("the policy's plan does not fit: a device lacks %s"):format(text.bytes(answer.over_bytes)) } }
  end
  return answer
end

return policy
