--- Turns descriptions of layers into nodes of a graph (or, at the prompt, into tensors at once). One builder makes one
-- graph; it knows what layers need to know of their surroundings: the precision, whether this is training, where
-- in the sequence the tokens stand, and how weights are drawn.
--
-- Parameters are f32 (the master weights). With precision bf16 a layer gets a bf16 copy of each matrix, made once a
-- step; vectors (biases, weights of norms) stay f32. Training may round this copy stochastically: then the mean of
-- the copies over many steps is the master weight. What is evaluated or writes is one model: the nearest one. Matrices
-- that are not trained are bf16 then, and have no f32 master.
local native = require "het.native"
local define = require "het.language.define"
local op = require "het.op"
local results = require "het.op.results"
local source = require "het.language.source"
local errors = require "het.errors"
local text = require "het.text"

local Builder = {}
Builder.__index = Builder

local builder = {}

--- Whether functions of the recipe are traced now, whose tensors become constants.
builder.traces = false

--- The layer that a reference's parameters are in: a name that no layer of a recipe has.
builder.reference_name = "(reference)"

--- What getmetatable says of self's layers in a forward of the recipe's own.
builder.called = "layer of self"

--- A builder of a graph.
-- @tparam table settings `graph` (made when absent), `precision` ("f32", "bf16", "f16"), `mode` ("train", "evaluate",
-- "generate"), `seed`, `samples` of a step, `rounding` of the weights' copy ("nearest", "stochastic"), `packed` (rows
-- are several examples), and
-- `cache` ({ length = } while generating: tokens that keys and values are kept of); `sequence`: tokens of the sequence
-- that what it gets is a part of (default: it is whole); `in_place_of(builder, name,
-- parameter, shape)`: what layers compute with in place of a parameter
function builder.new(settings)
  return setmetatable({
    graph = settings.graph or native.graph(),
    precision = settings.precision or "f32",
    mode = settings.mode or "train",
    seed = settings.seed or 0,
    samples = settings.samples or 1,
    rounding = settings.rounding or "nearest",
    packed = settings.packed or false,
    cache = settings.cache,
    sequence = settings.sequence,
    in_place_of = settings.in_place_of,
    values = {},          -- parameters by name, in the compute precision
    frozen = {},          -- names of parameters that are not trained
    given = {},           -- by name, what makes the tensor that a parameter begins with
    layers = {},          -- by name, the layers that were begun
    reference = false,    -- a reference is built: nothing of it is trained
    figures = {},         -- names of outputs that a recipe's loss has beside the loss
    traits = {},          -- by name, what optimizers ask of a parameter: { lookup =, parts =, stacked = }
    scopes = {},
    place = nil,          -- where in the recipe the layer being built was described, for messages
    at_prompt = false,    -- it computes at once
    own = nil,            -- the function of the recipe that builds it; nil: one of the library
    projecting = false,   -- the layer being built writes into the residual stream
    residuals = 1,        -- additions to the residual stream in the whole model
    deviation = nil,      -- standard deviation of matrices; nil: 1 / sqrt(inputs)
  }, Builder)
end

--- How many names the path has.
function Builder:depth() return #self.scopes end

--- Leave what is further inside than a path of `depth` names.
function Builder:unwind(depth)
  while #self.scopes > depth do self:leave() end
end

--- The path of the layer being built: "blocks.3.attention".
function Builder:path() return table.concat(self.scopes, ".") end

--- An input of the graph, made on first use.
function Builder:input(name, dtype, shape, per_step)
  local key = "input:" .. name
  if not self.values[key] then self.values[key] = self.graph:input(name, dtype, shape, per_step or false) end
  return self.values[key]
end

--- Where in the sequence each of `count` tokens stands: i32[count].
function Builder:positions(count) return self:input("positions", "i32", { count }, true) end

--- Where in its row the example of each token begins, whose tokens alone it may see: i32[samples, tokens]; nil unless
-- rows are several examples.
function Builder:starts(samples, tokens)
  return self.packed and self:input("starts", "i32", { samples, tokens }) or nil
end

--- The number of the step, from 1: i64[].
function Builder:step() return self:input("step", "i64", {}, true) end

--- What is drawn depends on {step, first sample}: i64[2], written for each micro-batch; in evaluations the step is 0.
function Builder:counter() return self:input("counter", "i64", { 2 }) end

--- Zeros in the graph.
function Builder:zeros(dtype, shape)
  if type(self.graph) == "table" then return native.full(shape, 0, dtype) end   -- at the prompt
  return (native.op("fill", self.graph, { value = 0, shape = shape, dtype = dtype }))
end

-- What keeps the draws of one place apart from those of others.
local function stream_of(place) return native.hash(place) % 2 ^ 31 end

