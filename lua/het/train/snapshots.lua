--- Snapshots of a run's state beside its steps. In the memory of the hosts, of runs that outlive their ranks, where a
-- part of the state is on too few hosts to survive the loss of one. On disk: each rank its part. As often as the
-- recipe says, else as pays (pace.lua).
--
-- All ranks take a snapshot after the same step. While a rank still writes one, no rank begins the next in the same
-- place, in memory or on disk: so the last one is whole before the one before it gives way.
--
-- A run has `snapshots` (native), nil without any; `snapshotting` { memory =, disk = }: what this rank writes;
-- `snapshot_failed`, `disk_failed`: why this rank could not begin the last one, else false; `failures`, by place, what
-- was said last of those that were not written: { reason =, count = in a row }; `on_disk`: paths of its files of
-- whole ones, the oldest first; `snapshot_taken`, by tier ("memory", "disk", "store") the last whole one: { step =,
-- at = (seconds since 1970) }; `snapshot_seconds` that beginning them took; `pace` of those in memory and `disk_pace`
-- of those on disk, nil where the recipe says how often; `memory_next`, `disk_next`: the steps after which the next is
-- taken; `disk_due`: whether one that the recipe asks for has not begun.
local native = require "het.native"
local claims = require "het.train.claims"
local errors = require "het.errors"
local files = require "het.model.folder"
local pace = require "het.train.pace"
local places = require "het.train.places"
local record = require "het.train.record"
local text = require "het.text"
local together = require "het.train.together"

local warn = errors.warn

local snapshots = {}

-- Seconds between two snapshots on disk that the recipe does not ask for, at least: a loss of all ranks is rare, and
-- disks wear out.
local least_on_disk = 30

-- The native object of a run that takes any, before its first session.
function snapshots.begin(run)
  local a = run.arguments.snapshot or {}
  local in_memory = run.member ~= nil and a.memory ~= false
  if not in_memory and not a.folder then return end
  local on_host = tonumber(os.getenv "LOCAL_WORLD_SIZE" or "1") or 1
  local wanted = { run = run.arguments.name, in_memory = in_memory, folder = a.folder, store = a.store, keep = a.keep,
    replicas = a.replicas, secret_file = (native.settings or {}).secret_file }
  if in_memory then
    wanted.cluster, wanted.zone = run.cluster, native.settings.zone
    local limit = a.memory_limit and native.parse_bytes(a.memory_limit) or native.device("cpu"):available_bytes() / 4
    wanted.memory_bytes = limit / math.max(1, on_host)
  end
  run.snapshots = native.run_snapshots(wanted)
  run.snapshotting, run.on_disk, run.snapshot_taken, run.snapshot_seconds = {}, {}, {}, 0
  run.failures = {}
  run.pace = in_memory and not a.memory_every and pace.new() or nil
  run.disk_pace = a.folder and not a.every and pace.new(least_on_disk) or nil
end

-- One is whole on all ranks.
local function note(run, tier, task) run.snapshot_taken[tier] = { step = task:step(), at = os.time() } end

--- The run has no state yet. That of a run that goes on, or whose ranks were all lost, may come from snapshots; what an
-- earlier run has left counts for no other.
function snapshots.begin_state(run)
  places.require_same_model(run)
  run.restores = run.snapshots ~= nil and (run.resume or together.goes_on(run))
  -- After the loss of all ranks what this machine has is at least as new.
  if run.resume then
    local sent = together.by_first(run, function()
      return not os.getenv "HETRUN_STARTED_AGAIN" and places.newest_in_store(run) or nil
    end)
    run.seen_step = run.seen_step and math.max(run.seen_step, sent or 0)
  end
  if not run.snapshots or run.restores then return end
  run.snapshots:clear_memory()
  local folder = (run.arguments.snapshot or {}).folder
  if folder and run.overwrite then
    native.snapshot_remove(folder)
    if together.is_first_of_machine() then files.drop_vocabulary(folder) end
  end
  local store = (run.arguments.snapshot or {}).store
  if store and run.overwrite and run.rank == 0 then native.store_clear(store) end
end

