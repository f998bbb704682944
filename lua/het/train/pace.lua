--- How many steps apart snapshots are, in memory or on disk, where the recipe does not say: by what one costs, which is
-- measured, and by how often ranks are lost.
--
-- J. W. Young, "A first order approximation to the optimum checkpoint interval" (1974); J. T. Daly, "A higher order
-- estimate of the optimum checkpoint interval for restart dumps" (2006), equation 37:
--   interval = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d    for d < 2M, else M
-- where d: seconds that steps lose to a snapshot, M: mean seconds between losses.
--
-- A pace is plain data of one rank: { since =, clean = { seconds }, beside = { seconds =, steps = }, cost =, least = };
-- `least`: seconds between two snapshots at least.
local native = require "het.native"
local ledger = require "het.train.ledger"

local pace = {}

--- Steps from the first snapshot of a plan to the second: steps without one are measured there.
pace.first_steps = 4
local most_clean = 32        -- steps without a snapshot that count, the last ones
-- Seconds for which one rank lasts before a loss was seen: about what a day of spot machines shows (g4dn-trace.csv of
-- uclasystem/bamboo: 74 losses in 136 machine hours).
local expected_life = 2 * 3600

--- Of the snapshots of one place.
-- @tparam[opt=0] number least seconds between two of them
function pace.new(least)
  return { clean = {}, beside = { seconds = 0, steps = 0 }, least = least or 0 }
end

--- Other ranks or another plan follow: what steps and snapshots take is measured again.
function pace.follow(self)
  self.since, self.clean, self.beside, self.cost = nil, {}, { seconds = 0, steps = 0 }, nil
end

--- A step is done. Seconds are counted from the one before.
-- @bool beside whether a snapshot was under way
function pace.step(self, beside)
  local now, since = native.clock(), self.since
  self.since = now
  if not since then return end
  if beside then
    self.beside.seconds, self.beside.steps = self.beside.seconds + now - since, self.beside.steps + 1
  else
    table.insert(self.clean, now - since)
    if #self.clean > most_clean then table.remove(self.clean, 1) end
  end
end

local function median(numbers)
  local sorted = { unpack(numbers) }
  table.sort(sorted)
  return sorted[math.ceil(#sorted / 2)]
end

-- What this rank has measured until a snapshot is whole: { elapsed =, cost =, step = }; without the last two where too
-- few steps had none beside them.
local function measured(self, run)
  local own = { elapsed = ledger.age(run.ledger) }
  if #self.clean >= pace.first_steps - 1 then
    own.step = median(self.clean)
    local cost = math.max(0, self.beside.seconds - self.beside.steps * own.step)
    self.cost = self.cost and (self.cost + cost) / 2 or cost
    own.cost = self.cost
  end
  self.beside = { seconds = 0, steps = 0 }
  return own
end

--- Seconds of training between two snapshots: Daly's.
function pace.seconds(cost, between_losses)
  local d, m = cost, between_losses
  if d >= 2 * m then return m end
  return math.sqrt(2 * d * m) * (1 + math.sqrt(d / (2 * m)) / 3 + d / (18 * m)) - d
end

--- Mean seconds between losses of some rank.
-- @number elapsed seconds in which `gone` of them were lost
function pace.between_losses(elapsed, ranks, gone)
  return (expected_life + elapsed * ranks) / (1 + gone) / ranks
end

--- Steps from the snapshot that is whole now to the next, by what all ranks have measured.
-- @tparam {table,...} all of each rank, { elapsed =, cost =, step = }
-- @int gone ranks that were lost since the run began
-- @tparam[opt=0] number least seconds
function pace.steps(all, gone, least)
  local elapsed, cost, step = 0, nil, nil
  for _, own in ipairs(all) do
    elapsed = math.max(elapsed, own.elapsed)
    if own.cost then cost, step = math.max(cost or 0, own.cost), math.max(step or 0, own.step) end
  end
  if not cost then return pace.first_steps end
  local seconds = math.max(least or 0, pace.seconds(cost, pace.between_losses(elapsed, #all, gone)))
  return math.max(1, math.floor(seconds / math.max(step, 1e-6)))
end

--- The same, of a run whose snapshot is whole on all ranks now. All ranks call it.
-- @tparam table self the pace of such snapshots
function pace.next_steps(self, run)
  local texts = { native.json_encode(measured(self, run)) }
  if run.cluster then texts = run.cluster:all_gather(texts[1]) end
  local all = {}
  for rank, words in ipairs(texts) do all[rank] = native.json_decode(words) end
  return pace.steps(all, run.ledger.gone, self.least)
end

return pace
