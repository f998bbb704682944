--- Faults that tests of recovery inject: HETRUN_FAULT="rank=2 step=3 at=0.4" kills the process that was started as
-- rank 2 before the instruction 0.4 of the way through step 3; "rank=0 phase=save" kills rank 0 when it begins to
-- save; "rank=1 step=20 hold=FILE" holds rank 1 before step 20 until there is that file, "rank=0 phase=plan
-- hold=FILE" keeps the planner of rank 0 at work until then, "phase=measure" its measurements; "rank=0 rest=0.75" lets
-- rank 0 rest for so many seconds in each step, as a host does beside a device that computes. Several are separated by
-- commas. A process that is started again has none.
local native = require "het.native"
local errors = require "het.errors"

local fault = {}

local fields = { rank = tonumber, step = tonumber, at = tonumber, phase = tostring, hold = tostring, rest = tonumber }

local function parse(text)
  local found = {}
  for word in text:gmatch "%S+" do
    local name, value = word:match "^(%a+)=(.+)$"
    found[name or ""] = fields[name or ""] and fields[name](value) or errors.usage('HETRUN_FAULT = "%s": %s is no '
      .. "field; there are rank, step, at (0 to 1), phase, hold and rest", text, word)
  end
  return found
end

-- The faults of this process, a list.
local function read()
  local found = {}
  local text = not os.getenv "HETRUN_STARTED_AGAIN" and os.getenv "HETRUN_FAULT" or ""
  for each in text:gmatch "[^,]+" do
    local one = parse(each)
    if tostring(one.rank) == (os.getenv "RANK" or "0") then found[#found + 1] = one end
  end
  return found
end

--- Arm the executor of a step that this process is to die in, or wait before it.
function fault.in_step(executor, step)
  for _, found in ipairs(read()) do
    if found.step == step and found.hold then
      native.wait_for_file(found.hold)
    elseif found.step == step then
      executor:kill_at(found.at or 0)
    elseif found.rest then
      native.sleep(found.rest)
    end
  end
end

--- Die here, if this is the phase to die in.
function fault.in_phase(name)
  for _, found in ipairs(read()) do
    if found.phase == name and not found.hold then native.kill_self() end
  end
end

--- Whether this phase goes on until there is a file.
function fault.is_held(name)
  for _, found in ipairs(read()) do
    if found.phase == name and found.hold and native.path_kind(found.hold) == "none" then
      native.sleep(0.01)
      return true
    end
  end
  return false
end

return fault