-- Steps after which the next snapshots are taken: those that are near, whatever was counted before.
local function begin_counting(run)
  run.memory_pause, run.memory_again, run.memory_next = 1, 0, 0
  run.disk_next, run.disk_pause = run.step + pace.first_steps, 1
end

--- The run goes on after another step (run:restore), of which there is no snapshot.
function snapshots.restart(run)
  run.snapshot_taken, run.disk_due = {}, false
  begin_counting(run)
end

-- Ranks that join do not know which snapshots were taken before, nor whether one waits for the one before it. All ranks
-- take a snapshot after the same step, so all go by what any of them knows.
local function share_what_was_taken(run)
  local knows = not run.left_behind   -- what the others did without this rank counts
  local own = native.json_encode { due = knows and run.disk_due or false, taken = knows and run.snapshot_taken or {} }
  run.disk_due, run.snapshot_taken = false, {}
  for _, words in ipairs(run.cluster:all_gather(own)) do
    local theirs = native.json_decode(words)
    run.disk_due = run.disk_due or theirs.due
    for tier, taken in pairs(theirs.taken) do
      local is_newer = taken.step > (snapshots.step_of(run, tier) or -1)
      if is_newer and taken.step <= run.step then run.snapshot_taken[tier] = taken end   -- later ones were given up
    end
  end
end

--- A session has begun: its plan says who writes what. All ranks call it.
function snapshots.follow(run, program)
  if not run.snapshots then return end
  if run.cluster then share_what_was_taken(run) end
  run.snapshots:follow(run.cluster, program, run.plan and tostring(run.plan) or "")
  local short = run.snapshots:memory().short_rank
  if short and run.cluster:rank() == short then
    local memory = run.snapshots:memory()
    warn("rank %d: two snapshots of its part of the state take %s of memory, and it may take %s "
      .. "(snapshot.memory_limit): this plan has no snapshots in memory, and the loss of a rank that alone has a part "
      .. "of the state goes back to one on disk, or ends the run", short, text.bytes(memory.own_bytes),
      text.bytes(memory.limit_bytes))
  end
  run.cleaned = false
  begin_counting(run)
  if run.pace then pace.follow(run.pace) end
  if run.disk_pace then pace.follow(run.disk_pace) end
end

--- The newest whole snapshot in memory of this session: { age = steps that the run is ahead of it, hosts = that hold
-- it, behind_bytes = that the hosts which keep this rank's parts still lack of the next one, every = steps from it to
-- the next, cost = seconds that steps here lose to one, where that is measured, stall = seconds in which this rank's
-- host waited for snapshots, in all }; nil without one.
function snapshots.newest(run)
  local step = run.snapshots and snapshots.step_of(run, "memory")
  if not step or step <= run.session.first_step then return nil end
  return { age = run.step - step, hosts = run.snapshots:hosts(), behind_bytes = run.snapshots:behind_bytes(),
    every = math.max(1, run.memory_next - step), cost = run.pace and run.pace.cost,
    stall = run.snapshot_seconds + run.state:seconds_waited() }
end

local longest_pause = 1024   -- steps

-- One in memory failed on some rank, where there may be no room: it is tried again later and later.
local function pause_memory(run)
  run.memory_again = run.step + run.memory_pause
  run.memory_pause = math.min(2 * run.memory_pause, longest_pause)
end

-- The same of one on disk, where the recipe does not say how often.
local function pause_disk(run)
  run.disk_next = run.step + math.max(pace.first_steps, run.disk_pause)
  run.disk_pause = math.min(2 * run.disk_pause, longest_pause)
end

-- Snapshots in a place are written, which is said where several were not.
local function say_written(run, place)
  local before = run.failures[place]
  run.failures[place] = nil
  if before and before.count > 1 then
    warn("snapshots %s are written again, after %d that were not", place, before.count)
  end
end

-- The snapshot in memory that this rank has begun is whole on all.
local function is_whole(run)
  local task = run.snapshotting.memory
  local step, generation = task:step(), task:generation()
  run.snapshots:keep(step, generation, not run.cleaned)
  run.cleaned = true
  run.memory_pause = 1
  say_written(run, "in memory")
  run.memory_next = step + (run.pace and pace.next_steps(run.pace, run)
    or (run.arguments.snapshot or {}).memory_every or 1)
  note(run, "memory", task)