-- The copy of a parameter that layers compute with.
local function copy_of(self, value, name)
  if self.rounding == "nearest" then return op.cast(value, { dtype = self.precision }) end
  return op.stochastic_cast(value, self:step(), { seed = self.seed, stream = stream_of("rounding of " .. name) })
end

-- What makes the tensor that a recipe has a parameter begin with; nil where it is drawn.
local function given(parameter, name, dtype)
  local init = parameter.init
  if type(init) ~= "function" and not define.accepts("tensor", init) then return nil end
  return function()
    if type(init) ~= "function" then return init:to(dtype) end
    local made = init({ unpack(parameter[2]) })
    if not define.accepts("tensor", made) or text.shape(made.shape) ~= text.shape(parameter[2])
      or not made.dtype:match "^b?f" then
      local place = source.place_of(init)
      errors.usage("%s%s: the function `init` returned %s; floating-point numbers in the shape %s are needed",
        place and place .. ": " or "", name, made == nil and "nothing" or text.value(made), text.shape(parameter[2]))
    end
    return made:to(dtype)
  end
end

-- How a parameter starts: as the recipe says, or drawn as GPT-2 does (Radford et al. 2019): normal, with the
-- projections into the residual stream scaled by 1 / sqrt(number of residual additions).
local function initial(self, parameter)
  if type(parameter.init) == "table" then return parameter.init end
  if parameter.init == "zeros" or parameter.init == "ones" then return { kind = parameter.init } end
  if parameter.init ~= nil then return { kind = "zeros" } end   -- until it is given
  local shape = parameter[2]
  if #shape < 2 then return { kind = "zeros" } end
  local scale = parameter.deviation or self.deviation or 1 / math.sqrt(shape[#shape])
  if parameter.projection and self.projecting then scale = scale / math.sqrt(self.residuals) end
  return { kind = "normal", scale = scale }
end

--- A parameter of the layer being built, as the layer computes with it.
-- @tparam table parameter { name, shape, init =, projection =, deviation =, full =, frozen =, beside =, lookup =,
-- parts =, stacked = }; `full` keeps it f32 always; `beside`: it is that of the layer of this name beside the one being
-- built; `lookup`: a table of embeddings; `parts`: the rows of each matrix in it; `stacked`: it is as many matrices as
-- its first dimension says
-- @string[opt] path the layer's path, default the one being built
-- @tparam[opt] table hints of the layer, by parameter: { [mesh axis] = dimension, -1 for none }
function Builder:parameter(parameter, path, hints)
  local prefix = path or self:path()
  if parameter.beside then prefix = prefix:gsub("[^.]+$", parameter.beside) end
  local name = prefix == "" and parameter[1] or prefix .. "." .. parameter[1]
  if not self.values[name] then
    local computed = #parameter[2] >= 2 and not parameter.full and self.precision or "f32"
    local frozen = parameter.frozen or self.reference
    local dtype = frozen and computed or "f32"
    self.given[name] = given(parameter, name, dtype)
    local value = self.graph:parameter(name, dtype, parameter[2], initial(self, parameter),
      hints and hints[parameter[1]], self.given[name])
    self.frozen[name] = frozen
    self.traits[name] = { lookup = parameter.lookup, parts = parameter.parts, stacked = parameter.stacked }
    if self.in_place_of then value = self.in_place_of(self, name, value, parameter[2]) end
    if dtype ~= computed then value = copy_of(self, value, name) end
    self.values[name] = value
  end
  return self.values[name]
end

--- A parameter of a child of the layer being built: for tied weights.
-- @param child its description
-- @string name the child's name
-- @string which the parameter's name
function Builder:weight_of(child, name, which)
  local path = self:path()
  for _, parameter in ipairs(child:own_parameters()) do
    if parameter[1] == which then
      return self:parameter(parameter, path == "" and name or path .. "." .. name, child.hints)
    end
  end
  errors.raise("bug", "layer %s has no parameter '%s'", name, which)
end

--- Dropout on x while training; x itself otherwise.
function Builder:dropout(x, probability)
  if self.mode ~= "train" or probability == 0 then return x end
  self.drops = (self.drops or 0) + 1
  local stream = stream_of(("%s#%d"):format(self:path(), self.drops))
  return op.dropout(x, self:counter(), { p = probability, seed = self.seed, stream = stream })
end

-- The counter of what is drawn: that of the micro-batch. Calls on tensors have none that changes.
local function counter_of_draw(self)
  return type(self.graph) == "table" and native.tensor({ 0, 0 }, "i64") or self:counter()
end

--- Random numbers above 0 and below 1 in the shape of x, which has samples first: f32. Other ones in each step, the
-- same under every plan; in evaluations the same for a sample each time.
function Builder:uniform(x)
  self.draws = (self.draws or 0) + 1
  local stream = stream_of(("%s uniform#%d"):format(self:path(), self.draws))
  return (op.uniform(op.cast(x, { dtype = "f32" }), counter_of_draw(self), { seed = self.seed, stream = stream }))
end

--- The same of normal numbers, with a mean of 0 and a variance of 1, by the method of Box and Muller (1958).
function Builder:normal(x)
  local radius = op.sqrt(op.scale(op.log(self:uniform(x)), { factor = -2 }))
  return radius * op.cos(op.scale(self:uniform(x), { factor = 2 * math.pi }))
end

--- Train on a loss beside that of the model: its mean over the samples of a step.
-- @param loss f32[]: its sum over the samples of a micro-batch
function Builder:add_loss(loss)
  if self.reference then return end
  loss = op.scale(loss, { factor = 1 / self.samples })
  self.added_loss = self.added_loss and op.add(self.added_loss, loss) or loss
end

--- Begin the next layer that a plan may place: the embedding, a block, the head. A reference's layers are those of
-- the model, by name: a plan places both together.
function Builder:begin_layer(name)
  if not self.reference then
    self.layers[name] = self.graph:begin_layer(name)
  elseif self.layers[name] then
    self.graph:enter_layer(self.layers[name])
  else
    errors.usage("the reference has a layer '%s', which the model has not; the two need the same layers", name)
  end
end

--- What a frozen model gives for x, beside the model that is trained: without dropout, and without a gradient.
-- @param model its description
-- @bool shared whether its parameters are those of the model; else their names begin with builder.reference_name
-- @param x
function Builder:call_reference(model, shared, x)
  local mode = self.mode
  self.reference, self.mode = true, "evaluate"
  local result = self:call(model, not shared and builder.reference_name or nil, false, x)
  self.reference, self.mode = false, mode
  return result
end

-- What a layer computed has to be a value. Tables without a metatable may pass between layers of a recipe.
local function check_result(self, what, result)
  if type(result) == "table" and debug.getmetatable(result) == nil then return end
  if define.accepts("value", result) then return end
  local path = self:path()
  local returned = text.value(result)
  if result == nil then
    returned = "nothing"
  elseif define.kind_of(result) == "layer" or getmetatable(result) == builder.called then
    returned = "a layer that is not called on a value"
  elseif type(result) == "table" then
    returned = "its self"
  end
  errors.usage("%s in %s returned %s; it has to return a value", what, path == "" and "the model" or "layer " .. path,
    returned)
end

-- Several results are for a forward of the recipe's own, which takes them, and for who calls a model on tensors.
local function check_results(self, what, found, several)
  check_result(self, what, found[1])
  for i = 2, found.count do
    if found[i] ~= nil then check_result(self, what, found[i]) end
  end
  if found.count < 2 or several then return end
  local path = self:path()
  errors.usage("%s in %s returned %d values, of which one is taken here; a table may hold them, and the forward of an "
    .. "nn.layer that calls it takes them all", what, path == "" and "the model" or "layer " .. path, found.count)
end

local function packed(...) return { count = select("#", ...), ... } end

--- Build a layer (a description or a plain function of values) under a name of the present path.
-- @param layer
-- @string|nil name its part of the path; nil adds none
-- @bool projecting does what it returns go into the residual stream?
-- @return what it computes: one value or table, to a layer of the recipe's own several
function Builder:call(layer, name, projecting, ...)
  local depth = #self.scopes
  local own, before, place = self.own, self.projecting, self.place
  local several = own ~= nil or name == nil and self.at_prompt
  if name then self:enter(name) end
  local found
  if type(layer) == "function" then
    self.own = layer
    found = packed(results.meant(layer(...)))
    check_results(self, "the function", found, several)
  else
    self.projecting, self.place = projecting or false, rawget(layer, "place") or place
    self.own = layer.class.own_forward
    found = packed(results.meant(layer.class.forward(layer:bind(self), ...)))
    check_results(self, "forward of " .. layer.class.name, found, several)
  end
  self:unwind(depth)
  self.projecting, self.place, self.own = before, place, own
  return unpack(found, 1, found.count)
end

--- Add to the path.
function Builder:enter(name)
  self.scopes[#self.scopes + 1] = name
  self.graph:push_scope(name)
end

--- Remove the last part of the path.
function Builder:leave()
  self.scopes[#self.scopes] = nil
  self.graph:pop_scope()
end

-- Evaluations and generation count no steps.
local function in_training(name)
  return function(self)
    if self.mode ~= "train" then
      errors.usage("self.builder:%s() is for training, and this forward is traced to %s; where self.builder.mode is "
        .. "not \"train\" it has to do without", name, self.mode)
    end
    return self[name](self)
  end
end

-- What a recipe's own layers may ask of their surroundings, as self.builder.
local recipe_methods = {
  step = in_training "step", counter = in_training "counter",
  positions = function(self, count)
    if define.expect("builder:positions", count, "integer") < 1 then
      errors.usage("builder:positions: %.14g positions are asked for; 1 is the least", count)
    end
    return self:positions(count)
  end,
  starts = function(self, samples, tokens)
    for name, size in pairs { samples = samples, tokens = tokens } do
      if define.expect("builder:starts: " .. name, size, "integer") < 1 then
        errors.usage("builder:starts: %.14g %s are asked for; 1 is the least", size, name)
      end
    end
    return self:starts(samples, tokens)
  end,
  dropout = function(self, x, probability)
    define.expect("builder:dropout", x, "value")
    define.expect("builder:dropout: probability", probability, "number")
    if probability < 0 or probability >= 1 then
      errors.usage("builder:dropout: a probability of %.14g; at least 0 and below 1 is needed", probability)
    end
    return self:dropout(x, probability)
  end,
  uniform = function(self, x) return self:uniform((define.expect("builder:uniform", x, "value"))) end,
  normal = function(self, x) return self:normal((define.expect("builder:normal", x, "value"))) end,
  begin_layer = function(self, name) self:begin_layer(define.expect("builder:begin_layer", name, "string")) end,
}

define.object {
  name = "builder",
  sentence = "What the forward of an nn.layer has as self.builder: what it may ask of its surroundings.",
  members = {
    { "mode", "builder.mode", '"train", "evaluate" or "generate": what the layer is built for.' },
    { "precision", "builder.precision", 'The dtype of values and matrices: "f32" or "bf16".' },
    { "path", "builder:path()", 'The names of the layers that it is in: "blocks.3.attention".' },
    { "begin_layer", "builder:begin_layer(name)", "What follows is another layer for plans, which stages are made of. "
      .. "A model that begins none is one layer, \"model\"; no name comes twice.",
      example = 'self.builder:begin_layer("blocks." .. i)' },
    { "dropout", "builder:dropout(x, probability)", "While training, x with elements set to 0 and the rest scaled up; "
      .. "otherwise x, as nn.dropout." },
    { "uniform", "builder:uniform(x)", "Random numbers above 0 and below 1 in the shape of x, which has samples first: "
      .. "f32, other ones in each step; an evaluation gives a sample the same ones each time.",
      example = "local keep = op.less(self.builder:uniform(x), 0.9)" },
    { "normal", "builder:normal(x)", "The same of normal numbers.",
      example = "x + 0.1 * op.cast(self.builder:normal(x), { dtype = x.dtype })" },
    { "positions", "builder:positions(tokens)", "Where in the sequence each token stands: i32[tokens]. While text is "
      .. "generated with a cache, x is a part of it." },
    { "starts", "builder:starts(samples, tokens)", "Where in its row the example of each token begins: i32[samples, "
      .. "tokens]; nil unless rows are several examples (packing)." },
    { "step", "builder:step()", 'The number of the step, from 1: i64[]. Only where builder.mode is "train".',
      example = 'if self.builder.mode == "train" then\n'
        .. '    scale = op.minimum(op.cast(self.builder:step(), { dtype = "f32" }) / 1000, 1)\n  end' },
    { "counter", "builder:counter()", 'The counter of op.dropout and op.uniform: i64[2], { step, first sample }. Only '
      .. 'where builder.mode is "train".' },
  },
  classes = { Builder }, methods = recipe_methods,
  show = function(self) return ("builder of layer %s"):format(self:path()) end,
}

-- What stands in for a graph at the prompt: parameters are tensors, drawn once and kept in `store`.
local Eager = {}
Eager.__index = Eager
function Eager:parameter(name, dtype, shape, init, _, given_tensor)
  if not self.store[name] and given_tensor then self.store[name] = given_tensor():clone() end
  if not self.store[name] then
    local draw = ({ normal = native.randn, uniform = native.uniform })[init.kind]
    if draw then
      self.store[name] = op.scale(draw(shape, dtype, stream_of(name) + self.seed), { factor = init.scale })
    else
      self.store[name] = native.full(shape, init.kind == "ones" and 1 or 0, dtype)
    end
  end
  return self.store[name]
end
function Eager.input(_, name, _, shape)
  if name == "positions" then return native.arange(shape[1], "i32") end
  errors.usage("a layer needs the input '%s', which only training has", name)
end
function Eager.push_scope() end
function Eager.pop_scope() end
function Eager.begin_layer() return 1 end

builder.call = Builder.call   -- calls functions of the recipe, and nothing else does

--- A builder that computes at once.
-- @tparam table store parameters by name; filled on first use
function builder.eager(store)
  local made = builder.new { graph = setmetatable({ store = store, seed = 0 }, Eager), mode = "evaluate" }
  made.at_prompt = true
  return made
end

return builder
