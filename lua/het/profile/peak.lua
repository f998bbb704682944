--- The machine's peak: FLOP/s of a large matrix product, which model FLOPs utilisation is measured against. Kept in the
-- user's cache folder for each dtype and GPU, or processor and number of threads. The first run measures it before its
-- first step. A measurement on a busy machine is too low, so that the greatest of several counts: three that lie at
-- least ten minutes apart, and one more after a run that did better than the peak.
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

local function key(device, dtype) return ("%s, %s"):format(peak.name_of(device), dtype) end

-- { flops, measured (how often), at (when last, seconds since 1970) }, or nil. What is no such entry is not there.
local function entry_of(known, device, dtype)
  local entry = known[key(device, dtype)]
  local sound = type(entry) == "table" and type(entry.flops) == "number" and entry.flops > 0
    and type(entry.measured) == "number" and type(entry.at) == "number"
  return sound and entry or nil
end

--- The device whose peak counts: the reference device computes on the processor too, so that the processor's does.
function peak.device_of(device) return device == "reference" and "cpu" or device end

--- The peak if it was measured before, else nil.
function peak.known(device, dtype)
  local entry = entry_of(read(), device, dtype)
  return entry and entry.flops
end

--- Should it be measured (again)?
-- @tparam number reached FLOP/s that a run has reached
function peak.due(device, dtype, reached)
  local entry = entry_of(read(), device, dtype)
  if not entry or reached > entry.flops then return true end
  return entry.measured < measurements and math.abs(os.time() - entry.at) >= 60 * minutes_apart
end

--- Measure it now; the cache keeps the greatest result. Failing to write the cache is no failure.
function peak.measure(device, dtype)
  local value = native.device(device):peak_flops(dtype)
  local known = read()
  local before = entry_of(known, device, dtype) or { flops = 0, measured = 0 }
  local entry = { flops = math.max(value, before.flops), measured = before.measured + 1, at = os.time() }
  known[key(device, dtype)] = entry
  pcall(native.cache_write, "peak.json", known)
  return entry.flops
end

return peak
