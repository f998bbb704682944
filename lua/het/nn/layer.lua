--- What a layer is: a weightless description. It prints as a tree with parameter counts; weights exist only when a
-- run builds it into a graph (or when it is called on tensors at the prompt).
--
-- A class of layers is a definition (see het.language.define) with these fields more:
--
--   parameters  function(a): list of { name, shape, ... } (Builder:parameter)
--   children    function(a): list of { name, layer, residual = }; residual: its result goes where this layer's goes
--   forward     function(self, x, ...): from values to a value. `self` has the arguments, the parameters as
--               values, each child as a function by its name, and `self.builder`
--   pointwise   each position of the sequence is computed alone (or knows the key-value cache); may be function(a)
--   takes_mask  its forward takes a mask as a second value: which tokens are attended to
--   packs       of rows of several examples no token sees those of others (default: as pointwise); may be function(a)
--   flops       function(a, context): FLOPs of forward and backward for one token beyond its matrices' 6 each
--   show        function(a): what stands beside the name in the tree
--
-- A description may have `frozen = true` (its parameters are not trained), and then `adapters` (het.nn.adapter).
local adapter = require "het.nn.adapter"
local builder = require "het.nn.builder"
local define = require "het.language.define"
local errors = require "het.errors"
local handle = require "het.sandbox.handle"
local generate = require "het.model.generate"
local results = require "het.op.results"
local source = require "het.language.source"
local suggest = require "het.language.suggest"
local text = require "het.text"

local layer = {}

local Layer = {}
local methods = {}
Layer.__index = function(self, name)
  local method = methods[name]
  if method ~= nil then return method end
  return self.class[name] or self.arguments[name]
end

local function short_name(class) return class.name:match("[^.]+$") end

