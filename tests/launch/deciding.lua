-- When a run lets others join, and how far apart its snapshots are: hetrun --trust deciding.lua
require "het.train"   -- makes Run a kind
local Run = require "het.train.run"
local ledger = require "het.train.ledger"
local on_change = require "het.policy.on_change"
local pace = require "het.train.pace"

local function check(is_right, what, ...)
  if not is_right then error(what:format(...), 2) end
end

-- Others wait. What is not known speaks for them.
local run = setmetatable({ arguments = {} }, Run)
local function admits(change)
  change.kind, change.ranks, change.waiting = "waiting", 2, 1
  return on_change(run, change)
end
check(admits {}, "nothing is known")
local known = { step_seconds = 1, new_step_seconds = 0.5, seconds_left = 100, change_seconds = 20 }
local function with(more)
  local change = {}
  for name, value in pairs(known) do change[name] = value end
  for name, value in pairs(more) do change[name] = value end
  return change
end
check(admits(with {}), "50 s are gained for 20 s")
check(not admits(with { change_seconds = 26 }), "50 s are gained for 26 s, which may be 52 s")
check(not admits(with { seconds_left = 70 }), "35 s are gained for 20 s")
check(not admits(with { seconds_between_losses = 70 }), "35 s are gained until the next loss")
check(not admits(with { new_step_seconds = 1.2, change_seconds = 0 }), "steps become slower")

-- A run's age counts, whatever member asks; what joins takes the ledger over.
local age = ledger.age(ledger.new(0, 0))
check(age >= 0 and age < 10, "a run that has just begun is %g s old", age)
local old = ledger.new(0, 0)
old.at = old.at - 3600
check(math.abs(ledger.age(old) - 3600) < 10, "a run that began an hour ago is %g s old", ledger.age(old))

-- Daly's interval: of what all ranks have measured the most counts.
local two = { { elapsed = 0, cost = 1, step = 0.5 }, { elapsed = 10, cost = 2, step = 0.5 } }
local mean = pace.between_losses(10, 2, 0)
check(mean == (7200 + 20) / 2, "%g s between losses", mean)
check(pace.between_losses(10, 2, 3) < mean, "losses that were do not count")
check(pace.steps(two, 0) == math.floor(pace.seconds(2, mean) / 0.5), "%d steps", pace.steps(two, 0))
local daly = math.sqrt(4 * mean) * (1 + math.sqrt(1 / mean) / 3 + 1 / (9 * mean)) - 2
check(math.abs(pace.seconds(2, mean) - daly) < 1e-9, "another interval")
check(pace.seconds(8, 3) == 3, "a snapshot that costs more than twice the time between losses")
check(pace.steps({ { elapsed = 0 } }, 0) == pace.first_steps, "nothing is measured")
check(pace.steps({ { elapsed = 0, cost = 0, step = 0.5 } }, 0) == 1, "what costs nothing is done after each step")
check(pace.steps({ { elapsed = 0, cost = 0, step = 0.5 } }, 0, 30) == 60, "30 s at least")

print "right"
os.exit(0)
