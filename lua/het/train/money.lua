--- What the machines of a run cost, as --price says for each: all the time that they are there, and the part of it that
-- changes of ranks took. Every rank counts the same in the run's ledger, so that any of them can report it.
--
-- A run has `hourly`: the prices of its machines for an hour, nil where none is known; `paid_at`: until when they are
-- counted.
local native = require "het.native"
local ranks = require "het.plan.ranks"

local money = {}

local hour = 3600

--- The price of an hour of these ranks' machines: the sum of those that are known; nil where none is.
-- @tparam {table,...} all by rank: `host`, and where it is known `price`
function money.hourly(all)
  local sum = 0
  for _, machine in ipairs(ranks.machines_of(all)) do sum = sum + machine.price end
  for _, own in ipairs(all) do
    if own.price then return sum end
  end
  return nil
end

--- Count what was paid until now.
function money.pay(run)
  local now = native.clock()
  if run.hourly and run.paid_at then
    run.ledger.paid = (run.ledger.paid or 0) + run.hourly * (now - run.paid_at) / hour
  end
  run.paid_at = now
end

--- From here on the run has these machines.
function money.follow(run, all)
  money.pay(run)
  run.hourly = money.hourly(all)
end

--- What a change of ranks has cost: nothing was trained for `seconds`, and steps are trained again. nil: no price is
-- known.
function money.lose(run, seconds, steps)
  if not run.hourly then return nil end
  local lost = run.hourly * (seconds + steps * (run.step_seconds or 0)) / hour
  run.ledger.money_lost = (run.ledger.money_lost or 0) + lost
  run.ledger.changes_paid = (run.ledger.changes_paid or 0) + 1
  return lost
end

--- Go on from what one of these ledgers counts: ranks' clocks differ by a little, and the sum of what a run has said
-- for each change must be what it says at its end. Of those that know the most changes the first, which spoke for them.
-- @tparam {table,...} ledgers of the ranks that were there, in the order of ranks
function money.agree(ledger, ledgers)
  local known
  for _, other in ipairs(ledgers) do
    if other.paid and (not known or (other.changes_paid or 0) > (known.changes_paid or 0)) then known = other end
  end
  if not known then return end
  ledger.paid, ledger.money_lost, ledger.changes_paid = known.paid, known.money_lost, known.changes_paid
end

return money
