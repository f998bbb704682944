--- The precision that weights are stored in: f32, bf16 or f16.
local native = require "het.native"
local op = require "het.op"
local text = require "het.text"

local precision = {}

--- What config.json calls them.
precision.names = { f32 = "float32", bf16 = "bfloat16", f16 = "float16" }

--- Which dtypes are floats: others are stored as they are.
precision.floats = { f64 = true, f32 = true, bf16 = true, f16 = true }

--- The greatest number that f16 holds.
precision.greatest_f16 = 65504

--- The precision of stored tensors; f32 where they have several.
-- @tparam table tensors by name
function precision.of(tensors)
  local found
  for _, tensor in pairs(tensors) do
    if precision.floats[tensor.dtype] then
      if found and tensor.dtype ~= found then return "f32" end
      found = tensor.dtype
    end
  end
  return precision.names[found] and found or "f32"
end

--- The greatest absolute value of a tensor's elements; 0 where it has none.
function precision.greatest(tensor)
  local elements = tensor:numel()
  if elements == 0 then return 0 end
  local flat = op.reshape(op.abs(tensor:to "f32"), { shape = { elements } })
  return op.max(flat, { dim = 0 }):item()
end

-- The first tensor with a finite value that f16 does not hold, and the value.
local function beyond_f16(tensors)
  for _, name in ipairs(text.keys(tensors)) do
    local most = precision.floats[tensors[name].dtype] and precision.greatest(tensors[name]) or 0
    if most > precision.greatest_f16 and most < math.huge then return name, most end
  end
end

--- Tensors in a precision: rounded to nearest, integers as they are. What f16 does not hold stays f32, all of it, and
-- that is said: nothing that was learned is lost.
-- @tparam table tensors by name
-- @string wanted "f32", "bf16" or "f16"
-- @treturn table by name
-- @treturn string the precision that they are in
function precision.converted(tensors, wanted)
  local name, most
  if wanted == "f16" then name, most = beyond_f16(tensors) end
  if name then
    native.write("stderr", ("'%s' has the value %.6g, and f16 holds %d at most: the model is saved in f32\n"):format(
      name, most, precision.greatest_f16))
    wanted = "f32"
  end
  local converted = {}
  for each, tensor in pairs(tensors) do
    converted[each] = precision.floats[tensor.dtype] and tensor:to(wanted) or tensor
  end
  return converted, wanted
end

return precision
