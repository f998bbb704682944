--- `--chaos SEED`: processes of an elastic run vanish and come again, as a seed draws it. Each process draws the same
-- schedule, and does to itself what that says of it; the launcher starts again whoever is gone. Faults and returns are
-- bound to steps, so that a seed repeats its schedule.
local native = require "het.native"
local errors = require "het.errors"

local chaos = {}

-- The first step that may have a fault, the steps from a fault to the return, at least and at most, and from there to
-- the next fault. Runs of few steps have room for fewer.
local first_step, least_away, most_away, least_whole = 3, 4, 12, 3
local steps_per_event, most_events = 30, 4
local most_of_a_process = 2   -- faults: the launcher does not start again what ends again and again
local return_seconds = 30     -- that the others wait for a process to come again

-- Whole numbers from `low` to `high`, one after the other, as the seed draws them.
local function drawing(seed)
  local index = 0
  return function(low, high)
    index = index + 1
    return low + math.floor(native.random(seed, 0x63686173, index) * (high - low + 1))
  end
end

-- Processes in turn: none comes again before all have been drawn, and those of one event are several.
local function in_turn(draw, count)
  local order = {}
  return function(others)
    if #order == 0 then
      for i = 1, count do table.insert(order, draw(1, i), i - 1) end
    end
    local place = #order
    for _, other in ipairs(others) do
      if other.process == order[place] then place = place - 1 end
    end
    return table.remove(order, place)
  end
end

--- The schedule of a seed: a list of { step =, back =, how = "kill" or "notice", victims = { { process =, at = } } },
-- in the order of steps. `at`: the share of the step's instructions before which a process is killed; `back`: the step
-- after which those that are gone join again.
-- @tparam table run `seed`, `processes`, `least` (that always stay), `steps`
function chaos.draw(run)
  local draw = drawing(run.seed)
  local events = math.max(1, math.min(most_events, math.floor(run.steps / steps_per_event)))
  local room = math.floor((run.steps - first_step) / events)   -- steps of an event, and until the next one
  if room < least_away + least_whole then
    errors.usage("--chaos: a run of %d steps has no room for faults; %d or more have", run.steps,
      first_step + least_away + least_whole)
  end
  local schedule, next_process, kinds = {}, in_turn(draw, run.processes), {}
  local left = most_of_a_process * run.processes
  for i = 1, events do
    local away = draw(least_away, math.min(most_away, room - least_whole))
    local step = first_step + (i - 1) * room + draw(0, room - least_whole - away)
    local event = { step = step, back = step + away, how = draw(1, 5) > 2 and "kill" or "notice", victims = {} }
    for _ = 1, math.min(left, draw(1, math.min(2, run.processes - run.least))) do
      left = left - 1
      table.insert(event.victims, { process = next_process(event.victims), at = draw(0, 99) / 100 })
    end
    table.sort(event.victims, function(a, b) return a.process < b.process end)
    if #event.victims > 0 then
      schedule[i], kinds[event.how] = event, true
    end
  end
  if #schedule > 1 and not (kinds.kill and kinds.notice) then   -- each run shows both
    schedule[#schedule].how = kinds.kill and "notice" or "kill"
  end
  return schedule
end

-- "processes 0 and 2"
local function processes(victims)
  local numbers = {}
  for _, victim in ipairs(victims) do numbers[#numbers + 1] = victim.process end
  return (#numbers == 1 and "process " or "processes ") .. table.concat(numbers, " and ")
end

--- What a schedule does, in lines.
function chaos.describe(self)
  local lines = { ("chaos: seed %d; of %d processes %d or more always stay"):format(self.seed, self.processes,
    self.least) }
  for _, event in ipairs(self.schedule) do
    local one = #event.victims == 1
    local what = event.how == "kill" and (one and "is killed" or "are killed")
      or (one and "gets notice (SIGTERM)" or "get notice (SIGTERM)")
    lines[#lines + 1] = ("  step %d: %s %s; back after step %d"):format(event.step, processes(event.victims), what,
      event.back)
  end
  return table.concat(lines, "\n")
end

--- The faults of this run; nil without any.
-- @tparam table run its arguments, and how many ranks it has at least and at most
function chaos.begin(run, least, most)
  local seed = tonumber(os.getenv "HETRUN_CHAOS" or "")
  if not seed then return nil end
  local launched = tonumber(os.getenv "WORLD_SIZE")
  if launched > most then
    errors.usage("--chaos has all ranks train: batch = %d has micro-batches for %d of %d", run.arguments.batch, most,
      launched)
  end
  local self = { seed = seed, processes = launched, least = least or 1, steps = run.arguments.steps,
    own = tonumber(os.getenv "RANK"), armed = {}, done = 0 }
  self.schedule = chaos.draw(self)
  return self
end

--- Before a step, on all ranks: whether those that are gone are here again and wait to join. When the schedule has
-- them back, the launcher starts them, and the others wait for that.
function chaos.brings_back(run)
  local self = run.chaos
  local last = self and self.schedule[self.done]
  if not last or run.ranks >= self.processes or run.step < last.back then return false end
  local generation, missing = run.cluster:roster().number, self.processes - run.ranks
  if self.gave_up == generation then return false end
  if run.rank == 0 then native.bring_back(missing) end
  for _ = 1, return_seconds do
    local here = run.member:await(missing, 1)
    if not run.cluster:any(not here) then return true end   -- whoever proposes the next roster knows all of them
  end
  self.gave_up = generation
  return false
end

-- What an event has this process suffer; nil: nothing.
local function fault_of(self, event)
  for _, victim in ipairs(event.victims) do
    if victim.process == self.own then return victim end
  end
end

--- Before a step: what the schedule has this process do. With fewer ranks than there were, when a process has not come
-- again, nothing.
function chaos.in_step(run, executor, step)
  local self = run.chaos
  if not self then return end
  for i, event in ipairs(self.schedule) do
    -- All ranks know it alike: the step before is of the same ranks everywhere. It stays, if that is trained again.
    if event.step == step + 1 and run.ranks == self.processes then self.armed[i] = true end
    if event.step == step and self.armed[i] and i > self.done then
      self.done = i
      local victim = fault_of(self, event)
      if victim and event.how == "notice" then native.terminate_self() end
      if victim and event.how == "kill" then
        self.dies = true
        executor:kill_at(victim.at)
      end
    end
  end
end

--- A new generation: so many events of the schedule were. Who had not come to the last one, which another one's death
-- has cut off, suffers it now; who joins, nothing that was before.
function chaos.agree(run, done, joins)
  local self = run.chaos
  if not self then return end
  for i = self.done + 1, joins and 0 or done do
    if self.armed[i] and fault_of(self, self.schedule[i]) then native.kill_self() end
  end
  self.done = math.max(self.done, done)
end

--- A step was broken off: who was to be killed in it is killed now, where another one was killed first.
function chaos.after_loss(run)
  if run.chaos and run.chaos.dies then native.kill_self() end
end

return chaos
