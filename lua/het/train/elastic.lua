--- A run that outlives its members (`--elastic LEAST:MOST`): generation after generation, each with the ranks that are
-- there, a plan for them and a session. The run's state, step and cursor go on from what the members have.
local native = require "het.native"
local ahead = require "het.train.ahead"
local chaos = require "het.train.chaos"
local claims = require "het.train.claims"
local errors = require "het.errors"
local evaluation = require "het.train.evaluation"
local files = require "het.model.folder"
local ledger = require "het.train.ledger"
local money = require "het.train.money"
local pace = require "het.train.pace"
local places = require "het.train.places"
local policy = require "het.policy"
local ranks = require "het.plan.ranks"
local saving = require "het.train.saving"
local session = require "het.train.session"
local snapshots = require "het.train.snapshots"
local together = require "het.train.together"

local elastic = {}

-- Generations of the same ranks that may end in a row where they have begun: then something is wrong that another one
-- does not fix.
local most_fruitless = 10

--- Whether an error is the loss of another rank.
function elastic.is_loss(problem) return select(2, errors.describe(problem)) == "peer" end

-- Those of `members` that are not among `there`.
local function missing_in(there, members)
  local is_there, missing = {}, {}
  for _, id in ipairs(there) do is_there[id] = true end
  for _, id in ipairs(members) do
    if not is_there[id] then missing[#missing + 1] = id end
  end
  return missing
end

-- "rank 2 (host-a)", "ranks 0 and 3 (host-a)", "ranks 0 (host-a), 1 (host-a) and 3 (host-b)": those of the last session
-- that are among `missing`.
local function names_of(self, missing)
  local is_missing, names, hosts = {}, {}, {}
  for _, id in ipairs(missing) do is_missing[id] = true end
  for i, id in ipairs(self.members) do
    if is_missing[id] then names[#names + 1], hosts[#hosts + 1] = ("%d"):format(i - 1), self.hosts[i] end
  end
  local one_host = true
  for _, host in ipairs(hosts) do one_host = one_host and host == hosts[1] end
  for i, host in ipairs(one_host and {} or hosts) do names[i] = ("%s (%s)"):format(names[i], host) end
  local last = table.remove(names)
  local list = names[1] and ("ranks %s and %s"):format(table.concat(names, ", "), last) or "rank " .. last
  return one_host and ("%s (%s)"):format(list, hosts[1]) or list
end

-- Why there is a new generation: as the roster says, but that ranks were not lost which all know to leave; and all that
-- went since the last session, which may be some generations ago.
local function reason_of(self, roster)
  local missing, leavers = missing_in(roster.members, self.members or {}), self.leavers or {}
  if #missing == 0 then return roster.reason end
  local names, rest = names_of(self, missing), roster.reason:match " lost(.*)$" or ""
  for _, id in ipairs(missing) do
    if not leavers[id] then return ("%s %s lost%s"):format(names, #missing == 1 and "is" or "are", rest) end
  end
  local _, why = next(leavers)
  return ("%s %s left%s: %s"):format(names, #missing == 1 and "has" or "have", rest, why)
end

--- Whether too few ranks are left for the run, and no others came in time: these save what they have, and end it.
function elastic.is_too_small(self)
  local roster = self.member and self.cluster:roster()
  return roster and #roster.members < roster.least or false
end

-- What a policy decides a change by.
-- @string kind see het.policy.on_change
local function change_of(self, kind, more)
  local roster, left = self.cluster:roster(), self.arguments.steps - self.step
  more.kind, more.generation, more.reason, more.ranks = kind, roster.number, self.change_reason, #roster.members
  more.step, more.steps_left, more.step_seconds = self.step, left, self.step_seconds
  more.seconds_left = self.step_seconds and self.step_seconds * left
  more.change_seconds, more.ends = self.change_seconds, elastic.is_too_small(self) or nil
  return more
end

-- What the ranks exchange before anything else. `step`: of the state, nil without one; `left_behind`: it was not
-- in the generation that the others come from; `called`, `followed`: the last steps whose on_step, and all that follows
-- them, has been; `phases` of the run that are done (het.train.loop), and whether the first was `interrupted`;
-- `offset`: of the cursor from the samples that the run's steps took; `reached`: the last step before the loss, where
-- another one has broken off what followed it; `ended`: the step whose on_step has called run:stop(); `host`, `price`
-- and `link` of the machine; `nonce`: of the generation, if this is its first rank; `number`: of the run, nil on a rank
-- that comes in.
local function exchange(self)
  local own = { left_behind = self.left_behind, host = native.host(), price = native.settings.price,
    nonce = native.random_number(), number = self.number, link = ranks.own_link(self) }
  local state = self.has_state and { step = self.state:step(), begun = self.begun, called = self.called,
    followed = self.followed, phases = self.phases_done or 0, interrupted = self.interrupted,
    evaluations = evaluation.numbers(self), reached = self.reached, ended = self.ended,
    offset = self.cursor - self.step * self.arguments.batch, wrote = saving.steps_of_saves(self),
    ledger = self.ledger, members = self.members, faults = self.chaos and self.chaos.done }
  for name, value in pairs(state or {}) do own[name] = value end
  local all = {}
  for i, words in ipairs(self.cluster:all_gather(native.json_encode(own))) do all[i] = native.json_decode(words) end
  return all
end

-- The ranks that have the state to go on from, with what they reported: those of the generation before. When all of
-- these are gone, those that they had left behind may have one still, and the newest counts. Without a step done none
-- has it.
local function holders_of(all)
  for _, left_behind in ipairs { false, true } do
    local holders, newest = {}, -1
    for rank, other in ipairs(all) do
      if other.step and (other.left_behind or false) == left_behind then
        if left_behind and other.step > newest then holders = {} end
        newest = math.max(newest, other.step)
        if not left_behind or other.step == newest then holders[#holders + 1] = { rank = rank - 1, has = other } end
      end
    end
    if #holders > 0 and newest > holders[1].has.begun then return holders end
  end
  return {}
end

-- What a rank that joins takes over from one that has trained.
local function take_over(self, known)
  self.begun, self.step, self.cursor, self.has_state = known.begun, 0, known.offset, true
  self.ledger = known.ledger
  saving.learn_saves(self, known.wrote)
end

-- What a rank has that the others went on without is of no version of theirs.
local function forget(self)
  if self.session then self.session:close "the others went on without this rank" end
  saving.drop(self)
  self.state:clear()
  self.session, self.begun, self.has_state = nil, nil, false
end

-- The step that the ranks go on after, for those who follow it again and have not done it themselves.
local function share_last_step(self)
  local own = self.last_step
  for _, words in ipairs(self.cluster:all_gather(own and own.step == self.step and native.json_encode(own) or "")) do
    if words ~= "" then
      self.last_step = native.json_decode(words)
      self.loss = self.last_step.loss
      return
    end
  end
  self.last_step = { step = self.step }
end

-- A run that one machine asks to go on goes on for all. So does one whose ranks were all lost, and which its launcher
-- has started again: from the last save, or the last snapshot on disk. Without --overwrite the folders can hold no
-- other run's.
local function resume_own(self)
  local a = self.arguments
  local started_again = os.getenv "HETRUN_STARTED_AGAIN" and together.goes_on(self) and not self.overwrite
  local held = started_again and a.save and files.held(a.save)
  local taken = started_again and places.newest_in_folder(self)
  local answers = self.cluster:all_gather((self.resume or held and held.training or taken) and "resume" or "")
  for _, answer in ipairs(answers) do self.resume = self.resume or answer ~= "" end
end

-- What the change of ranks is to the run as a whole, on all ranks alike. `known`: what one reported who was there.
local function count_change(self, known, members, reached)
  local all = self.ledger
  all.changes = all.changes + 1
  all.gone, all.came = all.gone + #missing_in(members, known.members), all.came + #missing_in(known.members, members)
  self.went_back = math.max(0, reached - self.step)
  all.steps_repeated = all.steps_repeated + self.went_back
end

-- What is known of the run where no rank has its state, as all ranks were lost: what control.account_left gives. nil:
-- nothing, or it is of another run. All ranks call it.
local function account_left(self, all)
  if not together.goes_on(self) then return nil end
  local words = together.by_first_in_time(self, function()
    local left = require("het.train.control").account_left(self)
    return left and native.json_encode(left) or ""
  end)
  local left = words ~= "" and native.json_decode(words) or nil
  for _, other in ipairs(all) do
    if left and other.number and other.number ~= left.run then left = nil end
  end
  return left
end

-- All ranks were lost, and the run goes on from what they have kept: what has been since that was kept counts, too.
local function count_loss_of_all(self, left, members)
  ledger.learn(self.ledger, self.step, self.cursor, left.counted)
  count_change(self, left, members, left.step)
  local none_stayed = #missing_in(members, left.members) == #left.members
  self.ledger.at_least = self.ledger.at_least or none_stayed or nil
  self.lost_all = { at = native.clock(), steps = self.went_back }
  self.went_back = nil
end

-- How fast the machines of these ranks reach each other; measured where one has come.
local function follow_links(self, all)
  local hosts, known = {}, {}
  for i, each in ipairs(all) do hosts[i], known[i] = each.host, each.link or false end
  ranks.follow_links(self, hosts, known)
end

-- The number of the run: that of a rank that has one, or that the ranks before had; of a run that begins, that of its
-- first generation.
local function number_of(all, left)
  for _, other in ipairs(all) do
    if other.number then return other.number end
  end
  return left and left.run or all[1].nonce
end

-- A session of the generation that has just begun. While no step is done, every rank begins from the start.
local function begin_session(self)
  local roster = self.cluster:roster()
  self.change_reason = reason_of(self, roster)
  self.left_behind = self.left_behind or roster.came
  if self.ledger then money.pay(self) end   -- all until now
  local all = exchange(self)
  self.state:set_nonce(all[1].nonce)
  local holders = holders_of(all)
  local holds, known = false, holders[1] and holders[1].has
  local left = not known and account_left(self, all)
  self.number = self.number or number_of(all, left)
  claims.claim(self, known ~= nil and known ~= false)
  local called, followed, phases, interrupted, reached = math.huge, math.huge, math.huge, false, 0
  local ended
  local faults, evaluations, ledgers = 0, {}, {}
  for _, holder in ipairs(holders) do
    holds = holds or holder.rank == self.cluster:rank()
    called, followed = math.min(called, holder.has.called), math.min(followed, holder.has.followed)
    reached = math.max(reached, holder.has.step, holder.has.reached or 0)
    if holder.has.ended then ended = math.min(ended or math.huge, holder.has.ended) end
    faults = math.max(faults, holder.has.faults or 0)
    evaluations[#evaluations + 1] = holder.has.evaluations
    ledgers[#ledgers + 1] = holder.has.ledger
    phases, interrupted = math.min(phases, holder.has.phases), interrupted or holder.has.interrupted or false
  end
  self.ask_again = nil   -- which a rank that joins does not know
  self.reached = reached
  chaos.agree(self, faults, not holds)
  if not holds then forget(self) end
  if known then
    if not holds then take_over(self, known) end
    evaluation.take_over(self, evaluations)
    self.called, self.followed, self.phases_done, self.interrupted = called, followed, phases, interrupted
    self.ended = ended and ended <= called and ended or nil   -- else on_step says it again
    for _, count in ipairs { "changes", "gone", "came" } do self.ledger[count] = known.ledger[count] end
  else
    resume_own(self)
    self.begin_state()
    if together.goes_on(self) and self.cluster:rank() == 0 and not native.settings.quiet then
      native.write("stderr", ("generation %d: none of its ranks has done a step of this run; it %s\n"):format(
        roster.number, self.restores and "looks for snapshots" or ("begins after step %d"):format(self.step)))
    end
  end
  money.agree(self.ledger, ledgers)
  money.follow(self, all)
  follow_links(self, all)
  local members = roster.members
  if self.members and self.cluster:rank() == 0 then native.speak_for_run() end   -- what a policy prints is seen
  self.plan, self.fallbacks = policy.plan(self, change_of(self, self.members and "changed" or "begin", {
    lost = #missing_in(members, self.members or members), joined = #missing_in(self.members or members, members) }))
  self.planned_at = native.clock()
  self.session = session.new(self, self.session)
  if left then count_loss_of_all(self, left, members) end
  self.left_behind = false
  self.follow_again = known ~= nil and followed < self.step
  if self.follow_again then share_last_step(self) end
  if known and known.members then count_change(self, known, roster.members, reached) end
  self.members, self.hosts, self.reached = roster.members, {}, nil
  for i, each in ipairs(all) do self.hosts[i] = each.host end
  self.rank, self.ranks = self.cluster:rank(), self.cluster:size()
  ahead.begin(self)
end

-- The next generation that this process is in. Where the others have ended the run, that is no mistake: the process
-- exits with 0. What `hetrun status` shows is theirs. Where they had to give it up, this one does not begin it again.
local function open(self)
  local cluster, why = self.member:open()
  if cluster then return cluster end
  self.control = nil
  if why then errors.raise("peer", "the other ranks have given the run up: %s", why) end
  errors.raise("ended", "the run has ended; this process was not needed any more")
end

-- Ranks at least and at most: each has a micro-batch of every step.
local function bounds_of(a)
  local least, most = native.settings.least, native.settings.most
  local shares = math.floor(a.batch / (a.microbatch or 1))
  if least and least > shares then
    errors.usage("batch = %d holds %d micro-batches, fewer than the %d ranks that --elastic asks for at least", a.batch,
      shares, least)
  end
  return least, math.min(most and most > 0 and most or shares, shares)
end

--- This process as a member of the run, and the first generation that it is in.
-- @tparam table joining fields of native.join
function elastic.join(self, joining)
  if native.is_alone() and not joining.rendezvous then
    errors.usage "--elastic is for several ranks: --workers N starts them on this machine"
  end
  joining.least, joining.most = bounds_of(self.arguments)
  local a = self.arguments
  if os.getenv "HETRUN_JOINS" and (a.on_change or a.plan) then   -- before others wait for it
    self.description = ranks.describe(self)
  end
  joining.about = native.json_encode { device = native.device(self.device).model, description = self.description }
  self.chaos = chaos.begin(self, joining.least, joining.most)
  self.member = native.member(joining)
  self.notices = native.watch_for_notices()
  self.cluster = open(self)
end

-- Raises where generation after generation of the same ranks ends where it has begun.
local function expect_progress(self)
  local roster = self.cluster:roster()
  local place = ("%s, %s: %s"):format(self.step, self.phases_done, table.concat(roster.members, " "))
  self.fruitless = place == self.place and self.fruitless + 1 or 0
  self.place = place
  if self.fruitless >= most_fruitless then
    together.give_up(self, ("%d generations of the same %d ranks have ended one after the other without a step, the "
      .. "last because %s"):format(most_fruitless, #roster.members, roster.reason))
  end
end

--- Builds the first session; `begin_state` makes the state where no rank has one, and is called again when a rank is
-- lost before a step was done.
function elastic.begin(self, begin_state)
  self.begin_state = begin_state
  local joins = self.cluster:roster().came
  while true do
    local ok, problem = pcall(begin_session, self)
    if ok then
      if joins and not native.settings.quiet then
        native.write("stderr", ("this process has joined the run as rank %d of %d, after step %d\n"):format(self.rank,
          self.ranks, self.step))
      end
      return
    end
    if self.left or self.unrecoverable or not elastic.is_loss(problem) then error(problem, 0) end
    elastic.next_generation(self, (errors.describe(problem)))
    expect_progress(self)
  end
end

--- Plans again for the ranks that are there; what goes wrong in this is an error on all ranks. All ranks call it at the
-- same place.
-- @treturn function called on all ranks, has them go on by that plan
function elastic.replan(self)
  local found, fallbacks = policy.plan(self, change_of(self, "replan", {}))
  return function()
    self.plan, self.fallbacks = found, fallbacks
    self.session = session.new(self, self.session)
  end
end

-- How many others wait to join: the most that any rank sees, as not all see them at the same time. All ranks call it.
local function most_waiting(self)
  local most = 0
  for _, waiting in ipairs(self.cluster:all_gather(tostring(self.member:waiting()))) do
    most = math.max(most, tonumber(waiting))
  end
  return most
end

--- Whether the ranks end the generation after the step that was just done, for others wait to join and are let in.
-- @bool[opt] waits whether others wait, the same on all ranks (default: as they said in the step)
function elastic.admits(self, waits)
  if not (waits or self.session:asked_to_change()) or self.step < (self.ask_again or 0) then return false end
  local waiting = most_waiting(self)
  if waiting == 0 then return false end
  local ranks_here = self.cluster:size()
  local change = change_of(self, "waiting", { waiting = waiting,
    seconds_between_losses = pace.between_losses(ledger.age(self.ledger), ranks_here, self.ledger.gone) })
  local faster = ahead.speedup_by_joining(self) or (ranks_here + waiting) / ranks_here
  change.new_step_seconds = change.step_seconds and change.step_seconds / faster
  local admitted, steps = policy.admits(self, change)
  self.ask_again = not admitted and self.step + steps or nil
  return admitted
end

-- Whether a notice is of the whole machine, and not of one process.
local function is_of_machine(notice) return notice ~= nil and not notice.source:match "^SIG" end

-- Why ranks have a notice.
local function why_taken(notice)
  if not notice.source or not is_of_machine(notice) then return notice.source or "SIGTERM" end
  return ("%s takes machines of this run away (%s)"):format(notice.source, notice.detail)
end

-- What the ranks that have a notice know of it. That of a cloud is of the machine: all its ranks have it, though each
-- asks at another time. Sets `leaves` and `leaves_upon` of this rank.
local function notice_of(self)
  local texts = self.cluster:all_gather(native.json_encode { leaves = self.leaves, notice = self.notices:notice(),
    host = native.host() })
  local of_host, all = {}, {}
  for i, words in ipairs(texts) do
    local their = native.json_decode(words)
    all[i] = their
    if their.leaves and is_of_machine(their.notice) then of_host[their.host] = of_host[their.host] or their.notice end
  end
  for _, their in ipairs(all) do
    their.leaves, their.notice = their.leaves or of_host[their.host] ~= nil, their.notice or of_host[their.host]
  end
  local own = all[self.rank + 1]
  self.leaves, self.leaves_upon = own.leaves, own.notice
  local least = self.cluster:roster().least or native.settings.least or 1
  local notice = { ranks = {}, of = #texts, least = math.max(1, least), step = self.step,
    waited = self.chaos and math.huge or native.clock() - self.notice_seen }   -- its notices come all at once
  for i, their in ipairs(all) do
    if their.leaves then
      local known = their.notice or {}
      table.insert(notice.ranks, i - 1)
      notice.source, notice.detail = notice.source or known.source, notice.detail or known.detail
      if known.seconds_left then
        notice.seconds_left = math.min(notice.seconds_left or math.huge, known.seconds_left)
      end
    end
  end
  return notice
end

local function notices_of_step(self)
  local leaving, any = self.session.trainer:leaving(), false
  for _, leaves in ipairs(leaving) do any = any or leaves end
  return { any = any, own = leaving[self.place + 1] }
end

--- What happens after the step that was just done as some ranks have notices: nil where none has, else "leave", "wait"
-- or "stop", the same on all ranks.
-- @tparam[opt] table notices `any`, `own`: whether any rank has one, and this one (default: as they said in the step)
function elastic.leaving(self, notices)
  notices = notices or notices_of_step(self)
  if not notices.any then
    -- In the first step of a session, as after run:use_plan, not all have said it again.
    if self.step > self.session.first_step + 1 then self.notice_seen = nil end
    return nil
  end
  self.notice_seen = self.notice_seen or native.clock()
  self.leaves = notices.own
  local notice = notice_of(self)
  local answer = policy.notice(self, notice)
  self.ended_by = answer == "stop" and why_taken(notice) or nil
  self.taken_away = self.ended_by and not self.ended_by:match "^SIG" and
    ("the run ended after step %d: %s"):format(self.step, self.ended_by) or nil
  self.leavers = answer == "leave" and {} or nil
  for _, rank in ipairs(self.leavers and notice.ranks or {}) do
    self.leavers[self.members[rank + 1]] = why_taken(notice)
  end
  return answer
end

--- Some ranks leave the run after this step, which goes on without them: what only they have is written first, so that
-- no step is repeated. All ranks call it; does not return on those that leave.
function elastic.let_leave(self)
  saving.finish(self)
  snapshots.take_now(self)
  self.cluster:all_gather ""   -- all have written
  self.notice_seen = nil
  if not self.leaves then return end
  local notice = self.leaves_upon
  self.cluster:close "this machine is taken away"
  self.member:leave()
  pcall(self.notices.acknowledge, self.notices)
  local why = notice.source:match "^SIG%u+$"
    or ("%s takes this machine away (%s)"):format(notice.source, notice.detail)
  native.say_left()
  self.control = nil   -- the others go on
  errors.raise("ended", "rank %d left the run after step %d: %s", self.rank, self.step, why)
end

--- Gives up the generation and waits for the next one.
-- @string why
-- @bool[opt] agreed all ranks do so after the same step
function elastic.next_generation(self, why, agreed)
  self.cluster:close(why, agreed)
  self.left = true   -- the run, unless there is a next generation with this rank
  self.cluster = open(self)
  self.left = false
  self.rank = self.cluster:rank()
end

-- All ranks end the generation after the same step: there are some that wait to join.
local function agree_to_change(self)
  self.cluster:all_gather ""   -- all are here
  self.member:ask_change(self.cluster:roster().number, "others join")
end

-- Bytes that came from other ranks, or nil bytes of a state that none had.
local function moved_bytes_of(restored)
  if not restored then return 0 end
  local bytes = restored.bytes
  return bytes and bytes.live or restored.moved_bytes
end

-- Goes on in the next generation after a loss, or after those that come meanwhile. Without a problem: after a change
-- that all ranks agreed on.
local function go_on(self, reporter, problem)
  local started = native.clock()
  local step, members, connected = self.step, self.members, nil
  local pause = self.pause or { started = started, after_loss = problem ~= nil, last_step = step,
    noticed_seconds = self.step_ended_at and started - self.step_ended_at, steps_repeated = 0,   -- else it goes on
    lost = 0, joined = 0 }
  chaos.after_loss(self)
  self.session:freeze()
  local frozen = native.clock()
  if not problem then
    local ok, why = pcall(agree_to_change, self)
    if not ok and not elastic.is_loss(why) then error(why, 0) end
    problem = not ok and why or nil
  end
  while true do
    local ok, why = pcall(function()
      elastic.next_generation(self, problem and errors.describe(problem) or "others join", not problem)
      connected = native.clock()
      expect_progress(self)
      begin_session(self)
    end)
    if ok then break end
    if self.left or self.unrecoverable or not elastic.is_loss(why) then error(why, 0) end
    problem = why
  end
  local roster = self.cluster:roster()
  local lost, joined = #missing_in(roster.members, members), #missing_in(members, roster.members)
  local repeated = self.went_back or math.max(0, step - self.step)
  self.went_back = nil
  reporter:lead(self.rank == 0)
  reporter:generation { generation = roster.number, reason = self.change_reason, members = #roster.members,
    lost = lost, joined = joined, step = self.step, ends = elastic.is_too_small(self) or nil,
    steps_repeated = repeated, moved_bytes = moved_bytes_of(self.session.restored),
    bytes = (self.session.restored or {}).bytes,
    connected_seconds = connected - started, seconds = native.clock() - started }
  self.change_seconds = native.clock() - started
  pause.timeline, pause.members = roster.number, #roster.members
  pause.lost, pause.joined = pause.lost + lost, pause.joined + joined
  for name, time in pairs { frozen = frozen, connected = connected, planned = self.planned_at,
    restored = self.session.restored_at } do
    pause[name .. "_seconds"] = time - pause.started
  end
  pause.planned_ahead = self.planned_ahead
  pause.bytes = (self.session.restored or {}).bytes or { live = moved_bytes_of(self.session.restored) }
  pause.steps_repeated = pause.steps_repeated + repeated
  self.pause = pause
end

--- A step is done: after a change of ranks it ends the pause.
function elastic.step_done(self, reporter)
  local line = self.pause
  self.pause, self.step_ended_at = nil, native.clock()
  money.pay(self)
  ahead.go_on(self)
  local lost_all = self.lost_all
  self.lost_all = nil
  if lost_all then money.lose(self, self.step_ended_at - lost_all.at, lost_all.steps) end
  if not line then return end
  line.first_step, line.first_step_seconds = self.step, self.step_ended_at - line.started
  line.started = nil
  line.money_lost = money.lose(self, line.first_step_seconds, line.steps_repeated)
  self.last_pause = line
  reporter:timeline(line)
end

--- The run is done: what has become of its ranks and samples.
function elastic.account(self, reporter, results)
  if not self.member then return end
  local all = self.ledger
  money.pay(self)
  local samples = ledger.totals(all, self.step, self.arguments.batch)
  for name, number in pairs { changes = all.changes, ranks_gone = all.gone, ranks_joined = all.came,
    steps_repeated = all.steps_repeated, at_least = all.at_least or nil, samples = samples.counted,
    samples_lost = samples.lost, samples_repeated = samples.repeated,
    paid = all.paid, money_lost = all.paid and all.money_lost or nil } do
    results[name] = number
  end
  results.counted_from = all.begun > 0 and all.begun or nil   -- nothing is known of the steps before
  reporter:account(results)
end

--- What the body of through_losses returns when the ranks shall end the generation after its last step.
elastic.change = {}

--- Call body(self, reporter, results), again after each loss of a rank and each change. Of a run with fixed ranks a
-- loss is an error.
function elastic.through_losses(self, reporter, body, results)
  while true do
    local ok, result = pcall(body, self, reporter, results)
    if ok and result ~= elastic.change then return result end
    if not ok and (not self.member or not elastic.is_loss(result)) then error(result, 0) end
    go_on(self, reporter, not ok and result or nil)
  end
end

--- All ranks have ended the run together.
function elastic.leave(self)
  native.end_notices()
  ahead.stop(self)
  self.member:end_run()
  self.session:close "the run has ended"
  if self.cluster then self.cluster:close "the run has ended" end
  self.member:leave()
end

return elastic
