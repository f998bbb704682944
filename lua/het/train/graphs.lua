--- The graphs of a run: one that trains (forward, backward, update), one that evaluates. Both describe one micro-batch;
-- the loss is a sum times `scale`, so that micro-batches add up to the mean over the whole batch.
local native = require "het.native"
local average = require "het.train.average"
local builder = require "het.nn.builder"
local custom = require "het.op.custom"
local errors = require "het.errors"
local op = require "het.op"
local reference = require "het.train.reference"
local results = require "het.op.results"
local source = require "het.language.source"
local text = require "het.text"

local graphs = {}

-- Before the names of outputs that are figures.
local figure_prefix = "figure "

--- The name of the output that is a figure of the recipe's loss.
function graphs.output_of_figure(name) return figure_prefix .. name end

-- Inputs that are numbers with fractions are computed with in the run's precision.
local function in_precision(value, precision)
  if precision ~= "f32" and value.dtype == "f32" then return op.cast(value, { dtype = precision }) end
  return value
end

-- Labels in the shape of what the model gives; [n] for [n, 1] is as good.
local function fitted(labels, output)
  local given, wanted = text.shape(labels.shape), text.shape(output.shape)
  if given == wanted then return labels end
  local column = { unpack(labels.shape) }
  column[#column + 1] = 1
  if text.shape(column) == wanted then return op.reshape(labels, { shape = column }) end
  errors.usage("the model gives %s for a micro-batch, its labels are %s; one number for each is needed, or a `loss` "
    .. "that compares them otherwise", wanted, given)
end

-- The mean squared error's sum: over the features the mean, over the samples the sum times scale.
local function squared_error(output, labels, scale)
  labels = fitted(labels, output)
  local features = 1
  for i = 2, #labels.shape do features = features * labels.shape[i] end
  local difference = op.sub(op.cast(output, { dtype = "f32" }), labels)
  local total = op.reshape(op.sum(op.square(difference)), { shape = { 1 } })
  return op.reshape(op.scale(op.mul(total, scale), { factor = 1 / features }), { shape = {} })
end

-- Inputs and parameters have names; what is computed from them has none.
local function is_computed(value)
  return type(value) == "userdata" and getmetatable(value) == "value" and value.name == ""
end

-- A single number without dimensions; nil where the value has several.
local function as_number(value)
  for _, size in ipairs(value.shape) do
    if size > 1 then return nil end
  end
  return #value.shape > 0 and op.reshape(value, { shape = {} }) or value
end

-- The loss that a recipe's function returned.
local function checked_loss(loss, scale)
  if not is_computed(loss) then
    errors.usage("the function `loss` returned %s; a number of the graph that is computed from the model's output "
      .. "is needed", loss == nil and "nothing" or text.value(loss))
  end
  local number = as_number(loss)
  if not number then
    errors.usage("the function `loss` returned numbers of the shape %s; a single one is needed, such as op.sum of "
      .. "them, times the scale", text.shape(loss.shape))
  end
  if not native.depends_on(number, scale) then
    errors.usage("the loss does not use the third argument of `loss`, the scale: losses of micro-batches are summed, "
      .. "and op.sum(...) * scale of each add up to the mean over the batch")
  end
  return number
end

-- The figures that it returned beside the loss, by name.
local function checked_figures(figures)
  if figures ~= nil and type(figures) ~= "table" then
    errors.usage("the function `loss` returned %s beside the loss; figures by name are needed, such as { accuracy = a "
      .. "}", type(figures) == "userdata" and "a second value" or text.value(figures))
  end
  local checked = {}
  for _, name in ipairs(text.keys(figures or {})) do
    local figure = figures[name]
    if type(name) ~= "string" or not name:match "^[%a_][%w_]*$" then
      errors.usage("the function `loss` returned a figure named %s; a name of letters, digits and _ is needed",
        text.value(name))
    end
    checked[name] = is_computed(figure) and figure.dtype == "f32" and as_number(figure) or nil
    if not checked[name] then
      errors.usage("the function `loss` returned %s as the figure '%s'; a single f32 number of the graph is needed, "
        .. "such as op.sum of them, times the scale", text.value(figure), name)
    end
  end
  return checked
end

-- What the recipe's function makes of the model's output, and of that of the reference; and its figures.
local function loss_of_recipe(b, spec, inputs, labels, scale)
  local output = b:call(spec.model, nil, false, inputs)
  local beside = spec.reference and b:call_reference(spec.reference, reference.is_shared(spec), inputs)
  b.own = spec.loss
  local loss, figures = results.meant(spec.loss(output, labels, scale, beside))
  return checked_loss(loss, scale), checked_figures(figures)
end

--- Tensors of a micro-batch by the names of the graph's inputs: of one tensor, or of several by name.
function graphs.named_inputs(inputs)
  if type(inputs) ~= "table" then return { inputs = inputs } end
  local named = {}
  for name, tensor in pairs(inputs) do named["inputs." .. name] = tensor end
  return named
end

-- What the model is called with: a value, or several by name.
local function inputs_of(b, types)
  local function input(name, kind) return in_precision(b.graph:input(name, kind[1], kind[2]), b.precision) end
  if types[1] then return input("inputs", types) end
  local inputs = {}
  for _, name in ipairs(text.keys(types)) do inputs[name] = input("inputs." .. name, types[name]) end
  return inputs
end

local function loss_of(b, spec)
  local graph, model = b.graph, spec.model
  local inputs = inputs_of(b, spec.inputs)
  local labels = graph:input("labels", spec.labels[1], spec.labels[2])
  local scale = graph:input("scale", "f32", { 1 }, true)
  local own_loss = type(model) ~= "function" and model.class.loss   -- such a model begins its layers itself
  if not own_loss then b:begin_layer("model") end
  if spec.loss then return loss_of_recipe(b, spec, inputs, labels, scale) end
  if own_loss then return own_loss(model:bind(b), inputs, labels, scale) end
  local output = b:call(model, nil, false, inputs)
  if type(output) == "table" then
    errors.usage("the model returns a table, for which there is no loss; het.train { loss = function(output, labels, "
      .. "scale) ... end } computes one")
  end
  if labels.dtype == "i32" then return (op.cross_entropy(output, labels, scale)) end
  return squared_error(output, labels, scale)
end

--- The loss of one micro-batch, with its inputs "inputs", "labels" and "scale"; its figures become outputs, and their
-- names the builder's `figures`. What does not fit is an error with the line of the recipe that computes it, in a
-- separate forward, or else describes the layer.
-- @param b the builder
-- @tparam table spec `model`, `loss` and `reference` (or nil), `inputs` and `labels` ({ dtype, shape } of a
-- micro-batch; of several inputs by name)
function graphs.loss(b, spec)
  local place
  local function compute()
    local loss, figures = loss_of(b, spec)
    for _, name in ipairs(text.keys(figures or {})) do
      b.graph:output(figure_prefix .. name, figures[name])
      b.figures[#b.figures + 1] = name
    end
    if spec.loss then b.graph:join_classifiers(custom.ranges()) end
    return b.added_loss and op.add(loss, b.added_loss) or loss
  end
  builder.traces = true
  local ok, result = xpcall(compute, function(problem)
    -- A function that returns the result of a call has no frame any more.
    place = b.own and (source.place(builder.call, compute) or source.place_of_return(b.own)) or source.place(compute)
      or b.place or rawget(spec.model, "place")
    return problem
  end)
  builder.traces = false
  if ok then return result end
  if place and type(result) == "table" and result.kind == "usage" then
    result.message, result.sentence = place .. ": " .. result.message, place .. ": " .. result.sentence
    result.has_places = true
  end
  error(result, 0)
end

--- Elements of parameters, as graph:parameters() lists them.
function graphs.elements_of(parameters)
  local total = 0
  for _, parameter in ipairs(parameters) do
    local count = 1
    for _, size in ipairs(parameter.shape) do count = count * size end
    total = total + count
  end
  return total
end

-- How many positions the graph has as an input; nil where it has none.
local function positions_of(b)
  local positions = b.values["input:positions"]
  return positions and positions.shape[1]
end

--- The graph of a training step. Outputs: "loss", "gradient_norm".
-- @tparam table spec as of graphs.loss, and `precision`, `seed`, `optimizer`, `samples` of a step, `packed` (rows are
-- several examples)
-- @treturn table { graph, trained, averaged, given, figures, positions, starts, counter }: `trained`, elements of
-- parameters that are trained; by name `averaged`, whether a parameter is averaged, and `given`, what makes the tensor
-- that it begins with; names of `figures`; how many `positions` it has as an input, and whether it has the others
function graphs.training(spec)
  local b = builder.new { precision = spec.precision, mode = "train", seed = spec.seed,
    samples = spec.samples, rounding = spec.optimizer.arguments.rounding, packed = spec.packed }
  local graph = b.graph
  local records, loss = custom.recorded(graphs.loss, b, spec)
  graph:output("loss", loss)
  local wanted, values = {}, {}
  for _, parameter in ipairs(graph:parameters()) do
    parameter.traits = b.traits[parameter.name]
    if not b.frozen[parameter.name] then
      wanted[#wanted + 1], values[#values + 1] = parameter, parameter.value
    end
  end
  if #wanted == 0 then errors.usage("no parameter of the model is trained: all are frozen") end
  local gradients = graph:gradients(loss, values, records)
  graph:set_phase("update")
  local trained, list = {}, {}
  for i, parameter in ipairs(wanted) do
    local gradient = gradients[i]
    if gradient then
      trained[#trained + 1] = parameter
      list[#list + 1] = gradient
    end
  end
  spec.optimizer:require_matches(graph:parameters(), b.frozen, trained)
  if #list == 0 then errors.usage("the loss depends on no parameter that is trained") end
  local norm, coefficient = native.op("global_norm", list, { max_norm = spec.optimizer.arguments.clip })
  local inputs = {
    lr = graph:input("lr", "f32", {}, true), step = b:step(), coefficient = coefficient, precision = spec.precision,
    numbers = {},
  }
  for _, name in ipairs(spec.optimizer:functions()) do
    inputs.numbers[name] = graph:input("optimizer." .. name, "f32", {}, true)
  end
  if spec.ema then average.update(graph, trained, coefficient) end
  local rate, rates = inputs.lr, {}   -- by group
  for i, parameter in ipairs(trained) do
    local group = spec.optimizer:rated_group(parameter.name)
    if group then rates[group] = rates[group] or graph:input("lr." .. group, "f32", {}, true) end
    inputs.lr = group and rates[group] or rate
    spec.optimizer:update(graph, parameter, list[i], inputs)
  end
  graph:output("gradient_norm", norm)
  local averaged = {}
  for _, parameter in ipairs(spec.average and trained or {}) do averaged[parameter.name] = true end
  return { graph = graph, trained = graphs.elements_of(wanted), averaged = averaged, given = b.given,
    figures = b.figures, positions = positions_of(b), starts = b.values["input:starts"] ~= nil,
    counter = b.values["input:counter"] ~= nil }
end

--- The graph of an evaluation. Output: "loss".
-- @tparam table spec as of graphs.training
-- @tparam table averaged which parameters are, as graphs.training says
-- @treturn table { graph, figures, positions, counter, average_weight }: likewise
function graphs.evaluation(spec, averaged)
  local kept = spec.average
  local function in_place_of(b, name, parameter, shape)
    return averaged[name] and average.value(b, kept, name, parameter, shape) or parameter
  end
  local b = builder.new { precision = spec.precision, mode = "evaluate", seed = spec.seed,
    in_place_of = kept and kept.evaluate and in_place_of or nil }
  b.graph:output("loss", graphs.loss(b, spec))
  return { graph = b.graph, figures = b.figures, positions = positions_of(b),
    counter = b.values["input:counter"] ~= nil,
    average_weight = b.values["input:average_weight"] ~= nil }
end

return graphs
