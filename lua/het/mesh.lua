--- `het.mesh`: the ranks of a run in a grid with named axes, tensors that lie over it, and gradients of functions of
-- such tensors. What runs there is core/mesh.
local native = require "het.native"
local custom = require "het.op.custom"
local define = require "het.language.define"
local errors = require "het.errors"
local plan = require "het.plan"
local text = require "het.text"

local mesh = {}

-- The other ranks of this process' run; false: there are none.
local cluster

-- Ranks by the names of their devices, and the names in the order of the ranks: as the first mesh that has names gives
-- them. nil: none has.
local rank_of, device_names

--- The ranks that run the same lines as this one; nil where it is alone. All of them call it at the same place.
function mesh.session()
  if cluster == nil then
    local settings = native.settings or {}
    local device = settings.device ~= "" and settings.device or "cpu"
    cluster = native.join {
      run = "mesh", rendezvous = settings.rendezvous, interface = settings.interface,
      secret_file = settings.secret_file, timeout = settings.timeout, warn_after = settings.warn_after,
      recipe = "mesh " .. (rawget(require "het", "recipe_text") or "prompt"), device = device,
      memory = native.device(device):available_bytes(),
    } or false
  end
  return cluster or nil
end

--- Has this process made a mesh?
function mesh.used() return cluster ~= nil end

--- Leave the other ranks in good order; they may go on.
function mesh.leave()
  if cluster then
    cluster:finish("the end of its lines")   -- whoever still waits for this rank learns why
    cluster:leave()
  end
  cluster, rank_of, device_names = nil, nil, nil
end

-- Fields of het.mesh that are no axes.
local settings_of_mesh = { ranks = true, devices = true, pace = true }

