-- The rate that a run shows: hetrun --trust progress.lua
local progress = require "het.train.progress"

local function check(is_right, what, ...)
  if not is_right then error(what:format(...), 2) end
end

local shown = progress.new { steps = 10, tokens_per_step = 100, unit = "tokens", quiet = true, every = 1, leads = true }
local function after(step, seconds)
  shown:step { step = step, loss = 1, lr = 1, gradient_norm = 1, seconds = seconds }
  return shown.rate
end

check(after(1, 10) == 10, "the first step alone: %g", shown.rate)
check(after(2, 1) == 100, "the first step counts no longer: %g", shown.rate)
-- A step of 1 s is a third of the three seconds that the rate is a mean over.
check(math.abs(after(3, 0.5) - (100 + (200 - 100) * 0.5 / 3)) < 1e-9, "after a step twice as fast: %g", shown.rate)
local before = shown.rate
check(after(4, 0) == before, "a step without a time changes it: %g", shown.rate)
check(math.abs(after(5, 30) - 100 / 30) < 1e-9, "a step that is longer than three seconds alone: %g", shown.rate)

print "right"
os.exit(0)
