--- `hetrun doctor`: what this machine offers, and what is missing, a line each.
local native = require "het.native"
local peak = require "het.peak"
local text = require "het.text"

local doctor = {}

local function say(name, words) native.write("stdout", ("%-12s %s\n"):format(name, words)) end

--- Print the report; returns the exit code.
function doctor.run()
  say("hetrun", native.version())
  say("processor", ("%s, %d threads"):format(native.processor(), native.threads()))
  say("memory", text.bytes(native.memory_available()) .. " available")
  for _, dtype in ipairs { "f32", "bf16" } do
    local ok, flops = pcall(peak.measure, "cpu", dtype)
    say("cpu " .. dtype, ok and ("%.0f GFLOP/s in a large matrix product"):format(flops / 1e9) or tostring(flops))
  end
  say("CUDA", "this build runs on the CPU; GPUs are not used")
  return 0
end

return doctor
