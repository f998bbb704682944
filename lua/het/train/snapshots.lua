--- Snapshots of a run's state beside its steps. In the memory of the hosts, of runs that outlive their ranks: as often
-- as they get done, where a part of the state is on too few hosts to survive the loss of one. On disk: every so many
-- steps, each rank its part.
--
-- All ranks take a snapshot after the same step. While a rank still writes one no rank begins the next: so the last one
-- is whole before the one before it gives way.
--
-- A run has `snapshots` (native), nil without any; `snapshotting` { memory =, disk = }: what this rank writes;
-- `snapshot_failed`: whether this rank could not begin the last one in memory; `last_snapshot` { memory =, disk = }:
-- the newest whole ones, { step =, generation =, at = seconds of the clock }.
local native = require "het.native"
local errors = require "het.errors"
local text = require "het.text"

local snapshots = {}

-- The native object of a run that takes any, before its first session.
function snapshots.begin(run)
  local a = run.arguments.snapshot or {}
  local in_memory = run.member ~= nil and a.memory ~= false
  if not in_memory and not a.folder then return end
  run.snapshots = native.run_snapshots { run = run.arguments.name, in_memory = in_memory, folder = a.folder,
    store = a.store, keep = a.keep, replicas = a.replicas, secret_file = (native.settings or {}).secret_file,
    cluster = in_memory and run.cluster or nil, replica_bytes = native.device("cpu"):available_bytes() / 4 }
  run.snapshotting, run.last_snapshot, run.on_disk = {}, {}, {}
end

--- The run has no state yet. That of a run that goes on, or whose ranks were all lost, may come from snapshots; what an
-- earlier run has left counts for no other.
function snapshots.begin_state(run)
  local roster = run.member and run.cluster:roster()
  run.restores = run.snapshots ~= nil and (run.resume or roster ~= nil and roster.number > 1)
  if not run.snapshots or run.restores then return end
  run.snapshots:clear_memory()
  local folder = (run.arguments.snapshot or {}).folder
  if folder and run.overwrite then native.snapshot_remove(folder) end
end

--- What a folder of snapshots holds that this run would go on beside: a sentence, or nil.
function snapshots.problem(run)
  local folder = (run.arguments.snapshot or {}).folder
  if not folder or run.resume or run.overwrite or native.path_kind(folder) ~= "folder" then return nil end
  local newest = native.snapshot_list(folder)[1]
  return newest and ("%s holds snapshots up to step %d; --resume goes on with them, --overwrite removes them, another "
    .. "folder for `snapshot.folder` keeps both"):format(folder, newest.step)
end

local function warn(format, ...)
  if not native.settings.quiet then native.write("stderr", format:format(...) .. "\n") end
end

--- A session has begun: its plan says who writes what. All ranks call it.
function snapshots.follow(run, program)
  if not run.snapshots then return end
  run.snapshots:follow(run.cluster, program, run.plan and tostring(run.plan) or "")
  run.cleaned = false
end

-- The snapshot in memory that this rank has begun is whole on all.
local function is_whole(run)
  local task = run.snapshotting.memory
  local step, generation = task:step(), task:generation()
  run.snapshots:keep(step, generation, not run.cleaned)
  run.cleaned = true
  run.last_snapshot.memory = { step = step, generation = generation, at = native.clock() }
end

-- What became of a task that is done; nil where it failed.
local function result_of(run, task, where)
  local ok, written = pcall(task.wait, task)
  if ok then return written end
  local why, kind = errors.describe(written)
  if kind == "bug" then error(written, 0) end
  if run.warned_of ~= why then warn("the snapshot %s after step %d was not written: %s", where, task:step(), why) end
  run.warned_of = why
  return nil
end

-- Look at what is done here; the other ranks learn of it in the next step.
local function look(run)
  local memory, disk = run.snapshotting.memory, run.snapshotting.disk
  if memory and memory:failed() then result_of(run, memory, "in memory") end
  if disk and disk:failed() then result_of(run, disk, "on disk") end
end

-- The snapshot on disk that this rank has begun is whole on all: of those before it `keep` - 1 stay.
local function is_on_disk(run)
  local task = run.snapshotting.disk
  run.last_snapshot.disk = { step = task:step(), generation = task:generation(), at = native.clock() }
  for _, written in ipairs(task:wait()) do
    if written.tier == "disk" then table.insert(run.on_disk, written.path) end
  end
  while #run.on_disk > ((run.arguments.snapshot or {}).keep or 2) do
    native.snapshot_remove(table.remove(run.on_disk, 1))
  end
end

