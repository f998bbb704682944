--- `hetrun plan --types`: the device types that a cluster may name without describing them, with their figures and
-- where these are published.
local native = require "het.native"
local text = require "het.text"

local types = {}

local function rate(flops) return flops > 0 and ("%.4g"):format(flops / 1e12) or "-" end

--- The table for people.
-- @tparam list known of native.device_type_list
function types.text(known)
  local form = "%-11s %7s %7s %7s %6s %6s %6s  %s"
  local lines = { form:format("type", "f32", "bf16", "f16", "memory", "GB/s", "link", "source"),
    form:format("", "TFLOP/s", "TFLOP/s", "TFLOP/s", "GiB", "", "GB/s", "") }
  for _, type in ipairs(known) do
    lines[#lines + 1] = form:format(type.name, rate(type.f32), rate(type.bf16), rate(type.f16),
      ("%.0f"):format(type.memory / 2^30), ("%.0f"):format(type.memory_bandwidth / 1e9),
      ("%.0f"):format(type.bandwidth / 1e9), type.source)
    if type.remark ~= "" then lines[#lines + 1] = ("%-11s %s"):format("", type.remark) end
  end
  lines[#lines + 1] = text.wrap("Dense rates; layers without measured times count half of them. link: between two "
    .. "devices of a machine, one direction. -: no units for it; such layers count at the rate of f32. "
    .. "Others: het.device_type.", 118, "")
  return table.concat(lines, "\n") .. "\n"
end

--- The command; returns the exit code.
function types.run()
  local known = native.device_type_list()
  if native.settings.json then
    native.write("stdout", native.json_encode({ types = known }) .. "\n")
  else
    native.write("stdout", types.text(known))
  end
  return 0
end

return types
