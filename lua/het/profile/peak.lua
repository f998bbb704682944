--- The machine's peak, which model FLOPs utilisation is measured against: FLOP/s of the processor's fastest instruction
-- on registers alone, of a GPU those of a large matrix product. Beside it the FLOP/s of a large product by the kernels
-- here, which plans count on. Kept in the user's cache folder for each dtype and GPU, or processor and number of
-- threads. The first run measures the peak before its first step. A measurement on a busy machine is too low, so that
-- the greatest of several counts: three that lie at least ten minutes apart, and one more after a run that did better
-- than the peak.
local native = require "het.native"

local peak = {}

local measurements, minutes_apart = 3, 10

--- Is this the name of a GPU: cuda, cuda:1, ...?
function peak.is_gpu(device) return device:match "^cuda" ~= nil end

local function read()
  local ok, known = pcall(native.cache_read, "peak.json")
  return ok and type(known) == "table" and known or {}
end

--- What distinguishes devices of unlike speed: a GPU's model; the processor's, its set of kernels and the threads.
function peak.name_of(device)
  local model = native.device(device).model
  if peak.is_gpu(device) then return model end
  return ("%s, %s, %d threads"):format(native.processor(), model, native.threads())
end

-- A GPU's peak is its product. A processor's is that of the machine, whatever kernels it runs.
local function key(device, dtype, what)
  if peak.is_gpu(device) then return ("%s, %s"):format(peak.name_of(device), dtype) end
  if what == "product" then return ("%s, %s, product"):format(peak.name_of(device), dtype) end
  return ("%s, %d threads, %s, registers"):format(native.processor(), native.threads(), dtype)
end

-- { flops, kind, measured (how often), at (when last, seconds since 1970) }, or nil. What is no such entry is absent.
local function entry_of(known, device, dtype, what)
  local entry = known[key(device, dtype, what)]
  local sound = type(entry) == "table" and type(entry.flops) == "number" and entry.flops > 0
    and type(entry.measured) == "number" and type(entry.at) == "number"
  return sound and entry or nil
end

--- The device whose peak counts: the reference device computes on the processor too, so that the processor's does.
function peak.device_of(device) return device == "reference" and "cpu" or device end

--- The peak if it was measured before, else nil.
-- @tparam[opt] string what "product": a large matrix product's instead
function peak.known(device, dtype, what)
  local entry = entry_of(read(), device, dtype, what)
  return entry and entry.flops
end

--- Should it be measured (again)?
-- @tparam number reached FLOP/s that a run has reached
function peak.due(device, dtype, reached)
  local entry = entry_of(read(), device, dtype)
  if not entry or reached > entry.flops then return true end
  return entry.measured < measurements and math.abs(os.time() - entry.at) >= 60 * minutes_apart
end

-- The cache keeps the greatest result. Failing to write it is no failure.
local function keep(device, dtype, what, value, kind)
  local known = read()
  local before = entry_of(known, device, dtype, what) or { flops = 0, measured = 0 }
  if before.flops > value then value, kind = before.flops, before.kind or kind end
  known[key(device, dtype, what)] = { flops = value, kind = kind, measured = before.measured + 1, at = os.time() }
  pcall(native.cache_write, "peak.json", known)
  return value, kind
end

--- Measure it now. Returns FLOP/s, and how they were found: "registers, bf16 dot product".
-- @tparam[opt] string what "product": a large matrix product's instead
function peak.measure(device, dtype, what)
  local measured = native.device(device)
  if what == "product" then return keep(device, dtype, what, measured:product_flops(dtype), "matrix product") end
  return keep(device, dtype, what, measured:peak_flops(dtype))
end

--- Begin to measure a large matrix product on a separate thread.
-- @treturn table of the engine: `:done()`, which waits a moment, and `:wait()`, whose result goes to peak.keep_product
function peak.begin_product(device, dtype) return native.device(device):measuring("product_flops", dtype) end
function peak.keep_product(device, dtype, flops)
  return (keep(device, dtype, "product", flops, "matrix product"))
end

return peak
