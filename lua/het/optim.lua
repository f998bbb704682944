--- `het.optim`: optimizers and schedules of their learning rate.
local define = require "het.language.define"
local errors = require "het.errors"
local handle = require "het.sandbox.handle"
local native = require "het.native"
local op = require "het.op"
local source = require "het.language.source"
local suggest = require "het.language.suggest"
local text = require "het.text"
local updates = require "het.optim.updates"

local optim = {}

local lines = setmetatable({}, { __mode = "k" })   -- of a recipe, by optimizer and field

-- Schedules: { name, arguments, at(step, steps) }: the rate of step 1, 2, ... of a run of `steps`.
local Schedule = {}
Schedule.__index = Schedule
Schedule.__tostring = function(self)
  return ("%s from %s"):format(self.name, text.value(self.arguments.peak or self.arguments.lr))
end

-- The rise of the first `warmup` steps; nil after them. Step 1 is above 0 and step warmup + 1 reaches the peak.
local function warming(a, step)
  if step <= a.warmup then return a.peak * step / (a.warmup + 1) end
end

local function floor_of(a) return a.floor or a.peak / 10 end

-- How far a step is on the way from the first step after `from` to the one behind the schedule's last, 0 to 1: no step
-- of a run is wasted on the floor.
local function progress(a, from, step, steps)
  return math.min(1, math.max(0, (step - 1 - from) / math.max(1, (a.steps or steps) - from)))
end