end

-- Why a task that is done failed; nil where it did not.
local function failure_of(task)
  local ok, problem = pcall(task.wait, task)
  if ok then return nil end
  local why, kind = errors.describe(problem)
  if kind == "bug" then error(problem, 0) end
  return why
end

local failures_until_said = 10   -- of the same kind, one after the other

-- Some ranks did not write the last snapshot in a place, or none did not: the first rank says why, once for all of
-- them, and of the same reason again only now and then. All ranks call it.
-- @string place "in memory", "on disk", "in the store"
-- @tparam ?string own why this rank did not write it
-- @string sentence what has happened, up to the reason
-- @treturn boolean whether any rank did not write it
local function say_failures(run, place, own, sentence)
  local first, count = nil, 0
  local texts = run.cluster and run.cluster:all_gather(own or "") or { own or "" }
  for rank, why in ipairs(texts) do
    if why ~= "" then first, count = first or { rank = rank - 1, why = why }, count + 1 end
  end
  if run.cluster and run.cluster:rank() > 0 then return count > 0 end
  if count == 0 then
    say_written(run, place)
    return false
  end
  local before = run.failures[place]
  local reason = first.why:gsub("'[^']*'", ""):gsub("%d+", "")   -- which names files by their step
  local is_same = before ~= nil and before.reason == reason
  run.failures[place] = { reason = reason, count = is_same and before.count + 1 or 1 }
  if is_same and run.failures[place].count % failures_until_said > 0 then return true end
  local others = count > 1 and (" (on %s)"):format(count == #texts and "all ranks"
    or text.plural(count, "rank")) or ""
  warn("%s: %s%s%s%s", sentence, #texts > 1 and count < #texts and ("rank %d: "):format(first.rank) or "", first.why,
    others, is_same and ("; the %d before failed as well"):format(run.failures[place].count - 1) or "")
  return true
end

-- The first process of each machine keeps the vocabulary beside the snapshots. It is there before the first one, which
-- is sent with it; `early`: what fails then is tried again, and said, when that is whole.
local function keep_vocabulary(run, early)
  local file = run.arguments.snapshot.folder .. "/vocabulary.json"
  local is_kept = run.vocabulary_kept and (run.vocabulary_kept == "none" or native.path_kind(file) == "file")
  if is_kept or not together.is_first_of_machine() then return end
  local vocabulary = run.arguments.data:vocabulary()
  run.vocabulary_kept = vocabulary and "kept" or "none"
  if not vocabulary then return end
  local ok, why = pcall(function()
    native.make_folder(run.arguments.snapshot.folder)
    files.keep_vocabulary(run.arguments.snapshot.folder, vocabulary)
  end)
  if not ok and select(2, errors.describe(why)) == "bug" then error(why, 0) end   -- the folder may have been removed
  -- Processes of one folder may write it at the same time.
  local there = native.path_kind(file) == "file"
  if ok or there or early then return end
  warn("the vocabulary is not beside the snapshots: %s", (errors.describe(why)))
end

-- Why what a task wrote to disk did not reach the store; nil where it did.
local function unsent_of(task)
  local unsent
  for _, written in ipairs(task:wait()) do
    if written.problem ~= "" then unsent = written.problem end
  end
  return unsent
end

-- The snapshot on disk that this rank has begun is whole on all: of those before it `keep` - 1 stay.
local function is_on_disk(run)
  local task = run.snapshotting.disk
  keep_vocabulary(run)
  say_written(run, "on disk")
  run.disk_pause = 1
  if run.disk_pace then run.disk_next = task:step() + pace.next_steps(run.disk_pace, run) end
  note(run, "disk", task)
  for _, written in ipairs(task:wait()) do
    if written.tier == "disk" then table.insert(run.on_disk, written.path) end
  end
  if (run.arguments.snapshot or {}).store then   -- which the same task has sent there
    local unsent = say_failures(run, "in the store", unsent_of(task),
      ("the snapshot after step %d is on disk, and not in the store"):format(task:step()))
    if unsent then run.snapshots:discard_sent(task) else note(run, "store", task) end
    claims.say_foreign(run)
  end
  while #run.on_disk > ((run.arguments.snapshot or {}).keep or 2) do
    native.snapshot_remove(table.remove(run.on_disk, 1))
  end
