--- `het.op`: every operator of the engine as a function. `op.linear(x, weight, bias)`, `op.softmax(x, {dim = 1})`.
-- Operands that are tensors are computed at once; values of a graph are appended to their graph. A number is a scalar
-- of the first operand's dtype. Absent optional operands are nil or false.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local results = require "het.op.results"
local suggest = require "het.language.suggest"

local op = {}

-- Operands before the arrow of "x[..., in]:T, weight[out, in]:T, bias?[out]:A → ...": commas outside of brackets.
local function count_operands(signature)
  local left = signature:match("^(.-)→") or signature
  if left:find("…", 1, true) then return math.huge end
  local depth, count = 0, left:find("%S") and 1 or 0
  for character in left:gmatch("[%[%],]") do
    if character == "[" then depth = depth + 1
    elseif character == "]" then depth = depth - 1
    elseif depth == 0 then count = count + 1 end
  end
  return count
end

-- How an operator is called: "op.softmax(x, { dim = })".
local function call_of(operator)
  local words = {}
  for operand in (operator.signature:match("^(.-)→") or ""):gsub("%b[]", ""):gmatch("[^,]+") do
    local name = operand:match("^%s*([%w_…]+%??)")
    if name then words[#words + 1] = name end
  end
  local attributes = {}
  for i, name in ipairs(operator.attributes) do attributes[i] = name .. " =" end
  if attributes[1] then words[#words + 1] = "{ " .. table.concat(attributes, ", ") .. " }" end
  return ("op.%s(%s)"):format(operator.name, table.concat(words, ", "))
end

local function is_attributes(value) return type(value) == "table" and debug.getmetatable(value) == nil end

local function wrap(operator)
  local most, has_statistics = count_operands(operator.signature), results.are_statistics(operator.signature)
  return function(...)
    local count = select("#", ...)
    local arguments, attributes = { ... }, nil
    if count > 0 and is_attributes(arguments[count]) then
      attributes = arguments[count]
      if attributes[1] ~= nil then
        errors.usage("op.%s: what stands in braces has names: %s", operator.name, call_of(operator))
      end
      count = count - 1
    end
    if count > most then
      errors.usage("op.%s takes %d operands, %d were given: %s", operator.name, most, count, operator.signature)
    end
    local inputs = {}
    for i = 1, count do inputs[i] = arguments[i] or false end
    if has_statistics then return results.record(native.op(operator.name, inputs, attributes)) end
    return native.op(operator.name, inputs, attributes)
  end
end

local names = {}
for _, operator in ipairs(native.operators()) do
  op[operator.name] = define.document({
    name = "op." .. operator.name, sentence = operator.doc, signature = operator.signature, example = call_of(operator),
  }, wrap(operator))
end
require "het.op.composed"(op)
require("het.op.custom").add(op)
for name in pairs(op) do names[#names + 1] = name end
table.sort(names)

return setmetatable(op, {
  __index = function(_, name)
    errors.usage("unknown operator '%s'%s", tostring(name), suggest.sentence(tostring(name), names, "?op"))
  end,
})
