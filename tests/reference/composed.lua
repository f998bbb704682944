-- Operators that are composed of others (het.op.composed): what each computes of drawn tensors, and the gradients of a
-- weighted sum of it, as one JSON object. composed.py computes the same in PyTorch.
local het = require "het"
local native = require "het.native"
local op = het.op

local function randn(shape, seed) return het.randn(shape, "f32", seed) end
local x, y, z = randn({ 3, 4, 5 }, 1), randn({ 3, 4, 5 }, 2), randn({ 4, 1 }, 3)
local ids = het.tensor({ 3, 0, 2, 2 }, "i32")
local signal, kernel, bias = randn({ 2, 4, 9 }, 4), randn({ 6, 4, 3 }, 5), randn({ 6 }, 6)

-- By name: the operands, and what is computed of them. Those that are drawn have a gradient.
local cases = {
  where = { { x, y }, function(a, b) return op.where(op.less(a, b), a * b, b) end },
  where_broadcast = { { x, z }, function(a, b) return op.where(op.greater(a, 0), a, b) end },
  greater = { { x, y }, op.greater }, greater_equal = { { x, y }, op.greater_equal },
  clamp = { { x }, function(a) return op.clamp(a, { min = -0.5, max = 0.75 }) end },
  clamp_min = { { x }, function(a) return op.clamp(a, { min = 0.1 }) end },
  clamp_max = { { x }, function(a) return op.clamp(a, { max = 0.1 }) end },
  power = { { x }, function(a) return a ^ 3 end },
  conv1d = { { signal, kernel, bias }, op.conv1d },
  conv1d_padded = { { signal, kernel }, function(a, w) return op.conv1d(a, w, { padding = 2, stride = 2 }) end },
  conv1d_causal = { { signal, kernel, bias }, function(a, w, b)
    return op.conv1d(a, w, b, { causal = true, dilation = 2 })
  end },
  conv1d_groups = { { signal, randn({ 6, 2, 3 }, 7) }, function(a, w) return op.conv1d(a, w, { groups = 2 }) end },
  one_hot = { { ids }, function(i) return op.one_hot(i, { classes = 5 }) end },
}
local q, k, v = randn({ 2, 5, 4, 6 }, 9), randn({ 2, 5, 2, 6 }, 10), randn({ 2, 5, 2, 6 }, 11)
local mask = het.tensor({ { 1, 1, 1, 0, 0 }, { 0, 1, 1, 1, 1 } }, "i32")
cases.masked_attention = { { q, k, v, mask }, op.masked_attention }
cases.masked_attention_causal = { { q, k, v, het.tensor { { 1, 1, 1, 0, 0 }, { 1, 1, 1, 1, 0 } } },
  function(...)
    local operands = { ... }
    operands[#operands + 1] = { causal = true, scale = 0.7 }
    return op.masked_attention(unpack(operands))
  end }
cases.masked_attention_across = { { randn({ 2, 3, 2, 8 }, 12), randn({ 2, 5, 2, 8 }, 13), randn({ 2, 5, 2, 8 }, 14),
  mask }, op.masked_attention }
for dim = 0, 2 do
  for _, name in ipairs { "max", "min" } do
    cases[name .. dim] = { { x }, function(a) return (op[name](a, { dim = dim })) end }
    cases[name .. dim .. "_index"] = { { x }, function(a) return (select(2, op[name](a, { dim = dim }))) end }
    cases[name .. dim .. "_keep"] = { { x }, function(a) return (op[name](a, { dim = dim, keep = true })) end }
  end
  cases["argmax" .. dim] = { { x }, function(a) return op.argmax(a, { dim = dim }) end }
  cases["index_select" .. dim] = { { x, het.tensor({ 2, 0, 2 }, "i32") }, function(a, i)
    return op.index_select(a, i, { dim = dim })
  end }
end

local function lists(tensors)
  local found = {}
  for i, tensor in ipairs(tensors) do found[i] = tensor:tolist() end
  return found
end

local found = {}
for name, case in pairs(cases) do
  local operands, compute = unpack(case)
  local result = compute(unpack(operands))
  found[name] = { operands = lists(operands), value = result:tolist() }
  if result.dtype == "f32" and operands[1].dtype == "f32" then
    local weights = randn(result.shape, 8)
    local gradients = { het.gradient(function(...) return op.sum(compute(...) * weights) end, unpack(operands)) }
    found[name].weights, found[name].gradients = weights:tolist(), {}
    for i, operand in ipairs(operands) do
      -- One without a gradient passes none back.
      if operand.dtype == "f32" then found[name].gradients[i] = gradients[i] and gradients[i]:tolist() or 0 end
    end
  end
end
native.write("stdout", native.json_encode(found) .. "\n")