end

local function take(run, in_memory, on_disk)
  local taken = { memory = in_memory, disk = on_disk, cursor = run.cursor, seed = run.arguments.seed,
    about = record.of(run) }
  local under_way = run.snapshotting
  local began = native.clock()
  if on_disk and not run.vocabulary_kept then keep_vocabulary(run, true) end
  local ok, memory, disk = pcall(run.snapshots.take, run.snapshots, run.state, taken)
  if on_disk then run.newest_begun = math.max(run.newest_begun or 0, run.step) end
  run.snapshot_seconds = run.snapshot_seconds + native.clock() - began
  if ok then
    under_way.memory, under_way.disk = memory or under_way.memory, disk or under_way.disk
    if in_memory and not memory then run.snapshot_failed = "this machine has no memory for files (/dev/shm)" end
    return
  end
  if select(2, errors.describe(memory)) ~= "environment" then error(memory, 0) end
  local why = errors.describe(memory)
  run.snapshot_failed = in_memory and why or run.snapshot_failed
  run.disk_failed = on_disk and why or run.disk_failed
end

-- The last snapshot in a place failed on some rank, or, where `task` is there, is written.
local function say_whether_written(run, place, task, not_begun)
  local own = not_begun or task and task:failed() and failure_of(task) or nil
  say_failures(run, place, own, ("the snapshot %s after step %d was not written"):format(place,
    task and task:step() or run.step))
end

-- No rank writes in memory any more: what became of that. Returns whether the next one is due.
local function is_due_in_memory(run)
  local task, step = run.snapshotting.memory, snapshots.step_of(run, "memory")
  if run.session.trainer:any_failed() then
    say_whether_written(run, "in memory", task, run.snapshot_failed)
    pause_memory(run)
  elseif task then
    is_whole(run)
  end
  run.snapshotting.memory, run.snapshot_failed = nil, false
  return run.member ~= nil and (run.arguments.snapshot or {}).memory ~= false and run.snapshots:is_scarce()
    and run.step >= math.max(run.memory_again, run.memory_next) and run.step ~= step
end

-- What this rank has written to disk is of a snapshot that another rank has not written its part of: the room is
-- needed for the next.
local function discard(run, task)
  if not task or failure_of(task) then return end
  run.snapshots:discard_sent(task)
  for _, written in ipairs(task:wait()) do
    if written.tier == "disk" then native.snapshot_remove(written.path) end
  end
end

-- The same of the disk.
local function is_due_on_disk(run)
  local task = run.snapshotting.disk
  if run.session.trainer:any_disk_failed() then
    say_whether_written(run, "on disk", task, run.disk_failed)
    discard(run, task)
    pause_disk(run)
  elseif task then
    is_on_disk(run)
  end
  run.snapshotting.disk, run.disk_failed = nil, false
  return run.disk_due or run.disk_pace ~= nil and run.step >= run.disk_next
    and run.step ~= snapshots.step_of(run, "disk")
end

--- After a step, on all ranks: go on with what is being written, and take the snapshots that are due. Those in memory
-- do not wait for a disk or a store.
function snapshots.after_step(run)
  if not run.snapshots then return end
  local trainer, a = run.session.trainer, run.arguments.snapshot or {}
  if run.pace then pace.step(run.pace, run.snapshotting.memory ~= nil) end
  if run.disk_pace then pace.step(run.disk_pace, run.snapshotting.disk ~= nil) end
  run.disk_due = run.disk_due or a.folder and a.every and run.step % a.every == 0
    and run.step ~= snapshots.step_of(run, "disk")
  local in_memory = not trainer:any_writes() and is_due_in_memory(run)
  local on_disk = not trainer:any_disk_writes() and is_due_on_disk(run)
  -- A version has one snapshot: that of a step which the session before has done is of its layout.
  if (in_memory or on_disk) and run.step > run.session.first_step then
    take(run, in_memory, on_disk)
    run.disk_due = run.disk_due and not on_disk
  end
  run.session:say { stop = run.stopped }
end

