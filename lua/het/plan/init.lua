--- `het.plan`: who computes what, as plain data that prints as it is written. Each device of a plan is a rank:
-- a process that runs its part (`hetrun --workers N recipe.lua`).
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local handle = require "het.sandbox.handle"
local text = require "het.text"

local plan = {}

local Plan = {}
Plan.__index = Plan
local Pipeline = {}
Pipeline.__index = Pipeline
local Stage = {}
Stage.__index = Stage

handle.class({ kind = "plan", fields = { "tensor", "sequence", "microbatch", "schedule", "chunks", "warmup",
  "sharded_optimizer", "sharding", "pipelines", "automatic" } }, Plan)
handle.class({ kind = "pipeline", fields = { "microbatches", "stages" } }, Pipeline)
handle.class({ kind = "stage", fields = { "devices", "tensor", "layers", "sharding", "recompute", "optimizer_share" } },
  Stage)

local function show_tensor(tensor)
  return type(tensor) == "table" and "{ " .. table.concat(tensor, ", ") .. " }" or tostring(tensor)
end

local sharding_fields = { "state", "inputs", "nodes" }

-- How an entry of `sharding` is written: 0, "replicated", { dim = 0, segments = { 16, 16, 16 } }.
local function show_cut(cut)
  if type(cut) ~= "table" then return type(cut) == "string" and ("%q"):format(cut) or tostring(cut) end
  if not cut.segments then return tostring(cut.dim) end
  return ("{ dim = %s, segments = { %s } }"):format(tostring(cut.dim), table.concat(cut.segments, ", "))
end

