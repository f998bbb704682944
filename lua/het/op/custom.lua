--- `op.custom_gradient`: functions of values whose gradient is another function. While a graph is made that is to be
-- differentiated, their calls are recorded; graph:gradients gets the records.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local text = require "het.text"

local custom = {}

local records   -- of the graph that is made; nil while none is

--- Call fn(...), which makes a graph; returns the records for graph:gradients, and what fn returns.
function custom.recorded(fn, ...)
  local outer, own = records, {}
  records = own
  local ok, result = pcall(fn, ...)
  records = outer
  if not ok then error(result, 0) end
  return own, result
end

--- The nodes of the calls that were recorded so far, for graph:join_classifiers: a list of { first, last }, where
-- `last` is the first node behind them.
function custom.ranges()
  local ranges = {}
  for i, record in ipairs(records or {}) do ranges[i] = { record.first, record.last } end
  return ranges
end

local function is_value(x) return type(x) == "userdata" and getmetatable(x) == "value" end

-- The values among the arguments, and which arguments they are.
local function values_of(arguments, count)
  local values, places = {}, {}
  for i = 1, count do
    if is_value(arguments[i]) then values[#values + 1], places[#places + 1] = arguments[i], i end
  end
  return values, places
end

-- The gradients of the values, from those of all arguments.
local function backward_of(backward, arguments, count, y, places)
  return function(gradient)
    local found, of_values = { backward(gradient, y, unpack(arguments, 1, count)) }, {}
    for i, place in ipairs(places) do
      local each = found[place]
      if each and not is_value(each) then
        errors.usage("op.custom_gradient: backward returned %s as gradient %d; a value, or nil for none, is needed",
          text.value(each), place)
      end
      of_values[i] = each or false
    end
    return unpack(of_values, 1, #places)
  end
end

local function call(forward, backward, ...)
  local arguments, count = { ... }, select("#", ...)
  local values, places = values_of(arguments, count)
  if not records or #values == 0 then return (forward(...)) end
  local first = native.node_count(values[1])
  local y, second = forward(...)
  if second ~= nil then
    errors.usage "op.custom_gradient: forward returned more than one value; one value is needed"
  end
  if not is_value(y) then
    errors.usage("op.custom_gradient: forward returned %s; one value is needed", y == nil and "nothing"
      or text.value(y))
  end
  for _, value in ipairs(values) do
    if rawequal(value, y) then y = native.op("scale", { y }, { factor = 1 }) end   -- which gets a gradient
  end
  records[#records + 1] = { first = first, last = native.node_count(y), inputs = values, output = y,
    backward = backward_of(backward, arguments, count, y, places) }
  return y
end

--- Adds it to the operators.
function custom.add(op)
  op.custom_gradient = define.document({
    name = "op.custom_gradient", signature = "op.custom_gradient { forward =, backward = }",
    sentence = "A function of values with a gradient of your own. forward(x, ...) returns one value; "
      .. "backward(dy, y, x, ...) gets its gradient, itself and the arguments, and returns a gradient for each "
      .. "argument, nil for none. Both compute with het.op, so that plans cut them as other layers. What forward uses "
      .. "has to be among its arguments.",
    example = "local reversed = op.custom_gradient { forward = function(x) return x end, "
      .. "backward = function(dy) return -dy end }",
  }, function(given)
    local known = { forward = true, backward = true }
    for name in pairs(type(given) == "table" and given or {}) do
      if not known[name] then
        errors.usage("op.custom_gradient has no field '%s'; there are forward, backward", tostring(name))
      end
    end
    for _, name in ipairs { "forward", "backward" } do
      if type(given) ~= "table" or type(given[name]) ~= "function" then
        errors.usage("op.custom_gradient needs the function `%s`", name)
      end
    end
    local forward, backward = given.forward, given.backward
    return function(...) return call(forward, backward, ...) end
  end)
end

return custom