--- The step of the last whole snapshot of a tier ("memory", "disk"), or nil.
function snapshots.step_of(run, tier) return run.snapshot_taken[tier] and run.snapshot_taken[tier].step end

-- What is being written is finished, and counts where all ranks have written their parts. All ranks call it.
-- @treturn ?string why one on disk, or else in memory, is not whole
local function settle(run)
  local memory, disk = run.snapshotting.memory, run.snapshotting.disk
  local own = {}
  together.in_time(run, function()
    for _, task in pairs { memory = memory, disk = disk } do together.until_done(run, task) end
  end)
  for tier, task in pairs { memory = memory, disk = disk } do
    local ok, why = pcall(task.wait, task)
    if not ok then own[tier] = errors.describe(why) end
  end
  own.memory = own.memory or run.snapshot_failed or nil
  own.disk = own.disk or run.disk_failed or nil
  local problems, texts = {}, { native.json_encode(own) }
  if run.cluster then texts = run.cluster:all_gather(texts[1]) end
  for rank, words in ipairs(texts) do
    for tier, why in pairs(native.json_decode(words)) do
      problems[tier] = problems[tier] or #texts > 1 and ("rank %d: %s"):format(rank - 1, why) or why
    end
  end
  if problems.memory then pause_memory(run) elseif memory then is_whole(run) end
  if disk and problems.disk then discard(run, disk) elseif disk then is_on_disk(run) end
  run.snapshotting, run.snapshot_failed, run.disk_failed = {}, false, false
  return problems.disk or problems.memory
end
snapshots.settle = settle

-- A snapshot on disk of the step that this session began after would lie beside one of another layout: whether there is
-- one, whole.
local function is_there(run, folder)
  local found = native.path_kind(folder) == "folder" and native.snapshot_list(folder) or {}
  for _, listed in ipairs(found) do
    if listed.step == run.step then return #native.snapshot_open(folder, run.step):missing() == 0 end
  end
  return false
end

--- A snapshot of the state as it is, whole on all ranks when this returns: on disk where the run has a folder for them,
-- of a run with --elastic also in memory. All ranks call it at the same place.
-- @treturn table { step =, place = (the folder), memory = (whether there is one) }
function snapshots.now(run)
  local folder = (run.arguments.snapshot or {}).folder
  if not run.snapshots then
    errors.usage('run:snapshot: the run has no place for snapshots; het.train { snapshot = { folder = '
      .. '"runs/mine/snapshots" } } names one')
  end
  settle(run)
  run.failures = {}   -- run:snapshot() warns each time
  local is_new = run.step > run.session.first_step
  local in_memory = run.member ~= nil and (run.arguments.snapshot or {}).memory ~= false and is_new
    and snapshots.step_of(run, "memory") ~= run.step
  local on_disk = folder and snapshots.step_of(run, "disk") ~= run.step
  if on_disk and not is_new then
    local there = together.call(run, is_there, run, folder)
    if run.cluster then there = not run.cluster:any(not there) end
    on_disk = not there
  end
  if in_memory or on_disk then
    take(run, in_memory, on_disk)
    local problem = settle(run)
    run.session:say { stop = run.stopped }   -- of what was settled nothing more
    if problem and snapshots.step_of(run, "disk") ~= run.step then
      errors.raise("environment", "the snapshot after step %d is not complete: %s", run.step, problem)
    elseif problem and run.rank == 0 then
      warn("the snapshot after step %d is on disk, and not in memory: %s", run.step, problem)
    end
  end
  run.disk_due = false
  return { step = run.step, place = folder, memory = snapshots.step_of(run, "memory") == run.step }
end

--- A snapshot in memory of the state as it is, whole on all ranks when this returns: some of them leave. All ranks call
-- it.
function snapshots.take_now(run)
  if not run.snapshots or not run.snapshots:is_scarce() or run.step == run.session.first_step then return end
  local begun = run.snapshotting.memory
  if begun then pcall(begun.wait, begun) end
  if not begun or begun:step() < run.step then
    snapshots.leave_to_end(run)
    take(run, true, false)
  end
  local task = run.snapshotting.memory
  local own = run.snapshot_failed or task and failure_of(task) or not task and "it was not begun" or nil
  run.snapshot_failed = false
  if say_failures(run, "in memory", own, ("no snapshot in memory after step %d"):format(run.step)) then
    run.snapshotting.memory = nil
    return
  end
  is_whole(run)
  run.snapshotting.memory = nil
