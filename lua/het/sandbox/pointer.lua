--- `tensor:data()`: a tensor's own memory as a pointer of LuaJIT's FFI. Recipes get it only with --trust: a pointer
-- reaches everything that the process does.
local native = require "het.native"
local errors = require "het.errors"

local pointer = {}

-- bf16 and f16 have no type in C: their bits.
local types = {
  f32 = "float *", f64 = "double *", bf16 = "uint16_t *", f16 = "uint16_t *", i32 = "int32_t *", i64 = "int64_t *",
  u8 = "uint8_t *", bool = "uint8_t *",
}

-- The tensor of each pointer: as long as the pointer is held, its memory stays.
local owners = setmetatable({}, { __mode = "k" })

--- What `tensor:data()` gives: see the tensor's members in het.
function pointer.data(tensor)
  if not native.settings.trust then
    errors.usage("tensor:data() is a pointer of LuaJIT's ffi, and ffi needs --trust")
  end
  local made = require("ffi").cast(types[tensor.dtype], (native.address(tensor)))
  owners[made] = tensor
  return made
end

return pointer