local function schedule(name, sentence, fields, at)
  local all = {
    { "peak", "number", "highest rate", required = true, above = 0 },
    { "warmup", "integer", "steps in which the rate rises to the peak", default = 0, min = 0 },
  }
  for _, field in ipairs(fields) do all[#all + 1] = field end
  optim[name] = define.constructor {
    name = "optim." .. name, sentence = sentence, kind = "schedule", positional = 1, fields = all,
    example = ("lr = optim.%s { peak = 1e-3, warmup = 100 }"):format(name),
    check = function(a, report)
      if a.floor and a.floor > a.peak then
        report("floor", ("optim.%s.floor = %s is above peak = %s"):format(name, text.value(a.floor),
          text.value(a.peak)))
      end
    end,
    build = function(a)
      return setmetatable({ name = name, arguments = a, at = function(_, step, steps)
        return warming(a, step) or at(a, step, steps)
      end }, Schedule)
    end,
  }
end

local floor_field = { "floor", "number", "rate after the end (default: peak / 10)", min = 0 }
local steps_field = { "steps", "integer", "step after which the floor is reached (default: the run's last)", min = 1 }

schedule("constant", "The same rate throughout, after the warm-up.", {}, function(a) return a.peak end)

schedule("cosine", "From the peak to the floor along half a cosine.", { floor_field, steps_field },
  function(a, step, steps)
    local low = floor_of(a)
    return low + (a.peak - low) * 0.5 * (1 + math.cos(math.pi * progress(a, a.warmup, step, steps)))
  end)

schedule("linear", "From the peak to the floor along a straight line.", { floor_field, steps_field },
  function(a, step, steps)
    local low = floor_of(a)
    return low + (a.peak - low) * (1 - progress(a, a.warmup, step, steps))
  end)

schedule("wsd", "Warm-up, stable, decay (Hu et al. 2024): the peak, then a straight line to the floor at the end.", {
  { "floor", "number", "rate after the end", default = 0, min = 0 },
  { "decay", "number", "share of the steps that decay", default = 0.2, above = 0, max = 1 },
  steps_field,
}, function(a, step, steps)
  local last = a.steps or steps
  local first = last - math.floor(a.decay * last)
  return a.floor + (a.peak - a.floor) * (1 - progress(a, first, step, steps))
end)

-- Optimizers: { name, arguments, places, rate(step, steps), update(graph, parameter, gradient, inputs) }.
local Optimizer = {}
Optimizer.__index = Optimizer
Optimizer.__tostring = function(self)
  local groups = #(self.arguments.groups or {})
  return ("optim.%s, lr %s%s"):format(self.name, tostring(self.arguments.lr), groups > 0
    and ", " .. text.plural(groups, "group") or "")
end

-- Ranges of what functions of the step return: accepts(number), and the words for it.
local ranges = {
  rate = { function(number) return number >= 0 and number < math.huge end, "a rate of at least 0" },
  share = { function(number) return number >= 0 and number < 1 end, "a number of at least 0 and below 1" },
  exponent = { function(number) return number < 0 and number > -math.huge end, "a number below 0" },
}

-- What a function of the recipe returns for a step: a number of a range.
local function number_of(self, name, step, steps, range, fn)
  local accepts, needed = unpack(range)
  fn = fn or self.arguments[name]
  local number = fn(step, steps)
  if type(number) ~= "number" or not accepts(number) then
    local place = source.place_of(fn) or self.places[name]
    errors.usage("%soptim.%s.%s: the function returned %s for step %d; %s is needed", place and place .. ": " or "",
      self.name, name, text.value(number), step, needed)
  end
  return number
end

--- The learning rate of a step; of a parameter, given its name, that of its group.
function Optimizer:rate(step, steps, name)
  local group = name and self:group_of(name)
  if group then return self:rate_of_group(group, step, steps) end
  local lr = self.arguments.lr
  if type(lr) == "number" then return lr end
  if type(lr) ~= "function" then return lr:at(step, steps) end
  return number_of(self, "lr", step, steps, ranges.rate)
end

--- Which of `groups` a parameter is in, by its name: the first that matches; nil where none does.
function Optimizer:group_of(name)
  for i, group in ipairs(self.arguments.groups or {}) do
    if name:find(group.match) then return i end
  end
end

--- The learning rate of a group: one that is a number follows the optimizer's schedule, as the rate at its peak.
function Optimizer:rate_of_group(i, step, steps)
  local lr, common = self.arguments.groups[i].lr, self.arguments.lr
  if lr == nil then return self:rate(step, steps) end
  if type(lr) == "function" then return number_of(self, ("groups[%d].lr"):format(i), step, steps, ranges.rate, lr) end
  if type(lr) ~= "number" then return lr:at(step, steps) end
  return type(common) == "number" and lr or lr / common.arguments.peak * common:at(step, steps)
end

--- The same where it has a rate of its own; else nil.
function Optimizer:rated_group(name)
  local i = self:group_of(name)
  return i and self.arguments.groups[i].lr ~= nil and i or nil
end

--- The learning rates of groups that have one, by number.
function Optimizer:rates(step, steps)
  local rates = {}
  for i, group in ipairs(self.arguments.groups or {}) do
    if group.lr ~= nil then rates[i] = self:rate_of_group(i, step, steps) end
  end
  return rates
end

-- What may be a function of the step beside the rate, and the range of its numbers.
local of_steps = { { "beta1", ranges.share }, { "beta2", ranges.share }, { "beta2_decay", ranges.exponent },
  { "momentum", ranges.share } }

--- Names of the arguments beside the rate that are functions of the step.
function Optimizer:functions()
  local names = {}
  for _, entry in ipairs(of_steps) do
    if type(self.arguments[entry[1]]) == "function" then names[#names + 1] = entry[1] end
  end
  return names
end

--- What those functions return for a step, by name.
function Optimizer:numbers(step, steps)
  local numbers = {}
  for _, entry in ipairs(of_steps) do
    local name, range = unpack(entry)
    if type(self.arguments[name]) == "function" then numbers[name] = number_of(self, name, step, steps, range) end
  end
  return numbers
end

--- The weight decay of a parameter: of the first pattern in `decay` that its name has, else of matrices only, by its
-- group.
function Optimizer:decay_of(parameter)
  for _, rule in ipairs(self.arguments.decay or {}) do
    if parameter.name:find(rule[1]) then return rule[2] end
  end
  if #parameter.shape < 2 then return 0 end
  local group = self:group_of(parameter.name)
  return group and self.arguments.groups[group].weight_decay or self.arguments.weight_decay
end

local most_named = 8   -- parameters in a message

-- What may be meant by a pattern that no parameter has: one whose name, or a part of it, is close to it; else the first
-- ones are listed.
local function close_names(pattern, names)
  local parts, of_part = {}, {}
  for _, name in ipairs(names) do
    for part in (name .. "." .. name):gmatch "[^.]+" do
      if not of_part[part] then parts[#parts + 1], of_part[part] = part, name end
    end
    parts[#parts + 1], of_part[name] = name, name
  end
  for words in pattern:gmatch "[%w_.]*[%w_]" do
    local near = native.nearest(words, parts)
    if near then return ("; did you mean '%s'?"):format(of_part[near]) end
  end
  return ("; there are %s%s"):format(table.concat(names, ", ", 1, math.min(#names, most_named)),
    #names > most_named and ", ..." or "")
end

-- Raise a mistake in a pattern of a field, with the line of the recipe.
local function refuse(self, field, pattern, why)
  local line = lines[self] and lines[self][field]
  local mistake = errors.new("usage", ("%soptim.%s.%s: '%s' %s"):format(line and line .. ": " or "", self.name, field,
    pattern, why))
  mistake.has_places = line ~= nil
  error(mistake, 0)
end

-- Refuse a pattern of a field that no parameter has.
local function require_match(self, field, pattern, names)
  local matches = false
  for _, name in ipairs(names) do
    local ok, found = pcall(string.find, name, pattern)
    if not ok then refuse(self, field, pattern, "is not a Lua pattern: " .. errors.describe(found)) end
    matches = matches or found ~= nil
  end
  if not matches then
    refuse(self, field, pattern, "matches no parameter of the model" .. close_names(pattern, names))
  end
end

--- Refuse exceptions and groups that match no parameter that is trained.
-- @tparam {{name =},...} parameters of the model
-- @tparam table frozen by name: those that are not trained
-- @tparam {{name =},...} trained those that have a gradient
function Optimizer:require_matches(parameters, frozen, trained)
  local names, groups = {}, {}
  for i, parameter in ipairs(parameters) do names[i] = parameter.name end
  for _, rule in ipairs(self.arguments.decay or {}) do require_match(self, "decay", rule[1], names) end
  for i, group in ipairs(self.arguments.groups or {}) do
    require_match(self, "groups", group.match, names)
    groups[i] = { pattern = group.match }
  end
  for _, name in ipairs(names) do
    local group = groups[self:group_of(name)]
    if group then group.any, group.unfrozen = true, group.unfrozen or not frozen[name] end
  end
  for _, parameter in ipairs(trained) do
    local group = groups[self:group_of(parameter.name)]
    if group then group.trained = true end
  end
  for _, group in ipairs(groups) do
    if not group.any then
      refuse(self, "groups", group.pattern, "matches only parameters of the groups before it")
    elseif not group.unfrozen then
      refuse(self, "groups", group.pattern, "matches only parameters that are frozen")
    elseif not group.trained then
      refuse(self, "groups", group.pattern, "matches only parameters that the loss does not use")
    end
  end
end

-- One operator for each parameter.
local function fused_adamw(self, graph, parameter, gradient, inputs)
  local m = graph:buffer("adamw.m." .. parameter.name, "f32", parameter.shape)
  local v = graph:buffer("adamw.v." .. parameter.name, "f32", parameter.shape)
  op.adamw(parameter.value, m, v, gradient, inputs.lr, inputs.step, inputs.coefficient, {
    beta1 = self.arguments.beta1, beta2 = self.arguments.beta2, eps = self.arguments.eps,
    weight_decay = self:decay_of(parameter),
  })
end

--- What searches of sharding programs take for this optimizer: AdamW for one that is written with operators. How the
-- model is cut is decided, not how each operator of an update runs.
function Optimizer:for_search()
  if not self.composed and #self:functions() == 0 then return self end
  local a = { beta1 = 0.9, beta2 = 0.999, eps = 1e-8 }
  for _, name in ipairs { "lr", "weight_decay", "decay", "groups", "clip", "rounding" } do
    a[name] = self.arguments[name]
  end
  return setmetatable({ name = "adamw", arguments = a, update = fused_adamw }, Optimizer)
end

local common = {
  { "lr", "number|schedule|function", "learning rate, a schedule of it, or a function(step, steps) that returns it",
    required = true, above = 0 },
  { "weight_decay", "number", "of matrices, not of biases and norms (`decay`: exceptions); decoupled as in "
    .. "AdamW; of optim.sgd added to the gradient (L2)", default = 0, min = 0 },
  { "decay", "list", 'exceptions, the first that matches a parameter\'s name: { { "tokens", 0 }, { "norm", 0.1 } }' },
  { "groups", "list", 'parameter groups with another rate or decay: { { match = "^tokens", lr = 1e-4, weight_decay = 0 '
    .. "} }. `match` is a Lua pattern of names; the first group that matches counts. `lr` is a number, which follows "
    .. "the schedule of the optimizer as the rate at its peak, a schedule, or a function(step, steps); `weight_decay` "
    .. "is of the matrices of the group, and `decay` counts before it" },
  { "clip", "number", "greatest global norm of the gradient; 0: no limit", default = 0, min = 0 },
  { "rounding", "string", "of the bf16 copy of the f32 weights that a step computes with: stochastic is up or down by "
    .. "chance, drawn again in each step, right on average; evaluation and generation round to nearest",
    default = "nearest", choices = { "nearest", "stochastic" } },
}

local function is_pattern(value) return type(value) == "string" and pcall(string.find, "", value) end

-- What has other keys than a list's is none: pairs of it would be ignored.
local function is_list(value)
  local count = 0
  for _ in pairs(value) do count = count + 1 end
  return count == #value
end

local group_fields = { "match", "lr", "weight_decay" }

local function is_rate(lr) return type(lr) == "number" and ranges.rate[1](lr) end

-- What is wrong with one of `groups`; nil where nothing is.
local function group_problem(group, rate)
  if type(group) ~= "table" or debug.getmetatable(group) ~= nil or type(group.match) ~= "string" then
    return 'has to be a table such as { match = "^tokens", lr = 1e-4 }'
  end
  for _, key in ipairs(text.keys(group)) do
    local is_known = key == "match" or key == "lr" or key == "weight_decay"
    if not is_known then return ("has no field '%s'%s"):format(key, suggest.sentence(tostring(key), group_fields)) end
  end
  if not is_pattern(group.match) then return ("match = '%s' is not a Lua pattern"):format(group.match) end
  local lr, decay = group.lr, group.weight_decay
  if lr == nil and decay == nil then return "needs `lr` or `weight_decay`" end
  if lr ~= nil and not is_rate(lr) and type(lr) ~= "function" and define.kind_of(lr) ~= "schedule" then
    return ("lr = %s; a number of at least 0, a schedule or a function is needed"):format(text.value(lr))
  end
  if decay ~= nil and not is_rate(decay) then
    return ("weight_decay = %s; a number of at least 0 is needed"):format(text.value(decay))
  end
  if type(lr) == "number" and type(rate) == "function" then
    return ("lr = %s follows a schedule, and the optimizer's `lr` is a function; give the group a function, too")
      :format(text.value(lr))
  end
end

local function check_groups(name, a, report)
  if not a.groups then return end
  if not is_list(a.groups) then
    return report("groups", name .. '.groups is a list of tables, such as { { match = "^tokens", lr = 1e-4 } }')
  end
  for i, group in ipairs(a.groups) do
    local unknown = type(group) == "table" and define.is_unknown(group.lr)
    local problem = not unknown and group_problem(group, a.lr)
    if problem then report("groups", ("%s.groups: item %d %s"):format(name, i, problem)) end
    if unknown then report() end
  end
end

local function check_decay(name)
  return function(a, report)
    check_groups(name, a, report)
    if a.decay and not is_list(a.decay) then
      report("decay", name .. '.decay is a list of pairs, such as { { "tokens", 0 }, { "norm", 0.1 } }')
    end
    if a.others and not is_list(a.others) then
      report("others", name .. '.others is a list of Lua patterns, such as { "^head" }')
    end
    for i, rule in ipairs(a.decay or {}) do
      if type(rule) ~= "table" or type(rule[1]) ~= "string" or type(rule[2]) ~= "number" or rule[2] < 0 then
        report("decay", ("%s.decay: item %d has to be { pattern, weight decay }"):format(name, i))
      elseif not is_pattern(rule[1]) then
        report("decay", ("%s.decay: '%s' is not a Lua pattern"):format(name, rule[1]))
      end
    end
    for i, pattern in ipairs(a.others or {}) do
      if not is_pattern(pattern) then
        report("others", ("%s.others: item %d, %s, is not a Lua pattern"):format(name, i, text.value(pattern)))
      end
    end
    if a.nesterov and a.momentum == 0 then
      report("nesterov", name .. ".nesterov needs a momentum above 0")
    end
  end
end

-- `average`: function(arguments): how het.train.average finds the average that it keeps of a parameter; nil of others.
-- `is_composed`: its update is written with operators.
local function optimizer(name, sentence, fields, update, example, average, is_composed)
  local all = { unpack(common) }
  for _, field in ipairs(fields) do all[#all + 1] = field end
  optim[name] = define.constructor {
    name = "optim." .. name, sentence = sentence, kind = "optimizer", fields = all,
    example = example or ("optim.%s { lr = 1e-3, clip = 1.0 }"):format(name),
    check = check_decay("optim." .. name),
    build = function(a)
      local places = {}   -- of functions of Lua's library, which say no line: by field
      for field, value in pairs(a) do
        if type(value) == "function" and not source.place_of(value) then
          places[field] = source.locate("optim." .. name, field)
        end
      end
      local made = setmetatable({ name = name, arguments = a, update = update, average = average and average(a),
        composed = is_composed, places = places }, Optimizer)
      lines[made] = {}
      for _, field in ipairs { "decay", "groups" } do
        lines[made][field] = a[field] and source.locate("optim." .. name, field)
      end
      return made
    end,
  }
end

-- The arguments, and values of the update phase in place of functions.
local function settings_of(self, inputs)
  local settings = {}
  for _, values in ipairs { self.arguments, inputs.numbers } do
    for name, value in pairs(values) do settings[name] = value end
  end
  return settings
end

-- What an update of het.optim.updates computes with, as values of the update phase.
local function step_of(self, graph, parameter, gradient, inputs)
  local kept = {}   -- by name
  local step = {
    settings = settings_of(self, inputs),
    param = parameter.value, gradient = op.mul(gradient, inputs.coefficient), lr = inputs.lr,
    count = op.cast(inputs.step, { dtype = "f32" }), decay = self:decay_of(parameter), name = parameter.name,
    shape = parameter.shape, lookup = parameter.traits.lookup or false, parts = parameter.traits.parts,
    stacked = parameter.traits.stacked or false, precision = inputs.precision,
  }
  function step.state(name, shape)
    if type(name) == "table" then errors.usage "step.state is called with a dot: step.state \"name\"" end
    define.expect("step.state: name", name, "string")
    if not kept[name] then
      kept[name] = graph:buffer(("%s.%s.%s"):format(self.arguments.name or self.name, name, parameter.name), "f32",
        shape or parameter.shape)
    end
    return kept[name]
  end
  return step, kept
end

-- The new values take the place of the old ones, after everything that reads those.
local function write_back(self, step, kept, new, coefficient)
  local own = self.arguments.update   -- of optim.custom
  local place = own and (source.place_of(own) or self.places.update)
  local what = ("%soptim.%s.update of %s"):format(place and place .. ": " or "", self.name, step.name)
  local is_table = type(new) == "table" and debug.getmetatable(new) == nil
  if not is_table or not define.accepts("value", new.param) then
    errors.usage("%s returned %s; { param = new value, and those of its state by name } is needed", what,
      not is_table and text.value(new) or new.param ~= nil and "param = " .. text.value(new.param)
        or "a table without `param`")
  end
  for _, name in ipairs(text.keys(new)) do
    local state = name == "param" and step.param or kept[name]
    if not state then errors.usage("%s returned '%s', which is no state: state \"%s\" makes one", what, name, name) end
    local given, wanted = text.shape(new[name].shape), text.shape(state.shape)
    if given ~= wanted then errors.usage("%s returned %s for '%s', which is %s", what, given, name, wanted) end
    op.assign(state, new[name], coefficient)
  end
  for name in pairs(kept) do
    if not new[name] then errors.usage("%s returned no new value of its state '%s'", what, name) end
  end
end

-- An update that is written with het.op.
local function composed_update(update)
  return function(self, graph, parameter, gradient, inputs)
    local step, kept = step_of(self, graph, parameter, gradient, inputs)
    write_back(self, step, kept, update(step), inputs.coefficient)
  end
end

local function composed(name, sentence, fields, update, example, average)
  optimizer(name, sentence, fields, composed_update(update), example, average, true)
end

-- A number that may be a function of the step; `range` has its bounds.
local function of_step(name, doc, default, range)
  range[1], range[2], range[3], range.default = name, "number|function", doc
    .. "; or a function(step, steps) that returns it", default
  return range
end

-- A share, which may be a function of the step.
local function beta(name, doc, default) return of_step(name, doc, default, { min = 0, below = 1 }) end

-- One operator computes an update of SGD or AdamW with numbers, and several one with functions.
local composed_sgd = composed_update(updates.sgd)
optimizer("sgd", "Stochastic gradient descent, with momentum if asked for.", {
  beta("momentum", "share of the last update that is kept", 0),
  { "nesterov", "boolean", "look ahead along the momentum (Nesterov)", default = false },
}, function(self, graph, parameter, gradient, inputs)
  local a = self.arguments
  if #self:functions() > 0 then return composed_sgd(self, graph, parameter, gradient, inputs) end
  local momentum = a.momentum > 0 and graph:buffer("sgd.momentum." .. parameter.name, "f32", parameter.shape)
  op.sgd(parameter.value, momentum, gradient, inputs.lr, inputs.coefficient, {
    momentum = a.momentum, nesterov = a.nesterov, weight_decay = self:decay_of(parameter),
  })
end)

local composed_adamw = composed_update(updates.adamw)
optimizer("adamw", "AdamW (Loshchilov and Hutter 2019), in f32.", {
  beta("beta1", "decay of the mean of gradients", 0.9),
  beta("beta2", "decay of the mean of their squares", 0.999),
  { "eps", "number", "added to the root of the squares' mean", default = 1e-8, above = 0 },
}, function(self, ...)
  return (#self:functions() > 0 and composed_adamw or fused_adamw)(self, ...)
end)

composed("lion", "Lion (Chen et al. 2023): steps of one size, in the direction of momentum and gradient. Learning "
  .. "rates are 3 to 10 times smaller than AdamW's, weight decay as much greater.", {
  beta("beta1", "share of the momentum in the direction of a step", 0.9),
  beta("beta2", "decay of the momentum", 0.99),
}, updates.lion)

composed("adafactor", "Adafactor (Shazeer and Stern 2018): of a matrix it keeps means over rows and columns instead "
  .. "of a moment for each weight; steps are relative to the size of the weights.", {
  of_step("beta2_decay", "beta2 of a step is 1 - step^this", -0.8, { below = 0 }),
  { "threshold", "number", "greatest root of the mean square of an update", default = 1, above = 0 },
  { "eps", "number", "least size of a parameter, which its steps are relative to", default = 1e-3, above = 0 },
}, updates.adafactor)

composed("muon", "Muon (Jordan et al. 2024): makes the momentum of each hidden matrix orthogonal, experts and queries, "
  .. "keys and values one by one; AdamW for embeddings, vectors and what `others` names.", {
  beta("momentum", "decay of the mean of gradients", 0.95),
  { "nesterov", "boolean", "look ahead along the momentum (Nesterov)", default = true },
  { "iterations", "integer", "Newton-Schulz iterations", default = 5, min = 1, max = 20 },
  { "split", "boolean", "one by one what is stored in one parameter, as queries, keys and values are (nn.linear: "
    .. "`parts`)", default = true },
  { "adjust", "string", "scale of the update of an n × m matrix: √max(1, n / m) (original), or as large as AdamW's "
    .. "(adamw)", default = "adamw", choices = { "adamw", "original" } },
  { "others", "list", "Lua patterns of names of matrices that AdamW changes", default = { "^head", "classifier" } },
  { "others_rate", "number", "AdamW's rate, relative to lr", default = 1, above = 0 },
  beta("beta1", "AdamW's decay of the mean of gradients", 0.9),
  beta("beta2", "AdamW's decay of the mean of their squares", 0.95),
  { "eps", "number", "AdamW's, added to the root of the squares' mean", default = 1e-8, above = 0 },
}, updates.muon)

composed("schedule_free", "Schedule-free AdamW (Defazio et al. 2024): a warm-up and then the same rate, without an end "
  .. "that has to be known; evaluations and saves have the average of the steps. Learning rates are one to ten "
  .. "times AdamW's.", {
  beta("beta1", "gradients are taken at beta1 · average + (1 - beta1) · last iterate", 0.9),
  beta("beta2", "decay of the mean of squared gradients", 0.999),
  { "eps", "number", "added to the root of the squares' mean", default = 1e-8, above = 0 },
}, updates.schedule_free, "optim.schedule_free { lr = optim.constant { peak = 3e-3, warmup = 100 } }", function(a)
  return { prefix = "schedule_free.x.", evaluate = true, save = true, weight = function(state)
    local beta1 = type(a.beta1) == "function" and state "schedule_free.beta1" or a.beta1
    return updates.schedule_free_weight(beta1, state "schedule_free.sum", state "schedule_free.last")
  end }
end)

-- What an own update gets of step_of(): the fields that `?optim.custom` lists, and no others.
local own_step_names = { "param", "gradient", "lr", "count", "decay", "shape", "name", "state" }
local function own_step(step)
  return handle.module("step", step, { names = own_step_names })
end

-- Calls `update` of the recipe; what it raises begins with its line.
local function own_update(step)
  local own = step.settings.update
  local ok, new = source.call(own, own_step(step))
  if not ok then error(new, 0) end
  return new
end

composed("custom", "An optimizer of your own: a function that says the new values of a parameter and of its state.", {
  { "name", "string", "what it is called in messages and in saved states", default = "custom" },
  { "update", "function", "function(step): step.param, gradient, lr, count, decay, shape, name, and "
    .. "step.state(name [, shape]), which is kept from step to step; returns { param = new value, name = new state }",
    required = true },
}, own_update,
  "optim.custom { lr = 0.1, update = function(step) return { param = step.param - step.lr * step.gradient } end }")

-- A step and the steps of a run, as a recipe asks for the rate of one.
local function check_step(name, step, steps)
  define.expect(name .. ": step", step, "number")
  define.expect(name .. ": steps", steps, "number")
end

define.object {
  name = "schedule", kind = "schedule", classes = { Schedule },
  methods = {
    at = function(self, step, steps)
      check_step("schedule:at", step, steps)
      return self:at(step, steps)
    end,
  },
  sentence = "How the learning rate goes over a run, as het.optim makes it.",
  members = {
    { "at", "schedule:at(step, steps)", "The rate of a step (from 1) of a run of `steps`.",
      example = "for step = 1, 10 do print(optim.cosine(1e-3):at(step, 10)) end" },
  },
}

define.object {
  name = "optimizer", kind = "optimizer", classes = { Optimizer },
  methods = {
    rate = function(self, step, steps, name)
      check_step("optimizer:rate", step, steps)
      if name ~= nil then define.expect("optimizer:rate: name", name, "string") end
      return self:rate(step, steps, name)
    end,
    decay_of = function(self, parameter)
      local ok = type(parameter) == "table" and type(parameter.name) == "string" and type(parameter.shape) == "table"
      if not ok then
        errors.usage("optimizer:decay_of: %s was given; { name = \"blocks.0.mlp.up.weight\", shape = { 64, 64 } } is "
          .. "needed", text.value(parameter))
      end
      return self:decay_of(parameter)
    end,
  },
  sentence = "How the weights change, as het.optim makes it.",
  members = {
    { "rate", "optimizer:rate(step, steps[, name])", "The learning rate of a step (from 1) of a run of `steps`; with "
      .. "the name of a parameter that of its group." },
    { "decay_of", "optimizer:decay_of(parameter)", "The weight decay of a parameter, { name =, shape = }: of the first "
      .. "pattern in `decay` that its name has, else weight_decay (of its group) for matrices and 0 for vectors." },
  },
}

return suggest.module("het.optim", optim)