-- What is saved beside the tensors.
local function about_of(run)
  return native.json_encode { step = run.step, precision = run.arguments.precision, best = run.best,
    validation = run.validation, begun = run.begun }
end

local function take(run, in_memory, on_disk)
  collectgarbage()   -- lets go of the last copy of the state
  local taken = { memory = in_memory, disk = on_disk, cursor = run.cursor, seed = run.arguments.seed,
    about = about_of(run) }
  local ok, task = pcall(run.snapshots.take, run.snapshots, run.state, taken)
  if not ok then
    if select(2, errors.describe(task)) ~= "environment" then error(task, 0) end
    warn("no snapshot after step %d: %s", run.step, (errors.describe(task)))
    if in_memory then run.snapshot_failed = true end
    return
  end
  if in_memory then run.snapshotting.memory = task end
  if on_disk then run.snapshotting.disk = task end
end

--- After a step, on all ranks: go on with what is being written, and take the snapshots that are due.
function snapshots.after_step(run)
  if not run.snapshots then return end
  local trainer, a = run.session.trainer, run.arguments.snapshot or {}
  local any_writes, any_failed, any_disk_failed
  local memory, disk = run.snapshotting.memory, run.snapshotting.disk
  if run.cluster and run.cluster:size() > 1 then
    any_writes, any_failed, any_disk_failed = trainer:any_writes(), trainer:any_failed(), trainer:any_disk_failed()
  else
    any_writes = memory and not memory:done() or disk and not disk:done()
    any_failed, any_disk_failed = run.snapshot_failed or memory and memory:failed(), disk and disk:failed()
  end
  local every = a.every or 0
  run.disk_due = run.disk_due or a.folder and every > 0 and run.step % every == 0
  if not any_writes then
    look(run)
    if memory and not any_failed then is_whole(run) end
    if disk and not any_disk_failed then is_on_disk(run) end
    run.snapshotting, run.snapshot_failed = {}, false
    local in_memory, on_disk = run.member ~= nil and a.memory ~= false and run.snapshots:is_scarce(), run.disk_due
    if in_memory or on_disk then take(run, in_memory, on_disk) end
    run.disk_due = false
  end
  run.session:say { stop = run.stopped }
end

--- A snapshot in memory of the state as it is, whole on all ranks when this returns: some of them leave. All ranks call
-- it.
function snapshots.take_now(run)
  if not run.snapshots or not run.snapshots:is_scarce() then return end
  for _, task in pairs(run.snapshotting) do pcall(task.wait, task) end
  run.snapshotting = {}
  take(run, true, false)
  local task = run.snapshotting.memory
  local failed = not task or not result_of(run, task, "in memory")
  if run.cluster:any(failed) then
    run.snapshotting.memory = nil
    return
  end
  is_whole(run)
  run.snapshotting.memory = nil
end

--- Wait for what is being written: before the state is restored, and at the end.
function snapshots.finish(run)
  if not run.snapshots then return end
  run.snapshots:stop_replicas()
  for _, where in ipairs { "memory", "disk" } do
    local task = run.snapshotting[where]
    if task then
      local written = result_of(run, task, where == "memory" and "in memory" or "on disk")
      if written and where == "disk" then
        run.last_snapshot.disk = { step = task:step(), generation = task:generation(), at = native.clock() }
      end
    end
    run.snapshotting[where] = nil
  end
  run.snapshot_failed = false
end

--- The state has been restored from snapshots: says from which, and what goes with it.
-- @treturn table what was kept beside the tensors: `cursor`, `seed`, `best`, `validation`, `begun`
function snapshots.restored(run, restored)
  for _, sentence in ipairs(restored.damaged) do warn("%s", sentence) end
  local outer = native.json_decode(restored.about)
  local about = outer.about ~= "" and native.json_decode(outer.about) or {}
  about.cursor, about.seed = outer.cursor, outer.seed
  run.snapshots:keep(restored.step, restored.generation, false)
  local from = {}
  for _, tier in ipairs { "live", "memory", "disk", "store" } do
    if restored.bytes[tier] > 0 then from[#from + 1] = ("%s from %s"):format(text.bytes(restored.bytes[tier]),
      tier == "live" and "other ranks" or tier) end
  end
  if run.cluster == nil or run.cluster:rank() == 0 then
    warn("restored the state after step %d: %s", restored.step, table.concat(from, ", "))
  end
  return about
end

--- The run has ended well: what memory holds of it is not needed any more.
function snapshots.leave(run)
  if not run.snapshots then return end
  snapshots.finish(run)
  run.snapshots:leave()
end

return snapshots
