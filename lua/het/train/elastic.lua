--- A run that outlives its members (`--elastic LEAST:MOST`): generation after generation, each with the ranks that are
-- there, a plan for them and a session. The run's state, step and cursor go on from what the members have.
local native = require "het.native"
local errors = require "het.errors"
local plan = require "het.plan"
local session = require "het.train.session"

local elastic = {}

--- Whether an error is the loss of another rank.
function elastic.is_loss(problem) return select(2, errors.describe(problem)) == "peer" end

-- The plan for the ranks that are there. One that the recipe gives counts as long as it is for as many; ranks without
-- a plan are replicas; else the first rank asks the planner, and all follow it.
local function choose_plan(self, ranks)
  local a = self.arguments
  local given = a.plan and not a.plan.automatic and plan.resolve(a.plan, a.batch)
  if given and #plan.devices(given) == ranks then return given end
  if not a.plan then return plan.replicas(ranks, a.batch, a.microbatch) end
  local planning = require "het.planning"
  local text = ""
  if self.cluster:rank() == 0 then
    local wanted = (a.plan.automatic and a.plan or plan.auto {}).automatic
    local answer = planning.begin(self, require("het.cluster").here(ranks), wanted)()
    if not answer.feasible then
      errors.usage("no plan fits the %d ranks that are left:\n  %s", ranks, table.concat(answer.problems, "\n  "))
    end
    text = planning.to_lua(answer)
  end
  return plan.resolve((planning.from_lua(self.cluster:tell(text)[1])), a.batch)
end

-- What members tell each other before anything else. `offset`: of the cursor from the samples that the steps took.
local function exchange(self)
  local own = { has = self.has_state or false, followed = self.followed, best = self.best, validation = self.validation,
    offset = self.cursor and self.cursor - self.step * self.arguments.batch }
  local told = {}
  for i, words in ipairs(self.cluster:tell(native.json_encode(own))) do told[i] = native.json_decode(words) end
  return told
end

-- A session of the generation that has just begun. A rank without the state takes over from one that has it.
local function begin_session(self)
  local told = exchange(self)
  local known, followed
  for _, other in ipairs(told) do
    if other.has then
      known = known or other
      followed = math.min(followed or math.huge, other.followed)
    end
  end
  self.plan = choose_plan(self, #told)
  local before = self.session
  if known and not self.has_state then
    self.step, self.cursor, self.has_state = 0, known.offset, true
    self.best, self.validation = known.best, known.validation
  end
  self.session = session.new(self, before)
  self.unfollowed = known and followed < self.step or false
end

--- This process as a member of the run, and the first generation that it is in.
-- @tparam table joining fields of native.join
function elastic.join(self, joining)
  joining.least, joining.most = native.settings.least, native.settings.most
  self.member = native.member(joining)
  self.cluster = self.member:open() or errors.raise("peer", "the run has ended")
end

--- Builds the first session; `prepare` makes the state, and is called again when a rank is lost meanwhile.
function elastic.begin(self, prepare)
  while true do
    local ok, problem = pcall(function()
      prepare()
      begin_session(self)
    end)
    if ok then return end
    if self.left or not elastic.is_loss(problem) then error(problem, 0) end
    elastic.next_generation(self, problem)
  end
end

--- Gives up the generation and waits for the next one.
function elastic.next_generation(self, problem)
  self.cluster:close((errors.describe(problem)))
  self.left = true   -- the run, unless there is a next generation with this rank
  self.cluster = self.member:open() or errors.raise("peer", "the run has ended without this rank")
  self.left = false
  self.rank = self.cluster:rank()
end

-- Goes on in the next generation after a loss, or after the ones that are lost meanwhile.
local function recover(self, reporter, problem)
  local started = native.clock()
  local step = self.step
  self.session:freeze()
  while true do
    local ok, why = pcall(function()
      elastic.next_generation(self, problem)
      begin_session(self)
    end)
    if ok then break end
    if self.left or not elastic.is_loss(why) then error(why, 0) end
    problem = why
  end
  local roster = self.cluster:roster()
  reporter:lead(self.rank == 0)
  reporter:generation { generation = roster.number, reason = roster.reason, members = roster.members,
    lost = roster.lost, joined = roster.joined, step = self.step, steps_repeated = math.max(0, step - self.step),
    moved_bytes = self.session.restored and self.session.restored.moved_bytes or 0,
    seconds = native.clock() - started }
end

--- Call body(self, reporter), again after each loss of a rank. Of a run with fixed ranks a loss is an error.
function elastic.through_losses(self, reporter, body)
  while true do
    local ok, result = pcall(body, self, reporter)
    if ok then return result end
    if not self.member or not elastic.is_loss(result) then error(result, 0) end
    recover(self, reporter, result)
  end
end

--- All ranks have ended the run together.
function elastic.leave(self)
  self.member:end_run()
  self.session:close "the run has ended"
  self.cluster:close "the run has ended"
  self.member:leave()
end

return elastic
