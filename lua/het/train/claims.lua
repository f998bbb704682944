--- Claims keep other runs out of where a run saves while it trains: the folders of `save` and `keep_best`, and the
-- folder and the bucket of its snapshots. A run that does not train claims what it writes, for as long as it writes. It
-- then looks for what another run has written there meanwhile.
--
-- A run that has claims has `claims` { save =, keep_best =, store = }: those of this rank; nil while it has none. Its
-- claim of the snapshots' folder is part of `snapshots` (native). `seen_saves`, by field, and `seen_step`: what was in
-- these places when the run was last there; `foreign`: what was said last of another run in the bucket.
local native = require "het.native"
local errors = require "het.errors"
local files = require "het.model.folder"
local places = require "het.train.places"
local together = require "het.train.together"

local warn = errors.warn

local claims = {}

-- The folders that this rank writes in, or may when others are lost. `what`: "save", "keep_best" or "snapshots" alone.
local function claim_folders(run, what)
  if run.snapshots and (not what or what == "snapshots") then run.snapshots:claim(run.number) end
  run.claims = run.claims or {}
  for _, field in ipairs { "save", "keep_best" } do
    local folder = run.arguments[field]
    local writes = folder and (run.cluster == nil or run.cluster:rank() == 0 or native.path_kind(folder) == "folder")
    if writes and (not what or what == field) and not run.claims[field] then
      run.claims[field] = native.claim_folder(folder, field, run.number)
    end
  end
end

-- The bucket that the run sends snapshots to is claimed by its first rank, which looks for a while whether another run
-- that was there still lives, and waits until that is known. `takes_over`: the claim is the run's, of a rank before.
local function claim_store(run, takes_over)
  local store = (run.arguments.snapshot or {}).store
  if not store or run.claims.store or run.cluster and run.cluster:rank() > 0 then return "" end
  local claim = native.claim_store(store, run.number, takes_over)
  if not claim then return "" end   -- a folder, which is claimed as such
  run.claims.store = claim
  local began, said = native.clock(), false
  local state = claim:wait(0.2)
  while state == "looking" do
    if not said and native.clock() - began > 3 and claim:sentence() ~= "" then
      warn("%s", claim:sentence())
      said = true
    end
    together.wait(run)
    state = claim:wait(0.2)
  end
  if state == "refused" then errors.usage("%s", claim:sentence()) end
  if state == "failed" then
    warn("%s: until the store answers, no other run is kept out of %s", claim:sentence(), store)
  end
  return ""
end

--- Another run that was met in the bucket since: said once.
function claims.say_foreign(run)
  local claim = (run.claims or {}).store
  local foreign = claim and claim:foreign() or ""
  if foreign ~= "" and run.foreign ~= foreign then
    native.write("stderr", ("%s: each may remove what the other has written; stop one of them, or give it another "
      .. "`snapshot.store`\n"):format(foreign))
    run.foreign = foreign
  end
end

--- Keep other runs out of where the run saves while it trains. All ranks call it.
-- @bool[opt] alone the run goes on after a change of its ranks, and has the claims; an error is this rank's alone
-- @string[opt] what "save", "keep_best" or "snapshots": that alone
function claims.claim(run, alone, what)
  if alone then
    claim_folders(run)
    claim_store(run, true)
    return
  end
  local ok, problem = pcall(function()
    together.call(run, claim_folders, run, what)
    if not what or what == "snapshots" then
      together.by_first_in_time(run, function() return claim_store(run, false) end)
    end
  end)
  if ok then return end
  claims.release(run, select(2, errors.describe(problem)) == "peer")
  error(problem, 0)
end

-- What a save in a folder holds, in a text that differs after another run has saved there.
local function description_of(folder)
  local ok, held = pcall(files.held, folder)
  return ok and held and ("%s %s %s"):format(held.file, tostring(held.training), tostring(held.steps)) or ""
end

-- Remember what is in the folder of a field while no other run writes there.
local function note_save(run, field)
  run.seen_saves = run.seen_saves or {}
  run.seen_saves[field] = run.arguments[field] and description_of(run.arguments[field])
end

--- Remember what is where the run saves, before it reads that without a claim.
function claims.note_places(run)
  for _, field in ipairs { "save", "keep_best" } do note_save(run, field) end
  run.seen_step = math.max((places.newest_in_folder(run) or { step = 0 }).step, run.newest_begun or 0)
end

--- The run has stopped training, so that another one may train there.
-- @bool[opt] goes_on other ranks may go on with it: they take over the claim on its bucket
function claims.release(run, goes_on)
  local disk = (run.snapshotting or {}).disk
  if disk then pcall(disk.wait, disk) end
  for _, task in ipairs(run.left_to_end or {}) do pcall(task.wait, task) end
  if run.snapshots then run.snapshots:release() end
  local held = run.claims or {}
  if held.store and goes_on then held.store:stop() elseif held.store then held.store:leave() end
  held.store = nil
  for field, claim in pairs(held) do
    note_save(run, field)
    claim:release()
  end
  run.claims = nil
end

-- The run had no claims for a while. What another run has saved since is not this one's; after its snapshots this run
-- takes none.
local function look_for_changes(run, what)
  for _, field in ipairs { "save", "keep_best" } do
    local folder, seen = run.arguments[field], (run.seen_saves or {})[field]
    local now = seen and run.claims[field] and description_of(folder)
    if now and now ~= seen then run.wrote[native.resolve(folder)] = nil end
  end
  if what and what ~= "snapshots" or run.overwrite or not run.seen_step then return end
  local a, seen = run.arguments.snapshot or {}, math.max(run.seen_step, run.newest_begun or 0)
  local function check(place, newest)
    if newest and newest > seen then
      errors.usage("%s holds snapshots up to step %d, which another run has written since this one was last there; "
        .. "het.train with resume = true goes on with them", place, newest)
    end
  end
  check(a.folder, (places.newest_in_folder(run) or {}).step)
  if not a.store or run.cluster and run.cluster:rank() > 0 then return end
  local answers, sent = pcall(native.store_newest, a.store)
  check(a.store, answers and sent or nil)
end

local function claim_again(run, what)
  claims.claim(run, false, what)
  local ok, problem = pcall(together.call, run, look_for_changes, run, what)
  if ok then return end
  claims.release(run)
  error(problem, 0)
end

--- A run that was only looked at, or has stopped, trains now.
function claims.claim_to_train(run)
  if not run.claims then claim_again(run) end
end

--- Call fn(...), which writes in the run's folders, also where the run does not train. All ranks call it.
-- @string what "save", "keep_best" or "snapshots": what fn writes
function claims.while_claimed(run, what, fn, ...)
  if run.claims then return fn(...) end
  claim_again(run, what)
  local ok, result = pcall(fn, ...)
  claims.release(run)
  if not ok then error(result, 0) end
  return result
end

--- Before a save in a folder that a field names: the claim is taken again where the folder was removed. Raises where
-- another run has it since.
function claims.renew(run, field)
  local claim = (run.claims or {})[field]
  if claim then claim:renew() end
end

return claims
