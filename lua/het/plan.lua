--- `het.plan`: who computes what, as plain data that prints as it is written. This build runs plans of one device; a
-- plan that spreads the model is understood and refused with that reason when a run begins.
local define = require "het.define"
local errors = require "het.errors"

local plan = {}

local Plan = { kind = "plan" }
Plan.__index = Plan
local Pipeline = { kind = "pipeline" }
Pipeline.__index = Pipeline
local Stage = { kind = "stage" }
Stage.__index = Stage

Stage.__tostring = function(self)
  local parts = {}
  for _, device in ipairs(self.devices) do parts[#parts + 1] = ("%q"):format(device) end
  if self.layers then parts[#parts + 1] = ("layers = %d"):format(self.layers) end
  if self.recompute then parts[#parts + 1] = "recompute = true" end
  return ("het.stage { %s }"):format(table.concat(parts, ", "))
end

Pipeline.__tostring = function(self)
  local parts = { ("microbatches = %d"):format(self.microbatches) }
  for _, stage in ipairs(self.stages) do parts[#parts + 1] = tostring(stage) end
  return ("het.pipeline { %s }"):format(table.concat(parts, ", "))
end

Plan.__tostring = function(self)
  local parts = { ("tensor = %d, microbatch = %d"):format(self.tensor, self.microbatch or 0) }
  for _, pipeline in ipairs(self.pipelines) do parts[#parts + 1] = "\n  " .. tostring(pipeline) end
  return ("het.plan { %s }"):format(table.concat(parts, ","))
end

plan.stage = define.constructor {
  name = "stage",
  sentence = "A part of a pipeline: a range of layers on one device, or on several that share each layer.",
  example = 'het.stage { "here:0", layers = 6 }',
  list = { "string", "devices", least = 1 },
  fields = {
    { "layers", "integer", "how many of the model's layers (default: all)", min = 1 },
    { "recompute", "boolean", "compute activations again in the backward pass instead of keeping them",
      default = false },
  },
  build = function(a)
    local stage = setmetatable({ devices = {}, layers = a.layers, recompute = a.recompute }, Stage)
    for i = 1, #a do stage.devices[i] = a[i] end
    return stage
  end,
}

plan.pipeline = define.constructor {
  name = "pipeline",
  sentence = "Stages in a row that pass micro-batches on.",
  example = 'het.pipeline { microbatches = 4, het.stage { "here:0" } }',
  list = { "stage", "stages", least = 1 },
  fields = { { "microbatches", "integer", "micro-batches of a step", default = 1, min = 1 } },
  build = function(a)
    local pipeline = setmetatable({ microbatches = a.microbatches, stages = {} }, Pipeline)
    for i = 1, #a do pipeline.stages[i] = a[i] end
    return pipeline
  end,
}

local make = define.constructor {
  name = "plan",
  sentence = "Who computes what: pipelines of stages. This build runs plans of one device.",
  example = 'het.plan { microbatch = 4, het.pipeline { microbatches = 3, het.stage { "here:0" } } }',
  list = { "pipeline", "pipelines", least = 1 },
  fields = {
    { "tensor", "integer", "devices that share each layer", default = 1, min = 1 },
    { "microbatch", "integer", "samples of a micro-batch", min = 1 },
  },
  build = function(a)
    local result = setmetatable({ tensor = a.tensor, microbatch = a.microbatch, pipelines = {} }, Plan)
    for i = 1, #a do result.pipelines[i] = a[i] end
    return result
  end,
}

--- Refuse what this build cannot run; returns the samples of a micro-batch that the plan asks for, or nil.
function plan.single_device(given)
  if not given then return nil end
  local devices = 0
  for _, pipeline in ipairs(given.pipelines) do
    for _, stage in ipairs(pipeline.stages) do devices = devices + #stage.devices end
  end
  if devices ~= 1 or given.tensor ~= 1 then
    errors.usage("the plan spreads the model over %d devices; this build runs plans of one device:\n%s", devices,
      tostring(given))
  end
  if given.pipelines[1].stages[1].recompute then
    errors.usage("the plan asks for recompute; this build keeps all activations. A smaller micro-batch saves memory "
      .. "too")
  end
  return given.microbatch
end

plan.new = make
return plan
