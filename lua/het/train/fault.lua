--- Faults that tests of recovery inject: HETRUN_FAULT="rank=2 step=3 at=0.4" kills the process that was started as rank
-- 2 before the instruction 0.4 of the way through step 3; "rank=0 phase=save" kills rank 0 when it begins to save.
-- A process that is started again has none.
local native = require "het.native"
local errors = require "het.errors"

local fault = {}

local fields = { rank = tonumber, step = tonumber, at = tonumber, phase = tostring }

-- The fault of this process, or nil.
local function read()
  local text = os.getenv "HETRUN_FAULT"
  if not text or text == "" or os.getenv "HETRUN_STARTED_AGAIN" then return nil end
  local found = {}
  for word in text:gmatch "%S+" do
    local name, value = word:match "^(%a+)=(.+)$"
    found[name or ""] = fields[name or ""] and fields[name](value)
      or errors.usage('HETRUN_FAULT = "%s": %s is no field; there are rank, step, at (0 to 1) and phase', text, word)
  end
  return tostring(found.rank) == (os.getenv "RANK" or "0") and found or nil
end

--- Arm the executor of a step that this process is to die in.
function fault.in_step(executor, step)
  local found = read()
  if found and found.step == step then executor:kill_at(found.at or 0) end
end

--- Die here, if this is the phase to die in.
function fault.in_phase(name)
  local found = read()
  if found and found.phase == name then native.kill_self() end
end

return fault
