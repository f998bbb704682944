--- What the machines of a run cost, as --price says for each: for as long as they are there, and of that what changes
-- of ranks took. Every rank counts alike, in the run's ledger, so that whoever speaks for the run knows.
--
-- A run has `hourly`: the prices of its machines for an hour, nil where none is known; `paid_at`: until when they are
-- counted.
local native = require "het.native"

local money = {}

local hour = 3600

--- An hour of these ranks' machines, each of which is paid once: the sum of the prices that are known; nil where none
-- is.
-- @tparam {table,...} all by rank: `host`, and where it is known `price`
function money.hourly(all)
  local by_host, sum = {}, nil
  for _, own in ipairs(all) do
    if own.price then by_host[own.host] = math.max(by_host[own.host] or 0, own.price) end
  end
  for _, price in pairs(by_host) do sum = (sum or 0) + price end
  return sum
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
  return lost
end

--- What others have counted, some of whom were there for longer: the most of each sum counts.
function money.agree(ledger, other)
  for _, sum in ipairs { "paid", "money_lost" } do
    if other[sum] then ledger[sum] = math.max(ledger[sum] or 0, other[sum]) end
  end
end

--- "0.123": a sum with three digits that count.
function money.show(sum) return sum < 1000 and ("%.3g"):format(sum) or ("%.0f"):format(sum) end

return money