-- A table of axes of a mesh, in the order of their names: { data = 0, model = 1 }.
local function show_axes(axes, show)
  local parts = {}
  for i, axis in ipairs(axes) do parts[i] = ("{ %q, %s }"):format(axis[1], show(axis[2])) end
  if not axes[1] then
    for name, value in pairs(axes) do parts[#parts + 1] = ("%s = %s"):format(name, show(value)) end
    table.sort(parts)
  end
  return ("{ %s }"):format(table.concat(parts, ", "))
end

local function show_sharding(sharding)
  local parts = {}
  if sharding.mesh then parts[1] = "mesh = " .. show_axes(sharding.mesh, show_tensor) end
  for _, field in ipairs(sharding_fields) do
    local entries = {}
    for pattern, cut in pairs(sharding[field] or {}) do
      entries[#entries + 1] = ("[%q] = %s"):format(pattern, sharding.mesh and show_axes(cut, show_cut) or show_cut(cut))
    end
    table.sort(entries)
    if entries[1] then parts[#parts + 1] = ("%s = { %s }"):format(field, table.concat(entries, ", ")) end
  end
  return #parts == 0 and "{}" or ("{ %s }"):format(table.concat(parts, ", "))
end

Stage.__tostring = function(self)
  local parts = {}
  for _, device in ipairs(self.devices) do parts[#parts + 1] = ("%q"):format(device) end
  if self.tensor then parts[#parts + 1] = "tensor = " .. show_tensor(self.tensor) end
  if self.sharding then parts[#parts + 1] = "sharding = " .. show_sharding(self.sharding) end
  if self.layers then parts[#parts + 1] = ("layers = %d"):format(self.layers) end
  if self.recompute then parts[#parts + 1] = "recompute = true" end
  if self.optimizer_share ~= 1 then parts[#parts + 1] = ("optimizer_share = %d"):format(self.optimizer_share) end
  return ("het.stage { %s }"):format(table.concat(parts, ", "))
end

Pipeline.__tostring = function(self)
  local parts = { ("microbatches = %d"):format(self.microbatches) }
  for _, stage in ipairs(self.stages) do parts[#parts + 1] = tostring(stage) end
  return ("het.pipeline { %s }"):format(table.concat(parts, ", "))
end

Plan.__tostring = function(self)
  if self.automatic and self.automatic.policy == "hap" then
    local parts = {}
    if self.automatic.microbatch then parts[1] = ("microbatch = %d"):format(self.automatic.microbatch) end
    if self.automatic.cluster then parts[#parts + 1] = "cluster = " .. tostring(self.automatic.cluster) end
    return #parts == 0 and "het.plan.hap {}" or ("het.plan.hap { %s }"):format(table.concat(parts, ", "))
  end
  if self.automatic then
    local without = {}
    for i, name in ipairs(self.automatic.without or {}) do without[i] = ("%q"):format(name) end
    local policy = self.automatic.policy
    return ("het.plan.auto { policy = %s, objective = %q%s }"):format(
      type(policy) == "function" and "function" or ("%q"):format(policy), self.automatic.objective,
      without[1] and ", without = { " .. table.concat(without, ", ") .. " }" or "")
  end
  local parts = { ("microbatch = %d"):format(self.microbatch or 0) }
  if not (self.sharding and self.sharding.mesh) then  -- which says what `tensor` would
    parts[1] = ("tensor = %s, %s"):format(show_tensor(self.tensor), parts[1])
  end
  if self.schedule ~= "1f1b" then parts[#parts + 1] = (" schedule = %q"):format(self.schedule) end
  if self.chunks ~= 1 then parts[#parts + 1] = (" chunks = %d"):format(self.chunks) end
  if self.sequence then parts[#parts + 1] = " sequence = true" end
  if self.warmup ~= 0 then parts[#parts + 1] = (" warmup = %d"):format(self.warmup) end
  if self.sharded_optimizer then parts[#parts + 1] = " sharded_optimizer = true" end
  if self.unlike_devices then parts[#parts + 1] = " unlike_devices = true" end
  if self.sharding then parts[#parts + 1] = "\n  sharding = " .. show_sharding(self.sharding) end
  for _, pipeline in ipairs(self.pipelines) do parts[#parts + 1] = "\n  " .. tostring(pipeline) end
  return ("het.plan { %s }"):format(table.concat(parts, ","))
end

local most_devices = 65536

--- Names of devices ("a:0-3" is four), and what is wrong with the first that names none, or nil.
-- @tparam {string,...} names
function plan.expand_devices(names)
  local devices = {}
  for _, each in ipairs(names) do
    local name, first, last = each:match("^(.*:)(%d+)%-(%d+)$")
    first, last = tonumber(first), tonumber(last)
    if name and (last < first or last - first >= most_devices) then
      return devices, ("'%s' names no devices, or more than %d"):format(each, most_devices)
    end
    if not name then devices[#devices + 1] = each end
    for device = first or 0, last or -1 do devices[#devices + 1] = name .. device end
  end
  return devices
end

-- A list of shares, of the field `field`.
local function check_shares(where, field, shares, report)
  local none = 0
  for _, share in ipairs(shares) do none = none + (share == 0 and 1 or 0) end
  if none > 0 and none == #shares then
    return report(field, where .. ": all shares are 0; shares are whole numbers from 1 on: { 3, 1 }")
  end
  for i, share in ipairs(shares) do
    if type(share) ~= "number" or share ~= math.floor(share) or share < 1 or share > 2 ^ 53 then
      report(field, ("%s: share %d is %s; shares are whole numbers from 1 on: { 3, 1 }%s"):format(where, i,
        text.value(share), share == 0 and "; leave out a device that has none" or ""))
    end
  end
  for key in pairs(shares) do
    if type(key) ~= "number" then
      report(field, ("%s: %s is no share; shares are a list, in the order of the devices: { 3, 1 }"):format(where,
        text.value(key)))
    end
  end
end

-- `tensor` of a plan or a stage: a degree, or the shares of its devices.
local function check_tensor(constructor, tensor, report)
  if type(tensor) ~= "table" then return end
  if #tensor == 0 then
    report("tensor", constructor .. ".tensor names no share; tensor = 1 is one device for each layer")
  end
  check_shares(constructor .. ".tensor", "tensor", tensor, report)
end

local most_dimensions = 64

local function is_dimension(value)
  return type(value) == "number" and value == math.floor(value) and value >= 0 and value < most_dimensions
end

-- An entry { dim = 0, segments = { 16, 16, 16 } } of `sharding`.
local function check_segments(where, cut, report)
  for key in pairs(cut) do
    if key ~= "dim" and key ~= "segments" then
      report("sharding", ("%s has no field %s; it has dim and segments"):format(where, text.value(key)))
    end
  end
  if cut.segments == nil then return end
  local sound = type(cut.segments) == "table" and #cut.segments > 0
  for _, size in ipairs(sound and cut.segments or {}) do
    sound = sound and type(size) == "number" and size == math.floor(size) and size >= 1 and size < 2 ^ 53
  end
  if not sound then
    report("sharding", ("%s: segments are the sizes of parts along the dimension, as in { 16, 16, 16 }"):format(where))
  end
end

-- What an entry of `sharding` says: how state or an input lies, or the rule of a node.
local function check_entry(where, field, pattern, cut, report)
  local dim = type(cut) == "table" and cut.dim or cut
  if field == "nodes" then
    if type(cut) ~= "string" then
      report("sharding", ('%s: %s is %s; a rule is needed, such as "x dim 1, weight dim 1 -> y partial"'):format(
        where, pattern, text.value(cut)))
    end
  elseif cut ~= "replicated" and not is_dimension(dim) then
    local by_axes = type(cut) == "table" and cut.dim == nil and "; entries by axis need a mesh beside them" or ""
    report("sharding", ('%s: %s is %s; a dimension from 0 on, or "replicated" is needed%s'):format(where, pattern,
      text.value(cut), by_axes))
  elseif type(cut) == "table" then
    check_segments(("%s: %s"):format(where, pattern), cut, report)
  end
end

-- The axes of a mesh: { data = 2, model = { 3, 1 } }, or { { "model", 2 }, { "data", 2 } }. Names are words of Lua.
local function is_axis_name(name)
  return type(name) == "string" and name:find("^[%a_][%w_]*$") ~= nil and loadstring("local " .. name) ~= nil
end

-- `mesh` of `sharding`: returns the names of its axes, sorted; nil if it has none, or none that is sound.
local function check_mesh(constructor, mesh, report)
  if mesh == nil then return end
  local axes, sound = {}, true
  local function refuse(what, instead)
    report("sharding", ("%s.sharding.mesh %s; %s"):format(constructor, what, instead))
    sound = false
  end
  local form = "a mesh is axes and their sizes, as in { data = 2, model = { 3, 1 } }"
  if type(mesh) ~= "table" then return refuse("is " .. text.value(mesh), form) end
  for key, size in pairs(mesh) do
    local name = key
    if type(key) == "number" then
      name, size = type(size) == "table" and size[1], type(size) == "table" and size[2]
    end
    if (type(key) == "number") ~= (mesh[1] ~= nil) or not name then
      return refuse("has an axis without a name", form .. ', or { { "model", 2 }, { "data", 2 } }')
    elseif not is_axis_name(name) then
      refuse("has an axis called " .. text.value(name), "a name is a word, such as data")
    elseif axes[name] then
      refuse("has two axes called " .. name, "give each a different name")
    elseif type(size) == "table" and #size >= 2 then
      check_shares(("%s.sharding.mesh, axis %s"):format(constructor, name), "sharding", size, report)
    elseif not (type(size) == "number" and size == math.floor(size) and size >= 2) then
      refuse(("has the axis %s with %s"):format(name, text.value(size)),
        "a size is a whole number from 2 on, or shares; an axis of 1 is left out")
    end
    axes[name] = true
    axes[#axes + 1] = name
  end
  if not axes[1] then refuse("has no axis", form) end
  table.sort(axes)
  return sound and axes or nil
end

-- Of a mesh an entry says it for each axis: { data = 0 }.
local function check_axes(where, field, pattern, cuts, axes, report)
  local example = field == "nodes" and '"replicated"' or type(cuts) == "string" and ("%q"):format(cuts) or "0"
  if type(cuts) ~= "table" or next(cuts) == nil then
    report("sharding", ("%s: %s is %s; of a mesh it is said for each axis, as in { %s = %s }"):format(where, pattern,
      text.value(cuts), axes[1], example))
    return
  end
  for axis, cut in pairs(cuts) do
    if not axes[axis] or type(axis) == "number" then
      report("sharding", ("%s: %s names %s, which is no axis of the mesh; it has %s"):format(where, pattern,
        text.value(axis), table.concat(axes, " and ")))
    else
      check_entry(where, field, ("%s along %s"):format(pattern, axis), cut, report)
    end
  end
end

-- `sharding` of a plan or a stage: entries of state, inputs and nodes by pattern.
local function check_sharding(constructor, sharding, report)
  if sharding == nil then return end
  local axes = check_mesh(constructor, sharding.mesh, report)
  for field, entries in pairs(sharding) do
    local known = field == "state" or field == "inputs" or field == "nodes"
    local where = ("%s.sharding.%s"):format(constructor, tostring(field))
    if not known and field ~= "mesh" then
      report("sharding", ("%s.sharding has no field %s; it has mesh, state, inputs and nodes"):format(constructor,
        text.value(field)))
    elseif known and type(entries) ~= "table" then
      report("sharding", ('%s is %s; names are needed, as in { ["blocks.*.mlp.up.weight"] = 0 }'):format(where,
        text.value(entries)))
    end
    for pattern, cut in pairs(known and type(entries) == "table" and entries or {}) do
      if type(pattern) ~= "string" then
        report("sharding", ("%s: %s is no name"):format(where, text.value(pattern)))
      elseif axes then
        check_axes(where, field, pattern, cut, axes, report)
      elseif sharding.mesh == nil then
        check_entry(where, field, pattern, cut, report)
      end
    end
  end
end

local sharding_field = { "sharding", "table", "how layers are cut among the devices of a stage, instead of Megatron's "
  .. 'way: { state = { ["blocks.*.mlp.up.weight"] = 0 }, inputs = { inputs = 0 } } names dimensions. * stands for any '
  .. 'characters; what is not named is replicated. nodes = { ["blocks.*.mlp.down linear"] = "replicated" } names the '
  .. "rules of operators. mesh = { data = 2, model = 2 } lays the devices out along several axes" }

plan.stage = define.constructor {
  name = "stage",
  sentence = "A part of a pipeline: a range of layers on one device, or on several that share each layer.",
  example = 'het.stage { "here:0", layers = 6 }',
  list = { "string", "devices; \"a:0-3\" are four", least = 1 },
  fields = {
    { "layers", "integer", "how many of the model's layers; the embedding and the head are layers, too (default: an "
      .. "equal share of what the other stages leave)", min = 1 },
    { "tensor", "integer|list", "devices that share each of its layers, or their shares (default: the plan's)",
      min = 1 },
    sharding_field,
    { "recompute", "boolean", "compute activations again in the backward pass instead of keeping them",
      default = false },
    { "optimizer_share", "integer", "with sharded_optimizer: how much of a layer's optimizer state lives here, "
      .. "relative to the other stages that hold the layer", default = 1, min = 0 },
  },
  check = function(a, report)
    for i = 1, #a do
      local _, problem = plan.expand_devices { tostring(a[i]) }
      if problem then report(nil, "stage: " .. problem) end
    end
    check_tensor("stage", a.tensor, report)
    check_sharding("stage", a.sharding, report)
  end,
  build = function(a)
    return setmetatable({ devices = (plan.expand_devices(a)), tensor = a.tensor, layers = a.layers,
      sharding = a.sharding, recompute = a.recompute, optimizer_share = a.optimizer_share }, Stage)
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
  sentence = "Which device computes what: pipelines (data-parallel replicas) of stages. Each device is a process: "
    .. "`hetrun --workers N` starts them here.",
  example = "het.plan { microbatch = 4,\n"
    .. '           het.pipeline { microbatches = 3, het.stage { "here:0" }, het.stage { "here:1" } } }',
  list = { "pipeline", "pipelines", least = 1 },
  fields = {
    { "tensor", "integer|list", "devices that share each layer of a stage; its heads and hidden features are cut. "
      .. "{ 3, 1 }: two devices; the first takes three quarters", default = 1, min = 1 },
    sharding_field,
    { "sequence", "boolean", "divide norms, dropout and residuals by tokens over the devices that share a layer: less "
      .. "memory, the same traffic (sequence parallelism)", default = false },
    { "microbatch", "integer", "samples of a micro-batch (default: what divides the batch evenly over the plan)",
      min = 1 },
    { "schedule", "string", "in what order stages run forward and backward passes", default = "1f1b",
      choices = { "1f1b", "gpipe", "interleaved", "split_backward" } },
    { "chunks", "integer", "interleaved: stages on each device (virtual pipeline stages)", default = 1, min = 1 },
    { "warmup", "integer", "1f1b, split_backward: extra forward passes in flight for each later stage, for slow links",
      default = 0, min = 0 },
    { "sharded_optimizer", "boolean", "divide optimizer state, by rows, over the replicas of a layer: each updates its "
      .. "rows and sends them to the others (ZeRO stage 1)", default = false },
    { "unlike_devices", "boolean", "devices of a stage differ in type, and so in the last bits of what they compute: "
      .. "where each would compute a gradient alone, all take the same one, so that copies of parameters stay equal; "
      .. "a run sets it where its devices differ",
      default = false },
  },
  check = function(a, report)
    check_tensor("plan", a.tensor, report)
    check_sharding("plan", a.sharding, report)
  end,
  build = function(a)
    local result = setmetatable({ tensor = a.tensor, sequence = a.sequence, microbatch = a.microbatch,
      schedule = a.schedule, chunks = a.chunks, sharding = a.sharding, warmup = a.warmup,
      sharded_optimizer = a.sharded_optimizer, unlike_devices = a.unlike_devices, pipelines = {} }, Plan)
    for i = 1, #a do result.pipelines[i] = a[i] end
    return result
  end,
}

--- The devices that a plan names, by rank (from 1).
function plan.devices(given)
  local seen, names = {}, {}
  for _, pipeline in ipairs(given.pipelines) do
    for _, stage in ipairs(pipeline.stages) do
      for _, device in ipairs(stage.devices) do
        if not seen[device] then names[#names + 1] = device end
        seen[device] = true
      end
    end
  end
  return names
end

--- `count` replicas of the whole model. They share the batch in micro-batches, as evenly as these allow.
-- @number[opt] microbatch default: the largest that gives every replica one
-- @bool[opt] sharded_optimizer they divide the optimizer's state
function plan.replicas(count, batch, microbatch, sharded_optimizer)
  if count > batch then
    errors.usage("%d ranks share a batch of %d samples; at least one sample for each is needed", count, batch)
  end
  if not microbatch then
    microbatch = math.floor(batch / count)
    while batch % microbatch ~= 0 do microbatch = microbatch - 1 end
  end
  local total = batch / microbatch
  if total < count then
    errors.usage("batch = %d holds %d micro-batches of %d, fewer than the %d ranks; a smaller microbatch helps", batch,
      total, microbatch, count)
  end
  local arguments = { microbatch = microbatch, sharded_optimizer = sharded_optimizer }
  for i = 1, count do
    local own = math.floor(total / count) + (i <= total % count and 1 or 0)
    arguments[i] = plan.pipeline { microbatches = own, plan.stage { ("here:%d"):format(i - 1) } }
  end
  return make(arguments)
end

--- Whether each device of a plan has the whole model.
function plan.are_replicas(given)
  for _, pipeline in ipairs(given.pipelines) do
    if #pipeline.stages > 1 or #pipeline.stages[1].devices > 1 then return false end
  end
  return true
end

--- The plan of a run: with its micro-batch filled in, checked against the batch and against what runs here.
-- @treturn ?table nil when there is none
function plan.resolve(given, batch)
  if not given then return nil end
  local total = 0
  for _, pipeline in ipairs(given.pipelines) do total = total + pipeline.microbatches end
  local resolved = {}
  for key, value in pairs(given) do resolved[key] = value end
  resolved.microbatch = given.microbatch or batch / total
  if resolved.microbatch ~= math.floor(resolved.microbatch) then
    errors.usage("batch = %d is not a multiple of the plan's %d micro-batches; the nearest that are: %s%d", batch,
      total, batch > total and ("%d, "):format(batch - batch % total) or "", batch - batch % total + total)
  end
  if resolved.microbatch * total ~= batch then
    errors.usage("the plan has %s of %s: %d in a step, and batch = %d%s",
      total == 1 and "1 micro-batch" or total .. " micro-batches", text.plural(resolved.microbatch, "sample"),
      resolved.microbatch * total, batch,
      batch % total == 0 and ("; with microbatch = %d they are as many"):format(batch / total) or "")
  end
  return setmetatable(resolved, Plan)
end

--- het.plan.auto { policy = , objective = , cluster = }
plan.auto = define.constructor {
  name = "plan.auto",
  sentence = "The best plan that the planner finds for the run when it starts; rank 0 finds it for all ranks.",
  example = 'plan = het.plan.auto { objective = "time" }',
  fields = {
    { "policy", "string|function", "who looks for it; a function(problem) returns the plan itself", default = "auto",
      choices = { "auto", "autohet", "megatron", "whale", "exhaustive", "search" } },
    { "objective", "string", "what is best", default = "time", choices = { "time", "cost", "progress" } },
    { "cluster", "cluster", "what it may use, device by device a rank (default: the ranks that are there, their "
      .. "machines and links as they are measured)" },
    { "without", "list", "extensions to switch off, of " .. table.concat(native.extensions(), ", ")
      .. ", of policies auto and search, and sharding_programs, of auto" },
    { "profile", "string", "file of measured layer times and links, as `hetrun profile` writes it", path = "read" },
    { "old", "plan", "the plan that ran until now: of plans that are nearly as good the one that moves least of its "
      .. "state is taken" },
    { "near", "number", "with old or fallbacks: the share of the step time that one may take longer if it moves less",
      default = 0.02, min = 0, max = 1 },
    { "fallbacks", "integer", "plans made ahead for as many of the likeliest losses; the run's `fallbacks` is then a "
      .. "list of { lost = \"a\", plan = het.plan { ... } }, or problems instead of a plan", default = 0, min = 0 },
    { "ahead", "integer", "with --elastic: plans made in the background for as many of the likeliest changes, lost "
      .. "machines and ranks and others that join, so that a change finds its plan there", default = 8, min = 0 },
  },
  check = function(a, report)
    for _, problem in ipairs(a.without and require("het.plan.planning").without_problems(a.without, a.policy) or {}) do
      report("without", "plan.auto.without: " .. problem)
    end
    if type(a.policy) == "function" and a.fallbacks > 0 then
      report("fallbacks", "plan.auto.fallbacks are plans of the planner's policies; this policy is a function")
    end
    if a.old and a.old.automatic then
      report("old", "plan.auto.old is what het.plan.auto would find; give the het.plan { ... } that it found")
    end
  end,
  build = function(a) return setmetatable({ automatic = a }, Plan) end,
}

--- het.plan.hap { cluster = , microbatch = }
plan.hap = define.constructor {
  name = "plan.hap",
  sentence = "The sharding program with the least time that is found for the run when it starts, with shares as uneven "
    .. "as the devices, after HAP (Zhang et al. 2024); rank 0 finds it for all ranks.",
  example = "plan = het.plan.hap {}",
  fields = {
    { "cluster", "cluster", "what it may use, device by device a rank (default: the ranks that are there, their "
      .. "machines and links as they are measured)" },
    { "microbatch", "integer", "samples that all devices share at once (default: the batch, or as many as fit)",
      min = 1 },
  },
  build = function(a)
    return setmetatable({ automatic = { policy = "hap", objective = "time", cluster = a.cluster,
      microbatch = a.microbatch, fallbacks = 0 } }, Plan)
  end,
}

--- The plan of a run for so many ranks where no planner is asked: the recipe's where it is for as many; replicas stay
-- replicas, and so are ranks without a plan. nil: the planner's.
-- @tparam table a het.train's arguments
function plan.given_for(a, count)
  if not a.plan then return plan.replicas(count, a.batch, a.microbatch) end
  if a.plan.automatic then return nil end
  local given = plan.resolve(a.plan, a.batch)
  if #plan.devices(given) == count then return given end
  if not plan.are_replicas(given) or a.batch / given.microbatch < count then return nil end
  return plan.replicas(count, a.batch, given.microbatch, given.sharded_optimizer)
end

-- Callable, and with het.plan.auto and het.plan.hap.
plan.new = setmetatable({ auto = plan.auto, hap = plan.hap }, { __call = function(_, ...) return make(...) end })
return plan