local function elements(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

--- Children of a container, named after what they are, numbered from the second of a name: linear, gelu, linear_2.
-- @tparam {layer,...} list
function layer.named(list)
  local used, children = {}, {}
  for i, child in ipairs(list) do
    local name = type(child) == "function" and "function" or short_name(child.class)
    used[name] = (used[name] or 0) + 1
    children[i] = { used[name] == 1 and name or ("%s_%d"):format(name, used[name]), child }
  end
  return children
end

--- The layer's own parameters, each { name, shape, ... }; `frozen` of those that are not trained.
function methods:own_parameters()
  local list = self.class.parameters and self.class.parameters(self.arguments) or {}
  if not self.frozen then return list end
  local copies = {}
  for i, parameter in ipairs(list) do
    copies[i] = { frozen = true }
    for key, value in pairs(parameter) do copies[i][key] = value end
  end
  return self.adapters and adapter.with_parameters(copies, self.adapters) or copies
end

--- A copy of this layer and all inside it: change(copy, path) is called for each.
function methods:copied(change, path)
  local copy = {}
  for key, value in pairs(self) do copy[key] = value end
  copy.store, copy.state, copy.trained, copy.child_list = nil, nil, nil, {}   -- weights belong to the layer before
  for i, child in ipairs(self:children()) do
    local inner = child[2]
    if type(inner) ~= "function" then
      inner = inner:copied(change, (path and path ~= "") and path .. "." .. child[1] or child[1])
    end
    copy.child_list[i] = { child[1], inner, residual = child.residual }
    if child.repeats then copy.child_list[i].repeats = tostring(inner) end
  end
  setmetatable(copy, Layer)
  change(copy, path or "")
  return copy
end

--- Its children, each { name, layer, residual = }.
function methods:children()
  if not self.child_list then
    self.child_list = self.class.children and self.class.children(self.arguments) or {}
  end
  return self.child_list
end

--- Visit this layer and all inside it: visit(layer, path, parent).
function methods:walk(visit, path, parent)
  visit(self, path or "", parent)
  for _, child in ipairs(self:children()) do
    if type(child[2]) ~= "function" then
      child[2]:walk(visit, (path and path ~= "") and path .. "." .. child[1] or child[1], self)
    end
  end
end

--- Number of parameters; tied ones count once.
function methods:count()
  local total = 0
  self:walk(function(inner)
    for _, parameter in ipairs(inner:own_parameters()) do
      if not parameter.tied then total = total + elements(parameter[2]) end
    end
  end)
  return total
end

--- FLOPs of training on one token of a sequence of `context`: 6 for each element of each matrix that multiplies it
-- (2 forward, 4 backward; 4 in all where it is not trained), and what attention does between tokens, 12 · context ·
-- heads · size of a head, halved where it is causal and less with a window. This is the count of PaLM (Chowdhery et
-- al. 2022, appendix B), which does not halve; lookups, norms and recomputation count nothing.
function methods:training_flops(context)
  local total = 0
  self:walk(function(inner)
    local share = inner.class.share and inner.class.share(inner.arguments) or 1
    for _, parameter in ipairs(inner:own_parameters()) do
      if #parameter[2] == 2 and not parameter.lookup then
        total = total + (parameter.frozen and 4 or 6) * share * elements(parameter[2])
      end
    end
    if inner.class.flops then total = total + inner.class.flops(inner.arguments, context) end
  end)
  return total
end

--- Can it go on from a key-value cache? Only when every part works on each position alone or knows the cache.
function methods:is_incremental()
  local able = true
  self:walk(function(inner)
    local pointwise = inner.class.pointwise
    if type(pointwise) == "function" then pointwise = pointwise(inner.arguments) end
    if not pointwise then able = false end
    for _, child in ipairs(inner:children()) do
      if type(child[2]) == "function" then able = false end
    end
  end)
  return able
end

--- Why rows of several examples would not stay apart in it: a sentence; nil where they do.
function methods:why_not_packed()
  local why
  self:walk(function(inner, path)
    local packs = inner.class.packs
    if packs == nil then packs = inner.class.pointwise end
    if type(packs) == "function" then packs = packs(inner.arguments) end
    local where = path == "" and "the model" or ("layer '%s'"):format(path)
    if not packs then
      why = why or ("%s, %s, lets tokens see those of other examples; %s"):format(where, inner.class.name,
        inner.class.own_forward and "if it does not, it needs pointwise = true" or "causal attention does not")
    end
    for _, child in ipairs(inner:children()) do
      if type(child[2]) == "function" then
        why = why or ("%s has '%s', a function, which may let tokens see those of other examples; write it as nn.layer "
          .. "{ pointwise = true, ... }"):format(where, child[1])
      end
    end
  end)
  return why
end

-- The mesh axis of the devices that share a stage's layers.
local mesh_axis = "model"

-- The hint of a recipe for one parameter: { model = 0 }, or { model = "replicated" }.
local function check_hint(class, parameter, given)
  local where = ("%s:shard { %s = ... }"):format(class.name, parameter[1])
  if type(given) ~= "table" then
    errors.usage("%s: it is %s; a mesh axis and a dimension are needed, such as { %s = 0 }", where, text.value(given),
      mesh_axis)
  end
  local hint = {}
  for axis, dim in pairs(given) do
    if axis ~= mesh_axis then
      errors.usage("%s: there is no mesh axis %s; the devices that share a stage's layers are along '%s'", where,
        text.value(axis), mesh_axis)
    end
    local rank = #parameter[2]
    if dim == "replicated" then
      hint[axis] = -1
    elseif type(dim) == "number" and dim == math.floor(dim) and dim >= -rank and dim < rank then
      hint[axis] = dim % rank
    elseif rank == 0 then
      errors.usage("%s: %s = %s; it is a single number, which cannot be cut", where, axis, text.value(dim))
    else
      errors.usage('%s: %s = %s; its shape is %s: a dimension from 0 to %d, or "replicated"', where, axis,
        text.value(dim), text.shape(parameter[2]), rank - 1)
    end
  end
  return hint
end

--- The same layer, whose parameters lie as this says wherever a plan shares the layer among devices.
-- @tparam table given by parameter: { model = dim }
function methods:shard(given)
  local known, names = {}, {}
  for _, parameter in ipairs(self:own_parameters()) do
    known[parameter[1]], names[#names + 1] = parameter, parameter[1]
  end
  if type(given) ~= "table" then
    errors.usage("%s:shard: it was given %s; parameters and how they lie are needed, such as { weight = { %s = 0 } }",
      self.class.name, text.value(given), mesh_axis)
  end
  local hints = {}
  for name, hint in pairs(given) do
    if not known[name] then
      errors.usage("%s:shard: it has no parameter %s%s", self.class.name, text.value(name),
        #names == 0 and "; shard the layers inside it" or suggest.sentence(tostring(name), names))
    end
    hints[name] = check_hint(self.class, known[name], hint)
  end
  local copy = {}
  for key, value in pairs(self) do copy[key] = value end
  for name, hint in pairs(self.hints or {}) do hints[name] = hints[name] or hint end
  copy.hints, copy.store = hints, nil   -- weights that the prompt drew belong to the layer before
  return setmetatable(copy, Layer)
end

-- Layers of the library compute with one value; only a recipe's own take more.
local function check_inputs(inner, where, ...)
  if type(inner) == "function" or inner.class.own_forward then return end
  local count = results.count(...)
  if (count == 1 or count == 2 and inner.class.takes_mask) and (...) ~= nil then return end
  errors.usage("%s%s takes one value%s; it was given %s%s", inner.class.name, where,
    inner.class.takes_mask and " and a mask" or "", count < 2 and "none" or count,
    count < 2 and "" or "; the forward of nn.layer may take more")
end

-- What `forward` sees as self: arguments, then parameters and children under their names.
function methods:bind(context)
  local bound = { builder = context, children = {} }
  local path = context:path()
  for _, parameter in ipairs(self:own_parameters()) do
    bound[parameter[1]] = context:parameter(parameter, path, self.hints)
  end
  local projecting = context.projecting
  for i, child in ipairs(self:children()) do
    local inner, name = child[2], child[1]
    local residual = child.residual == true or (child.residual == "inherit" and projecting)
    local depth = context:depth()
    local function call(...)
      context:unwind(depth)   -- a recipe may have caught what was raised further inside
      if context:path() ~= path then
        errors.usage("the layer '%s' of %s is called outside of its forward", name, path == "" and "the model" or path)
      end
      check_inputs(inner, (", layer '%s' of %s,"):format(name, path == "" and "the model" or path), ...)
      return context:call(inner, name, residual, ...)
    end
    bound.children[i] = call
    if rawget(bound, name) == nil then bound[name] = call end
  end
  return setmetatable(bound, { __index = self })
end

-- In a forward or a loss that is traced, a layer that is none of the model's would be a constant that nothing trains.
-- What run:model() returns is meant as one, and so is a saved model on numbers.
local function check_traced(self, x)
  if not builder.traces or rawget(self, "of_run") then return end
  local folder = rawget(self, "folder")
  if folder and define.accepts("tensor", x) then return end
  errors.usage("%s is called here and is in no `layers` of the model: nothing would train its weights; with nn.layer { "
    .. "layers = { inner = ... }, forward = ... } it is self.inner(x)%s", self.class.name,
    folder and ", and `reference` of het.train is a frozen model for the loss" or "")
end

-- A layer of the recipe's own is called on a value, or on several by name.
local function expect_values(self, first)
  if not self.class.own_forward or type(first) ~= "table" or debug.getmetatable(first) ~= nil then
    return define.expect(self.class.name, first, "value")
  end
  for name, value in pairs(first) do
    define.expect(("%s: the value %s"):format(self.class.name, text.value(name)), value, "value")
  end
end

--- At the prompt a layer is called on tensors: its weights are drawn at the first call and kept; a loaded model
-- has its own. Of a distributed tensor every rank has the weights whole; in het.gradient they are constants.
Layer.__call = function(self, ...)
  expect_values(self, (...))
  check_inputs(self, "", ...)
  check_traced(self, (...))
  if rawget(self, "trained") then
    errors.usage("the weights of a model that was trained are its run's: run:model() is the model with them")
  end
  if not rawget(self, "store") then
    local store = {}
    if rawget(self, "folder") then
      require("het.model.load").set_initial_weights(self.folder, self, {
        set_initial = function(_, name, tensor) store[name] = tensor:read():to("f32") end,
      })
    end
    rawset(self, "store", store)
  end
  return builder.eager(self.store):call(self, nil, false, ...)
end

-- Lines of the tree.
local function describe(self, name, indent, lines)
  local shown = self.class.show and self.class.show(self.arguments) or ""
  local own = self:count()
  if self.adapters then shown = shown .. adapter.show(self.adapters) end
  local left = ("%s%s%s%s"):format(indent, name and name .. ": " or "", short_name(self.class),
    shown ~= "" and " " .. shown or "")
  lines[#lines + 1] = { left, own > 0 and text.grouped(own) or "" }
  local children, i = self:children(), 1
  while i <= #children do
    local child, same = children[i], 1
    -- Equal neighbours (the blocks of a model) are printed once.
    while children[i + same] and children[i + same].repeats and children[i + same].repeats == child.repeats do
      same = same + 1
    end
    local label = same > 1 and ("%s to %s"):format(child[1], children[i + same - 1][1]:match("[^.]+$")) or child[1]
    if type(child[2]) == "function" then lines[#lines + 1] = { indent .. "  " .. label .. ": function", "" }
    else describe(child[2], label, indent .. "  ", lines) end
    i = i + same
  end
end

Layer.__tostring = function(self)
  local lines, widest = {}, 0
  describe(self, nil, "", lines)
  for _, line in ipairs(lines) do widest = math.max(widest, text.width(line[1])) end
  for i, line in ipairs(lines) do
    local gap = (" "):rep(widest - text.width(line[1]))
    lines[i] = line[2] == "" and line[1] or ("%s%s  %s"):format(line[1], gap, line[2])
  end
  return table.concat(lines, "\n")
end

--- A description of a class with these arguments.
function layer.make(class, arguments)
  return setmetatable({ class = class, arguments = arguments, place = source.place() }, Layer)
end

-- What recipes call.
local recipe_methods = {
  generate = generate.from_model,
  count = methods.count, children = methods.children, own_parameters = methods.own_parameters,
  is_incremental = methods.is_incremental, shard = methods.shard,
  training_flops = function(self, context)
    return self:training_flops(define.expect("model:training_flops", context, "number"))
  end,
  walk = function(self, visit)
    define.expect("model:walk", visit, "function")
    self:walk(function(...) visit(handle.export_all(...)) end)
  end,
}

define.object {
  name = "model", kind = "layer",
  sentence = "A model or a layer of one, as the constructors of het.nn and het.load return them: a description, whose "
    .. "weights a run makes. It prints as a tree, and can be called on a tensor.",
  members = {
    { "generate", define.lookup "generate" },
    { "count", "model:count()", "Number of parameters; tied ones count once." },
    { "training_flops", "model:training_flops(context)", "Floating-point operations of training on one token of a "
      .. "sequence of `context`." },
    { "children", "model:children()", "The layers in it: a list of { name, layer }." },
    { "own_parameters", "model:own_parameters()", "Its parameters without those of its children: a list of { name, "
      .. "shape }." },
    { "walk", "model:walk(visit)", "Calls visit(layer, path, parent) for it and all layers in it." },
    { "shard", "model:shard { parameter = { model = dim } }", "The same layer. A plan with `tensor =` cuts its "
      .. "parameters along these dimensions (from 0), or keeps them whole on each device: { model = "
      .. '"replicated" }. The others are cut as Megatron does; the run says what the hints cost.',
      example = "nn.linear(512, 2048):shard { weight = { model = 0 } }" },
    { "is_incremental", "model:is_incremental()", "Whether text is generated with a cache of keys and values." },
    { "arguments", "model.arguments", "What its constructor was given, with defaults: model.arguments.width. Nothing "
      .. "can be set." },
  },
  classes = { Layer }, call = Layer.__call, methods = recipe_methods,
}

--- Define a class of layers; returns its constructor.
function layer.define(class)
  class.kind = "layer"
  class.build = function(arguments) return layer.make(class, arguments) end
  return define.constructor(class)
end

local kinds_of_init = { zeros = true, ones = true, normal = true, uniform = true }
local names_of_parameter = { "init", "trained" }

-- A parameter as a recipe writes it: a shape, and how it begins.
local function check_parameter(layer_name, name, given)
  local where = ("nn.layer '%s': parameters.%s"):format(layer_name, name)
  local ok = type(given) == "table" and #given > 0
  for _, size in ipairs(ok and given or {}) do
    ok = ok and type(size) == "number" and size >= 1 and size == math.floor(size)
  end
  if not ok then
    errors.usage("%s is %s; it needs a shape, such as { 64, 64 }", where,
      type(given) == "userdata" and "a tensor" or text.value(given))
  end
  for _, key in ipairs(text.keys(given)) do
    if type(key) ~= "number" and not text.contains(names_of_parameter, key) then
      errors.usage("%s has no field '%s'%s", where, tostring(key), key == "trainable" and "; `trained` is meant"
        or suggest.sentence(tostring(key), names_of_parameter))
    end
  end
  local init = given.init
  if given.trained ~= nil and type(given.trained) ~= "boolean" then
    errors.usage("%s.trained = %s is not true or false", where, text.value(given.trained))
  end
  if type(init) == "function" then return end
  if define.accepts("tensor", init) then
    if text.shape(init.shape) == text.shape(given) and init.dtype:match "^b?f" then return end
    errors.usage("%s.init is %s; floating-point numbers in the shape %s are needed", where, text.value(init),
      text.shape(given))
  end
  local drawn = type(init) == "table"   -- else a word, or the default
  local kind = drawn and init.kind or init
  if init ~= nil and not (drawn and kinds_of_init[kind] or kind == "zeros" or kind == "ones") then
    errors.usage('%s.init = %s is not one of "zeros", "ones", { kind = "normal", scale = 0.02 }, '
      .. '{ kind = "uniform", scale = 0.1 }, a tensor and a function(shape) that returns one', where, text.value(kind))
  end
  if (kind == "normal" or kind == "uniform") and type(init.scale) ~= "number" then
    errors.usage("%s.init: { kind = \"%s\" } needs its scale, a number", where, kind)
  end
end

-- A layer inside another one as `forward` sees it: it is called, and has nothing else.
local function own_layer(name, call, is_self)
  return setmetatable({}, { __metatable = builder.called,
    __call = function(_, ...)
      if is_self((...)) then
        errors.usage("self:%s(x) gives the layer its self as input; write self.%s(x)", name, name)
      end
      return call(...)
    end,
    __index = function(_, field)
      errors.usage("self.%s is a layer: it is called, self.%s(x), and '%s' of it cannot be read; a weight that is used "
        .. "in several ways is in `parameters` of nn.layer", name, name, tostring(field))
    end,
    __newindex = function() errors.usage("self.%s is a layer; nothing in it can be set", name) end,
  })
end

-- What a recipe's own `forward` gets as self: the parameters as values, each layer as a function by its name, and
-- `builder`.
local function own_self(bound, layer_name, names)
  local own = { builder = handle.of(bound.builder), children = {} }
  for _, name in ipairs(names) do
    local value = bound[name]
    own[name] = type(value) ~= "function" and value
      or own_layer(name, value, function(first) return rawequal(first, own) end)
  end
  for i, child in ipairs(bound.children) do own.children[i] = child end
  return setmetatable(own, { __metatable = "self", __index = function(_, name)
    errors.usage("nn.%s has no '%s'%s", layer_name, tostring(name), suggest.sentence(tostring(name), names))
  end })
end

-- Names that a recipe gives to parameters or layers, sorted.
local function own_names(layer_name, field, given)
  local names = text.keys(given)
  for _, name in ipairs(names) do
    if type(name) ~= "string" or not name:match "^[%a_][%w_]*$" then
      errors.usage("nn.layer '%s': %s has the name %s; names of letters, digits and _ are needed", layer_name, field,
        text.value(name))
    elseif name == "builder" or name == "children" then
      errors.usage("nn.layer '%s': %s has the name %s, under which self has something else; take another name",
        layer_name, field, name)
    end
  end
  return names
end

--- nn.constant(tensor)
layer.constant = define.document({
  name = "nn.constant",
  sentence = "A parameter of nn.layer that is not trained: a mask, or sines of positions, of any size. It is saved "
    .. "with the model, and of two or more dimensions it has the run's precision.",
  signature = "nn.constant(tensor)",
  example = 'nn.layer { name = "masked", parameters = { mask = nn.constant(het.ones { 64 }) }, '
    .. "forward = function(self, x) return x * self.mask end }",
}, function(tensor)
  if not define.accepts("tensor", tensor) or not tensor.dtype:match "^b?f" or #tensor.shape == 0 then
    errors.usage("nn.constant: %s was given; a tensor of floating-point numbers with a dimension or more is needed",
      text.value(tensor))
  end
  local parameter = { unpack(tensor.shape) }
  parameter.init, parameter.trained = tensor, false
  return parameter
end)

--- A layer of your own.
layer.custom = define.constructor {
  name = "nn.layer",
  sentence = "A layer of your own: parameters by name, and a forward function that computes with them.",
  example = 'nn.layer { name = "scaled", parameters = { gain = { 64, init = "ones" } }, ' ..
    "forward = function(self, x) return x * self.gain end }",
  kind = "layer",
  fields = {
    { "name", "string", "what it is called in trees and messages", default = "layer" },
    { "parameters", "table", 'by name: a shape, and init = "zeros", "ones", { kind = "normal", scale = 0.02 }, '
      .. '{ kind = "uniform", scale = 0.1 }, a tensor, or a function(shape) that returns one (default: zeros for one '
      .. 'dimension, else normal as GPT-2 begins); trained = false of one that stays as it begins (nn.constant)',
      default = {} },
    { "layers", "table", "layers inside it by name; in forward each is a function of self", default = {} },
    { "forward", "function", "function(self, x): from values to a value, with het.op and self's parameters; between "
      .. "layers of your own there may be several of both",
      required = true },
    { "pointwise", "boolean", "each token is computed alone: generation may use the cache, and rows may be packed",
      default = false },
  },
  build = function(arguments)
    local parameters, children, names = {}, {}, {}
    for _, name in ipairs(own_names(arguments.name, "parameters", arguments.parameters)) do
      local given = arguments.parameters[name]
      for _, size in ipairs(type(given) == "table" and given or {}) do
        if define.is_unknown(size) then return size end   -- of data with a mistake of its own
      end
      check_parameter(arguments.name, name, given)
      parameters[#parameters + 1], names[#names + 1] = { name, { unpack(given) }, init = given.init,
        frozen = given.trained == false or nil }, name
    end
    for _, name in ipairs(own_names(arguments.name, "layers", arguments.layers)) do
      local inner = arguments.layers[name]
      if arguments.parameters[name] ~= nil then
        errors.usage("nn.layer '%s': '%s' is in parameters and in layers; in forward both would be self.%s",
          arguments.name, name, name)
      end
      if define.is_unknown(inner) then return inner end
      local uncalled = define.uncalled(inner)
      if uncalled or define.kind_of(inner) ~= "layer" and type(inner) ~= "function" then
        errors.usage("nn.layer '%s': layers.%s is %s", arguments.name, name,
          uncalled or text.value(inner) .. "; a layer or a function is needed")
      end
      children[#children + 1], names[#names + 1] = { name, inner }, name
    end
    return layer.make({
      name = "nn." .. arguments.name, pointwise = arguments.pointwise, own_forward = arguments.forward,
      forward = function(self, ...)
        return results.meant(arguments.forward(own_self(self, arguments.name, names), ...))
      end,
      parameters = function() return parameters end, children = function() return children end,
    }, {})
  end,
}

return layer
