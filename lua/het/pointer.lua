--- `tensor:data()`: a tensor's own memory as a pointer of LuaJIT's FFI. Recipes get it only with --trust: a pointer
-- reaches everything that the process does.
local native = require "het.native"
local define = require "het.define"
local errors = require "het.errors"

local pointer = {}

-- bf16 and f16 have no type in C: their bits.
local types = {
  f32 = "float *", f64 = "double *", bf16 = "uint16_t *", f16 = "uint16_t *", i32 = "int32_t *", i64 = "int64_t *",
  u8 = "uint8_t *", bool = "uint8_t *",
}

-- The tensor of each pointer: as long as somebody holds the pointer, the memory it points to stays.
local owners = setmetatable({}, { __mode = "k" })

--- What `tensor:data()` gives.
pointer.data = define.document({
  name = "tensor:data", signature = "tensor:data()",
  sentence = "A tensor's own memory, not copied, as a pointer of LuaJIT's FFI: to float for f32, double, int32_t, "
    .. "int64_t, uint8_t for u8 and bool, uint16_t (the bits) for bf16 and f16. The memory stays as long as this "
    .. "pointer does; one computed from it (p + 1) does not keep it. Only with --trust.",
  example = "local p = x:data(); p[0] = 5",
}, function(tensor)
  if not native.settings.trust then
    errors.usage("tensor:data() is a pointer of LuaJIT's ffi, and ffi needs --trust")
  end
  local made = require("ffi").cast(types[tensor.dtype], (native.address(tensor)))
  owners[made] = tensor
  return made
end)

return pointer
