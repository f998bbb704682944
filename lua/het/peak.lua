--- The machine's peak: FLOP/s of a large matrix product, which model FLOPs utilisation is measured against. Measured
-- once for a processor, number of threads and dtype, and kept in the user's cache folder.
local native = require "het.native"

local peak = {}

local function cache_path()
  local base = os.getenv("XDG_CACHE_HOME")
  if not base or base == "" then
    local home = os.getenv("HOME")
    if not home or home == "" then return nil end
    base = home .. "/.cache"
  end
  return base .. "/hetrun/peak.json"
end

local function read()
  local path = cache_path()
  if not path or native.path_kind(path) ~= "file" then return {} end
  local ok, known = pcall(native.json_read, path)
  return ok and type(known) == "table" and known or {}
end

local function key(device, dtype)
  return ("%s, %d threads, %s, %s"):format(native.processor(), native.threads(), device, dtype)
end

--- The peak if it was measured before, else nil.
function peak.known(device, dtype)
  local value = read()[key(device, dtype)]
  return type(value) == "number" and value or nil
end

--- Measure it now; the cache keeps the result, or the greater one of a quieter hour. Failing to write the cache is no
-- failure.
function peak.measure(device, dtype)
  local value = math.max(native.device(device):peak_flops(dtype), peak.known(device, dtype) or 0)
  local path = cache_path()
  if path then
    local known = read()
    known[key(device, dtype)] = value
    pcall(function()
      native.make_folder((path:gsub("/[^/]*$", "")))
      native.json_write(path, known)
    end)
  end
  return value
end

return peak