-- Names and sizes of the axes, in order.
local function axes_of(spec)
  local names, sizes = {}, {}
  local function add(name, size)
    if type(name) ~= "string" then
      errors.usage('het.mesh: an axis has a name and a number of ranks, as in het.mesh { data = 2 } or het.mesh { '
        .. '{ "model", 2 }, { "data", 2 } }')
    end
    local meant = type(size) == "table" and native.nearest(name, text.keys(settings_of_mesh))
    if meant then errors.usage("het.mesh has no field '%s'; did you mean '%s'?", name, meant) end
    if type(size) == "table" then
      errors.usage('het.mesh: %s is a number of ranks, as in het.mesh { %s = 2 }; devices = { "a:0-1" } names them',
        name, name)
    end
    names[#names + 1] = name
    sizes[#sizes + 1] = define.expect("het.mesh: " .. name, size, "integer")
  end
  for _, each in ipairs(spec) do
    if type(each) ~= "table" then add(nil) end
    add(each[1], each[2])
  end
  local listed = #names
  for _, name in ipairs(text.keys(spec)) do
    if type(name) == "string" and not settings_of_mesh[name] then
      if listed > 0 then errors.usage("het.mesh: axes are a list, or named; %s is beside a list", name) end
      add(name, spec[name])
    end
  end
  if #names > 2 then errors.usage("het.mesh: %d axes; a mesh has 1 or 2", #names) end
  if #names == 0 then errors.usage("het.mesh: an axis at least is needed, as in het.mesh { model = 2 }") end
  if names[1] == names[2] then errors.usage("het.mesh: two axes are called %s", names[1]) end
  return names, sizes
end

-- A list of `wanted`, or nil.
local function list_of(spec, field, wanted, example)
  local list = spec[field]
  if list == nil then return nil end
  local ok = type(list) == "table" and #list > 0
  for _, each in ipairs(ok and list or {}) do
    ok = ok and type(each) == wanted and (wanted ~= "number" or each == math.floor(each))
  end
  if not ok then
    errors.usage("het.mesh: %s is a list of %s, as in %s = %s", field, wanted == "number" and "ranks" or "devices",
      field, example)
  end
  return list
end

-- Names of devices by place, and the rank that each is: of the first mesh that has names its own order, as of a plan.
local function devices_of(spec, places)
  local given = list_of(spec, "devices", "string", '{ "a:0-1", "b:0-1" }')
  if not given then return nil, list_of(spec, "ranks", "number", "{ 1, 0 }") end
  if spec.ranks then errors.usage "het.mesh: devices and ranks both say who is at each place; give one of them" end
  local devices, problem = plan.expand_devices(given)
  if problem then errors.usage("het.mesh: devices: %s", problem) end
  if #devices ~= places then
    errors.usage("het.mesh: %s for %s", text.plural(#devices, "device"), text.plural(places, "place"))
  end
  local by_name, ranks = rank_of or {}, {}
  for place, device in ipairs(devices) do
    if not rank_of then
      if by_name[device] then errors.usage("het.mesh: devices names %s twice", device) end
      by_name[device] = place - 1
    end
    ranks[place] = by_name[device] or errors.usage("het.mesh: no rank of this run is %s; they are %s", device,
      table.concat(device_names, ", "))
  end
  return devices, ranks, by_name
end

-- What slows a mesh down to devices of a cluster: what this rank computes on, and links between all ranks.
local function paced(description, devices, rank)
  if define.kind_of(description) ~= "cluster" then
    errors.usage("het.mesh: pace = %s; a het.cluster { ... } is needed", text.value(description))
  end
  if not devices then
    errors.usage 'het.mesh: pace needs devices: which of the cluster each rank is, as in devices = { "a:0-1", "b:0-1" }'
  end
  local pace = native.pace(description, devices)
  return native.device("cpu", pace.devices[rank + 1]), pace.links
end

mesh.new = define.object({
  name = "mesh",
  signature = 'het.mesh { axis = ranks, ... [, devices = { "a:0-1", ... }] [, pace = cluster] [, ranks = { 1, 0 }] }',
  example = "local mesh = het.mesh { data = 2, model = 2 }",
  sentence = "The ranks of this run as a grid; every rank makes it alike. Axes count in alphabetical order, the last "
    .. 'one fastest; { "model", 2 }, { "data", 2 } is an order of your own. `devices` names who is at each place, '
    .. "as in plans; the first mesh that has names gives them to the ranks, in its order, and later ones mean the same "
    .. "ranks by them. `pace` runs each rank as slowly as its device in this cluster, over links as slow. `ranks` says "
    .. "by numbers who is at each place. Tensors lie over it by tensor:shard.",
  members = {
    { "rank", "mesh.rank", "This process' number in the run, from 0." },
    { "size", "mesh.size", "How many ranks it has." },
    { "axes", "mesh.axes", "The number of ranks along each axis, by name." },
    { "devices", "mesh.devices", "The names of its devices, by place; nil where it has none." },
    { "coordinate", "mesh:coordinate(axis)", "Where this rank is along an axis, from 0.",
      example = 'mesh:coordinate "model"' },
    { "all_reduce", "mesh:all_reduce(tensor, axis [, \"max\"])", "The sum of the tensors of all ranks along the axis, "
      .. "or their largest elements.", example = 'mesh:all_reduce(t, "model")' },
    { "all_gather", "mesh:all_gather(tensor, axis, dim)", "The tensors of all ranks joined along a dimension, in which "
      .. "their sizes may differ.", example = 'mesh:all_gather(t, "data", 0)' },
    { "reduce_scatter", "mesh:reduce_scatter(tensor, axis, dim [, shares])", "This rank's part of the sum, cut along a "
      .. "dimension.", example = 'mesh:reduce_scatter(t, "model", 0, { 3, 1 })' },
    { "all_to_all", "mesh:all_to_all(tensor, axis, split, join)", "Each rank's tensor is cut along `split`, one part "
      .. "for each rank; those for this rank are joined along `join`.", example = 'mesh:all_to_all(t, "data", 0, 1)' },
    { "broadcast", "mesh:broadcast(tensor, axis, from)", "The tensor of the rank at coordinate `from`, on all.",
      example = 'mesh:broadcast(t, "model", 0)' },
    { "transfer", "mesh:transfer(tensor, axis, from, to)", "The tensor of the rank at `from`, on the rank at `to`; nil "
      .. "elsewhere.", example = 'mesh:transfer(t, "model", 0, 1)' },
    { "time", "mesh:time(f)", "Seconds that f() takes, until the last rank has done it.",
      example = "mesh:time(function() op.linear(x, w) end)" },
    { "barrier", "mesh:barrier()", "Returns when all ranks have come to it." },
  },
}, function(spec)
  if type(spec) ~= "table" then
    errors.usage("het.mesh takes a table, as in het.mesh { data = 2, model = 2 }; it was given %s", text.value(spec))
  end
  local names, sizes = axes_of(spec)
  local places = 1
  for _, size in ipairs(sizes) do places = places * size end
  local devices, ranks, by_name = devices_of(spec, places)
  local session = mesh.session()
  local request = { axes = names, sizes = sizes, ranks = ranks, devices = devices }
  local by_rank = device_names or devices
  if spec.pace ~= nil and (not session or places == session:size()) then
    request.device, request.links = paced(spec.pace, devices and by_rank, session and session:rank() or 0)
  end
  local made = native.mesh(session, request)
  if devices then rank_of, device_names = by_name, by_rank end
  return made
end)

define.object {
  name = "distributed", kind = "distributed tensor",
  sentence = "A tensor that lies over a mesh, as tensor:shard and operators return it. + - * / and het.op work on it "
    .. "as on any tensor, with plain ones beside it too; printing gathers it.",
  members = {
    { "shape", "distributed.shape", "Sizes of the whole tensor." },
    { "dtype", "distributed.dtype", 'What its numbers are: "f32", "bf16", ...' },
    { "mesh", "distributed.mesh", "The mesh." },
    { "placements", "distributed.placements", "How it lies along each axis: a dimension that is cut, with its shares; "
      .. "replicated; or partial, a summand on each rank." },
    { "redistribute", "distributed:redistribute([mesh,] { axis = dim, ... })", "The same tensor lying otherwise.",
      example = "y:redistribute { data = 1 }" },
    { "gather", "distributed:gather()", "All of it on every rank, a plain tensor." },
    { "local_part", "distributed:local_part()", "A copy of what this rank has." },
    { "item", "distributed:item()", "The number, of a tensor that holds one." },
    { "numel", "distributed:numel()", "How many numbers the whole tensor holds." },
  },
}

mesh.explain = define.document({
  name = "explain", signature = "het.explain(x)", example = "print(het.explain(y))",
  sentence = "How a distributed tensor was made: how each operator was cut along each axis, and what travelled for it, "
    .. "with bytes.",
}, function(x)
  if type(x) ~= "userdata" or getmetatable(x) ~= "distributed tensor" then
    errors.usage("het.explain: %s was given; a distributed tensor is needed, as tensor:shard and operators on one "
      .. "return it", text.value(x))
  end
  return native.explain(x)
end)

-- The gradients of f(...), and f(...); `name` of the function that a recipe called.
local function gradients(name, f, ...)
  if type(f) ~= "function" then errors.usage("%s: a function comes first; it was given %s", name, text.value(f)) end
  local count, given = select("#", ...), { ... }
  if count == 0 then errors.usage("%s: the tensors to differentiate by follow the function", name) end
  local graph, values = native.graph(), {}
  graph:capture()
  for i = 1, count do
    local ok, dtype, shape = pcall(function() return given[i].dtype, given[i].shape end)
    if not ok or type(dtype) ~= "string" then
      errors.usage("%s: argument %d of the function is %s; a tensor is needed", name, i, text.value(given[i]))
    end
    values[i] = graph:input("argument " .. i, dtype, shape)
  end
  local records, y = custom.recorded(f, unpack(values, 1, count))
  if type(y) ~= "userdata" or getmetatable(y) ~= "value" then
    errors.usage("%s: the function returned %s; it returns a single number, made of its arguments", name,
      type(y) == "userdata" and "a tensor" or text.value(y))
  end
  local elements, sizes = 1, y.shape
  for _, size in ipairs(sizes) do elements = elements * size end
  if elements ~= 1 then
    errors.usage("%s: the function returned %s; a gradient is of a single number, such as op.sum or op.mean of it",
      name, y.dtype .. text.shape(sizes))
  end
  if #sizes > 0 then y = require("het.op").reshape(y, { shape = {} }) end
  local found = graph:gradients(y, values, records)
  local wanted, like = { y }, { 0 }
  for i = 1, count do
    if found[i] then wanted[#wanted + 1], like[#like + 1] = found[i], i end
  end
  local made = native.run_on_mesh(graph, given, values, wanted, like)
  local results = {}
  for w = 2, #made do results[like[w]] = made[w] end
  results[count + 1] = made[1]
  return unpack(results, 1, count + 1)
end

mesh.gradient = define.document({
  name = "gradient", signature = "het.gradient(f, x, ...)",
  example = "local dx, dw, y = het.gradient(function(x, w) return op.mean(op.linear(x, w)) end, x, w)",
  sentence = "The gradients of f(x, ...), a single number, with respect to each argument, and then the number. f is "
    .. "called once, on values of a graph: it may not look at their numbers. Other tensors that it uses are constants. "
    .. "Gradients lie as the arguments do; one that has none, such as of token ids, is nil.",
}, function(f, ...) return gradients("het.gradient", f, ...) end)

mesh.grad = define.document({
  name = "grad", signature = "het.grad(f)",
  example = "local slope = het.grad(function(x) return op.sum(op.square(x)) end)",
  sentence = "The gradient of f as a function: het.grad(f)(x, ...) returns the gradients of the number f(x, ...) with "
    .. "respect to each argument, as het.gradient does.",
}, function(f)
  if type(f) ~= "function" then errors.usage("het.grad: a function is needed; it was given %s", text.value(f)) end
  return function(...)
    local count = select("#", ...)
    return unpack({ gradients("het.grad", f, ...) }, 1, count)
  end
end)

return mesh
