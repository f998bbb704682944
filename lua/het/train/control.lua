--- How people look at a running job and steer it (`hetrun status`, `hetrun attach`): the status that the first rank
-- leaves in the run's store, at most once a second, and commands that all ranks follow after the same step.
--
-- A run has `control` (native) on its first rank, nil where it has no store; `roll`, by rank { rank, host, device, pid,
-- since }; `timeline`, a list of { at, step, event }; `answers` to the last commands; `paused`.
local native = require "het.native"
local ahead = require "het.train.ahead"
local elastic = require "het.train.elastic"
local errors = require "het.errors"
local ledger = require "het.train.ledger"
local source = require "het.language.source"
local snapshots = require "het.train.snapshots"
local text = require "het.text"
local together = require "het.train.together"

local control = {}

local seconds_between = 1           -- two statuses
local pause_look = 0.2              -- seconds between two looks while it is paused
local seconds_for_store = 5         -- to say what another first rank has left
local most_events, most_answers = 200, 8

local function last(list, count)
  local kept = {}
  for i = math.max(1, #list - count + 1), #list do kept[#kept + 1] = list[i] end
  return kept
end

-- Something that a person wants to know of happened.
local function note(run, event)
  run.timeline = last(run.timeline or {}, most_events - 1)
  table.insert(run.timeline, { at = os.time(), step = run.step, event = event })
end

-- The first rank's end.
local function open(run)
  run.control = run.control or native.control { cluster = run.cluster, run = run.arguments.name,
    secret_file = (native.settings or {}).secret_file }
end

-- The status that the first rank before this one has left of the same run; nil: none.
local function left_by_other(run)
  local left = run.control:earlier()
  local ok, earlier = pcall(native.json_decode, left or "")
  return ok and earlier.state ~= "ended" and together.goes_on(run) and earlier or nil
end

--- The account in the status that the last first rank left; nil: none. Called by the first rank in
-- together.by_first_in_time.
function control.account_left(run)
  open(run)
  local began = native.clock()
  while not run.control:earlier(0.2) and native.clock() - began < seconds_for_store do together.wait(run) end
  return (left_by_other(run) or {}).account
end

-- A first rank that takes over goes on with what the one before it left.
local function take_over(run)
  if run.took_over or not run.control:earlier() then return end
  run.took_over = true
  local earlier = left_by_other(run)
  if not earlier then return end
  local first, events, known = (run.timeline or {})[1], {}, {}
  for _, event in ipairs(run.timeline or {}) do known[event.step .. event.event] = true end
  for _, event in ipairs(earlier.timeline or {}) do
    local is_before = not first or event.at <= first.at
    if is_before and not known[event.step .. event.event] then events[#events + 1] = event end
  end
  for _, event in ipairs(run.timeline or {}) do events[#events + 1] = event end
  run.timeline, run.answers = last(events, most_events), run.answers or earlier.answers
  run.last_pause = run.last_pause or earlier.recovery
end

-- Who waits to join; nil: no one does.
local function spares_of(run)
  local spares = {}
  for i, spare in ipairs(run.member:spares()) do
    local ok, about = pcall(native.json_decode, spare.about)
    spares[i] = { host = spare.host, device = ok and type(about) == "table" and about.device or nil }
  end
  return spares[1] and spares
end

-- What the run is ready for.
local function plans_ahead(run)
  local foreseen, planned = ahead.counts(run)
  return foreseen and { foreseen = foreseen, planned = planned }
end

-- The newest whole snapshot in memory: { step =, at =, hosts =, behind_bytes =, keepers = }; `keepers`: by rank, the
-- ranks that keep copies of its part.
local function in_memory(run)
  local taken = (run.snapshot_taken or {}).memory
  local held = taken and snapshots.newest(run)
  return taken and { step = taken.step, at = taken.at, hosts = held and held.hosts,
    behind_bytes = held and held.behind_bytes, keepers = held and run.snapshots:keepers() }
end

-- All that `hetrun status` shows.
local function status_of(run, state)
  local a = run.arguments
  local taken, roster = run.snapshot_taken or {}, run.member and run.cluster:roster()
  return native.json_encode {
    spares = run.member and spares_of(run), ahead = run.member and plans_ahead(run),
    run = a.name, recipe = source.path(), state = state or run.paused and "paused" or "training", step = run.step,
    steps = a.steps, loss = text.finite(run.loss), validation = text.finite(run.validation),
    best = text.finite(run.best), step_seconds = text.finite(run.step_seconds), tokens_per_step = run.tokens_per_step,
    unit = run.unit, started = run.started_at, at = os.time(),
    generation = roster and roster.number, elastic = run.member ~= nil, plan = run.plan and tostring(run.plan),
    changes = run.member and run.ledger.changes, steps_repeated = run.member and run.ledger.steps_repeated,
    paid = run.member and run.ledger.paid, money_lost = run.ledger.paid and run.ledger.money_lost,
    hourly = run.hourly, ranks = run.roll, timeline = run.timeline or {}, answers = run.answers or {},
    recovery = run.last_pause, account = run.member and { run = run.number, step = run.step, members = run.members
      or run.cluster:roster().members, counted = ledger.kept(run.ledger) },
    snapshots = { memory = in_memory(run), disk = taken.disk, in_store = taken.store,
      folder = (a.snapshot or {}).folder, store = (a.snapshot or {}).store },
  }
end

local function post(run, state)
  take_over(run)
  run.posted_at = native.clock()
  run.control:post(status_of(run, state))
end

--- A session has begun. All ranks call it.
function control.follow(run)
  if not run.cluster or run.cluster:size() == 1 and not run.member then return end
  run.here_since = run.here_since or os.time()
  local own = { host = native.host(), device = run.own_device.model, pid = native.process_id(), since = run.here_since,
    paused = run.paused and not run.left_behind or false,
    started = run.started_at }   -- a rank that joins does not know when
  local started, since = math.huge, math.huge
  run.roll = {}
  for i, said in ipairs(run.cluster:all_gather(native.json_encode(own))) do
    local theirs = native.json_decode(said)
    run.paused = run.paused or theirs.paused   -- a rank that joins is paused with the others
    started, since = math.min(started, theirs.started or started), math.min(since, theirs.since)
    theirs.rank, theirs.paused, theirs.started = i - 1, nil, nil
    run.roll[i] = theirs
  end
  run.started_at = started < math.huge and started or since
  local roster = run.cluster:roster()
  if roster and roster.number ~= run.generation_seen then
    local began = not together.goes_on(run) and "the run began with "
      or ("generation %d: %s; "):format(roster.number, run.change_reason)
    note(run, began .. text.plural(#run.roll, "rank"))
  elseif not roster and not run.generation_seen then
    note(run, "the run began with " .. text.plural(#run.roll, "rank"))
  else
    note(run, "the run goes on by another plan")
  end
  run.generation_seen = roster and roster.number or 0
  if run.cluster:rank() ~= 0 then
    run.control = nil
    return
  end
  open(run)
  post(run)
end

-- What commands do, on all ranks. An error is the answer too, so all ranks have to raise it. What one of them may raise
-- alone is done by a function that a word returns in place of the answer: its error ends the run.
local words = {}

words.status = function() return "" end

words.snapshot = function(run)
  local taken = together.call(run, snapshots.now, run)
  local where = {}
  if taken.memory then where[1] = "in memory" end
  if taken.place then where[#where + 1] = "in " .. taken.place end
  return ("snapshot after step %d %s"):format(taken.step, table.concat(where, " and "))
end

words.pause = function(run)
  if run.paused then return ("the run is paused already, after step %d"):format(run.step) end
  run.paused = true
  note(run, "paused")
  return ("paused after step %d; `resume` goes on"):format(run.step)
end

words.resume = function(run)
  if not run.paused then return ("the run is not paused; it has done step %d"):format(run.step) end
  run.paused = false
  note(run, "resumed")
  return ("going on after step %d"):format(run.step)
end

words.replan = function(run)
  if not run.member then
    errors.usage("replan needs a run with --elastic; a function of the recipe may call run:use_plan")
  end
  local follow_plan = elastic.replan(run)
  return function()
    follow_plan()
    return ("planned again after step %d:\n%s"):format(run.step, tostring(run.plan))
  end
end

words.stop = function(run)
  run.stopped, run.ends, run.paused = true, true, false
  return ("the run ends after step %d, as by Ctrl-C"):format(run.step)
end

-- Follows the command that waits on the first rank, on all ranks.
local function obey(run)
  local own = ""
  if run.control then
    local id, sent = run.control:command()
    local word, started = (sent or ""):match "^(%S+) (%d+)$"
    if tonumber(started) == run.started_at then
      own = native.json_encode { id = id, text = word }
    elseif id then
      run.control:done(id)   -- it was for an earlier run of this name
    end
  end
  own = run.cluster:all_gather(own)[1]
  if own == "" then return end
  local command = native.json_decode(own)
  local word = words[command.text]
  local ok, answer = pcall(function()
    if not word then errors.usage("there is no command '%s'", command.text) end
    return word(run)
  end)
  local kind = not ok and select(2, errors.describe(answer))
  if kind and kind ~= "usage" and kind ~= "environment" then error(answer, 0) end
  if type(answer) == "function" then answer = answer() end
  run.answers = last(run.answers or {}, most_answers - 1)
  local said = ok and answer or errors.describe(answer)
  table.insert(run.answers, { id = command.id, ok = ok, text = said })
  if run.control then
    -- Who watches the run's own output sees why it pauses, or ends.
    if said ~= "" and not native.settings.quiet then
      native.write("stderr", ("hetrun attach %s: %s\n"):format(command.text, said))
    end
    post(run)
    run.control:done(command.id)
  end
end

-- What the ranks say to each other while they wait: whether any of them is to stop, sees others wait that may be let
-- in, or has a notice.
local function look(run)
  local a, own = run.arguments, {}
  own.stop = native.interrupted() or run.stopped or false
  own.notice = run.member ~= nil and run.notices:notice() ~= nil
  own.waiting = run.member ~= nil and run.step < a.steps and run.step >= (run.ask_again or 0)
    and run.member:waiting() > 0
  run.stopped = own.stop
  local any = { stop = false, notice = false, waiting = false }
  for _, said in ipairs(run.cluster:all_gather(native.json_encode(own))) do
    for name, value in pairs(native.json_decode(said)) do any[name] = any[name] or value end
  end
  return any, own
end

-- Waits until `resume`, `stop`, an interrupt, or a notice or others that join, as the policies decide. All ranks go
-- round together. Returns elastic.change when the ranks are to end the generation.
local function stay_paused(run)
  while run.paused do
    if run.control then run.control:command(pause_look) end
    local any, own = look(run)
    local upon_notice = run.member and elastic.leaving(run, { any = any.notice, own = own.notice })
    if any.stop or upon_notice == "stop" then
      run.stopped, run.ends, run.paused = true, true, false
      return
    end
    if upon_notice == "leave" then elastic.let_leave(run) end
    if any.waiting and elastic.admits(run, true) then return elastic.change end
    obey(run)
  end
end

--- A run that was paused when its ranks changed stays paused. What the change took does not count that. All ranks call
-- it; returns what after_step does.
function control.stay_paused(run)
  if not (run.roll and run.paused) then return false end
  local began = native.clock()
  local change = stay_paused(run)
  if run.pause then run.pause.started = run.pause.started + native.clock() - began end
  return change or run.ends or false
end

--- After a step and what follows it: follow the command that waits, and leave a status. All ranks call it. Returns
-- whether the run is to stop, as all ranks know (one that was interrupted alone tells the others in the next step), or
-- elastic.change when the ranks are to end the generation.
function control.after_step(run)
  if not run.roll then return false end
  if run.session.trainer:any_command() then obey(run) end
  local change = run.paused and stay_paused(run)
  if run.control and native.clock() - run.posted_at >= seconds_between then post(run) end
  return change or run.ends or false
end

--- The run has ended, or fails: what is said of it last.
function control.leave(run, why)
  if not run.control then return end
  note(run, why)
  post(run, "ended")
  run.control = nil
end

return control