end

-- What is written to disk goes on by itself, and counts no longer: other ranks may not write their parts.
function snapshots.leave_to_end(run)
  run.left_to_end = run.left_to_end or {}
  for i = #run.left_to_end, 1, -1 do
    if run.left_to_end[i]:done() then table.remove(run.left_to_end, i) end
  end
  table.insert(run.left_to_end, run.snapshotting.disk)
  run.snapshotting = {}
end

--- The ranks change: before the state is restored, what is written in memory is.
function snapshots.finish(run)
  if not run.snapshots then return end
  run.snapshots:stop_replicas()
  local memory = run.snapshotting.memory
  if memory then pcall(memory.wait, memory) end
  snapshots.leave_to_end(run)
  run.snapshot_failed, run.disk_failed = false, false
end

-- What is wrong with files, once each.
local function say(run, sentences)
  run.said = run.said or {}
  for _, sentence in ipairs(sentences) do
    if not run.said[sentence] then warn("%s", sentence) end
    run.said[sentence] = true
  end
end

--- The state has been restored from snapshots: says from which, and what goes with it.
-- @treturn table what was kept beside the tensors (record.read)
function snapshots.restored(run, restored)
  say(run, restored.damaged)
  say(run, restored.other_runs)
  snapshots.say_warnings(run)
  local kept = native.json_decode(restored.about)
  kept.step = restored.step
  local about = record.read(kept, ("the snapshot of step %d"):format(restored.step))
  run.snapshots:keep(restored.step, restored.generation, false)
  local from, a = {}, run.arguments.snapshot or {}
  local names = { live = "other ranks", disk = a.folder and ("disk (%s)"):format(a.folder),
    store = a.store and ("store (%s)"):format(a.store) }
  for _, tier in ipairs { "live", "memory", "disk", "store" } do
    if restored.bytes[tier] > 0 then
      from[#from + 1] = ("%s from %s"):format(text.bytes(restored.bytes[tier]), names[tier] or tier)
    end
  end
  if run.cluster == nil or run.cluster:rank() == 0 then
    warn("restored the state after step %d: %s", restored.step, table.concat(from, ", "))
  end
  return about
end

--- Say which files could not be read.
function snapshots.say_warnings(run)
  say(run, run.snapshots and run.snapshots:warnings() or {})
end

--- A run whose ranks were all lost has left no snapshot, and starts over.
function snapshots.say_none(run)
  if not together.goes_on(run) or run.cluster:rank() > 0 then return end
  warn("neither a rank nor a snapshot has the state of this run; it begins after step %d", run.step)
end

--- The snapshots are not whole, and the run begins without them.
function snapshots.say_not_whole(run, why)
  if run.cluster == nil or run.cluster:rank() == 0 then
    warn("%s; the run goes on after step %d instead", why, run.step)
  end
end

-- Wait until all ranks have sent what they write to the store, which the first rank's claim keeps for them. Where a
-- rank is lost meanwhile, the others end the run without it. All ranks call it.
local function wait_for_all(run)
  local tasks = { unpack(run.left_to_end or {}) }
  tasks[#tasks + 1] = run.snapshotting.disk
  pcall(together.in_time, run, function()
    for _, task in ipairs(tasks) do together.until_done(run, task) end
  end)
end

--- The run has ended well: what memory holds of it is not needed any more. All ranks call it.
function snapshots.leave(run)
  if not run.snapshots then return claims.release(run) end
  if run.cluster and (run.arguments.snapshot or {}).store then wait_for_all(run) end
  local disk = run.snapshotting.disk
  local why = disk and failure_of(disk)
  local unsent = disk and not why and unsent_of(disk)
  if why then warn("the snapshot on disk after step %d was not written: %s", disk:step(), why) end
  if unsent then warn("the snapshot after step %d is on disk, and not in the store: %s", disk:step(), unsent) end
  snapshots.finish(run)
  claims.release(run)
  run.snapshots:leave()
end

return snapshots
