--- Parameters that evaluations and saves have in place of the trained ones: exponential moving averages (`ema` of
-- het.train), or the averages that an optimizer keeps itself.
--
-- Beside each trained parameter X stands a state of its shape, `prefix` .. X, kept by the steps. The averaged parameter
-- is (1 - w) · state + w · X, with a weight w of the step. A step updates moving averages with the parameters that it
-- begins with, so that they lie over the ranks as the parameters do under every plan; the formula adds those that the
-- last step has left.
local op = require "het.op"

local average = {}

local moving_prefix = "ema."

--- Whether a state is a moving average of `ema`; a run that begins to keep them goes on without.
function average.is_moving(name) return name:sub(1, #moving_prefix) == moving_prefix end

-- Of a run with `ema`: whether evaluations and saves have the averages; nil without.
local function moving(a) return a.ema and { prefix = moving_prefix, evaluate = a.ema.evaluate, save = a.ema.save } end

--- What a run averages: { prefix =, evaluate =, save = }, or nil. Of optimizers that average, it has also
-- weight(state): w as a scalar, where state(name) is a number that they keep for the parameter.
-- @tparam table a het.train's arguments
function average.of(a) return moving(a) or a.optimizer.average or nil end

-- The weight of the parameters that a step has left in the average up to them: the first ones count alone.
local function weight_after(run, step, before)
  local count = step - run.averages_since
  if count <= 0 then return before end
  return count == 1 and 1 or 1 - run.arguments.ema.decay
end

--- What the training graph gets as "average_weight" in a step.
function average.weight_of_step(run, step) return weight_after(run, step - 1, 0) end

--- The weight of the trained parameters in moving averages, as the run is; nil where there are none.
function average.weight(run) return run.arguments.ema and weight_after(run, run.step, 1) or nil end

--- (1 - w) · state + w · parameter, of values or tensors; the weight w is a number or a scalar.
local function mixed(state, parameter, weight)
  if type(weight) == "number" then
    return op.add(op.scale(state, { factor = 1 - weight }), op.scale(parameter, { factor = weight }))
  end
  return op.add(op.mul(state, op.shift(op.neg(weight), { amount = 1 })), op.mul(parameter, weight))
end

--- Add the update of moving averages to a training graph.
-- @tparam table parameters trained ones: { name =, shape =, value = }
-- @param coefficient not finite where the step does not count
function average.update(graph, parameters, coefficient)
  local weight = graph:input("average_weight", "f32", {}, true)
  for _, parameter in ipairs(parameters) do
    local state = graph:buffer(moving_prefix .. parameter.name, "f32", parameter.shape)
    op.assign(state, mixed(state, parameter.value, weight), coefficient)
  end
end

--- What the builder of an evaluation puts in the place of a parameter.
-- @tparam table kept what average.of gave
function average.value(builder, kept, name, parameter, shape)
  local state = builder.graph:buffer(kept.prefix .. name, "f32", shape)
  local weight = kept.weight and kept.weight(function(which)
    return builder.graph:buffer(("%s.%s"):format(which, name), "f32", {})
  end)
  return mixed(state, parameter, weight or builder:input("average_weight", "f32", {}, true))
end

--- A state as its model is saved: the averaged parameters in place of the trained ones where the run saves averages;
-- else the state itself.
-- @param state what has names() and read(name)
-- @tparam ?number weight what average.weight gave for the step of the state
function average.saved(run, state, weight)
  local kept = average.of(run.arguments)
  if not kept or not kept.save then return state end
  local names, averaged = state:names(), {}
  for _, entry in ipairs(names) do
    local name = not entry.trained and entry.name:sub(1, #kept.prefix) == kept.prefix
      and entry.name:sub(#kept.prefix + 1)
    if name then averaged[name] = true end
  end
  return {
    names = function() return names end,
    read = function(_, name)
      if averaged[name] then
        local own = kept.weight and kept.weight(function(which) return state:read(("%s.%s"):format(which, name)) end)
        return mixed(state:read(kept.prefix .. name), state:read(name), own or weight)
      end
      return state:read(name)
    end,
  }
end

-- A state whose moving averages count the parameters that the last step has left.
local Counted = {}
Counted.__index = Counted
function Counted:names() return self.state:names() end
function Counted:read(name)
  local tensor = self.state:read(name)
  if not average.is_moving(name) then return tensor end
  return mixed(tensor, self.state:read(name:sub(#moving_prefix + 1)), self.weight)
end
average.Counted = Counted

--- A state whose moving averages are those of evaluations and saves.
-- @param state what has names() and read(name)
function average.counted(run, state)
  return run.arguments.ema and setmetatable({ state = state, weight = average.weight(run) }, Counted) or state
end

return average
