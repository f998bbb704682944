--- Saving a run: where, when and what is kept. No save replaces what the run has not written itself, unless the person
-- said so; a run that is interrupted or fails replaces no model that has had more steps.
--
-- A run has `wrote`, by real path the folders that hold its own saves; `saved_step`, of the last save; and `saving`,
-- what runs beside its steps: { copy =, about = } while the state is copied, then { written = }.
local native = require "het.native"
local errors = require "het.errors"
local files = require "het.model.folder"

local saving = {}

-- The real path of a folder: however it is written, it is the same one.
local function real(folder) return native.resolve(folder) end

--- From now on a folder holds this run's own save, which it may replace.
function saving.mark_own(run, folder) run.wrote[real(folder)] = true end

--- Whether a save would replace what is not this run's: what the folder holds, else nil.
function saving.held_by_others(run, folder) return saving.is_of_others(run, folder) and files.held(folder) or nil end
function saving.is_of_others(run, folder) return not run.wrote[real(folder)] end

-- What is saved beside the state of this step.
local function about_of(run)
  local a = run.arguments
  return { step = run.step, cursor = run.cursor, seed = a.seed, precision = a.precision, best = run.best,
    validation = run.validation }
end

local function begin_writing(run, folder, state, about)
  saving.mark_own(run, folder)
  run.saved_step = about.step
  return files.begin_save(folder, run.arguments.model, state, about, run.arguments.data:vocabulary())
end

--- Go on with the save that runs beside the steps: write what has been copied. `wait`: until it is on the disk.
function saving.go_on(run, wait)
  local under_way = run.saving
  if not under_way then return end
  if under_way.copy and (wait or under_way.copy:done()) then
    run.saving = nil   -- until it is being written
    under_way = { written = begin_writing(run, run.arguments.save, under_way.copy, under_way.about) }
    run.saving = under_way
  end
  if under_way.written and (wait or under_way.written:done()) then
    run.saving = nil
    under_way.written:wait()
  end
end

--- Save at once, in a folder that the caller has checked: what it holds is replaced. All ranks call it.
function saving.now(run, folder)
  saving.mark_own(run, folder)   -- every rank: any of them may write the next one
  saving.go_on(run, true)
  local state = run:gather()
  if state then begin_writing(run, folder, state, about_of(run)):wait() end
end

--- Where the state is saved when the run has ended: in `save`, unless the model there is not to be replaced. A run that
-- `stopped` early replaces none that has had more steps; what came there since this run began is kept, too.
-- @return the folder, and what `save` holds when that is another one
function saving.folder_of_end(run, stopped)
  local folder = run.arguments.save
  if run.rank > 0 then return folder end   -- which writes nothing
  local held = saving.held_by_others(run, folder)
  local replaces = not held or run.overwrite and not (stopped and (held.steps or math.huge) > run.step)
  if replaces then return folder end
  return files.folder_beside(folder, run.step), held
end

--- Print where a run that ended was saved; `kept`: what `save` still holds.
function saving.say(run, reporter, how, folder, kept)
  local sentence = ("%s after step %d in %s"):format(how, run.step, folder)
  if not kept then return reporter:say(sentence) end
  -- Also when quiet: it is not where the recipe says.
  reporter:finish()
  native.write("stderr", ("%s; %s keeps %s. To go on with this one: save = %q and --resume. To go on with the other: "
    .. "--resume\n"):format(sentence, run.arguments.save, files.describe_held(kept):gsub("^a ", "its "), folder))
end

--- Keep what a run has learned that fails between its steps: beside the last save, which may be the better one. Ranks
-- that fail alone cannot gather it.
function saving.keep_failed(run, reporter, problem)
  local a = run.arguments
  local between = select(2, errors.describe(problem)) == "usage" and not run.cluster
  if not between or not a.save or run.step == (run.saved_step or run.first_step) then return end
  local kept = files.held(a.save)
  local folder = kept and files.folder_beside(a.save, run.step) or a.save
  local saved, why = pcall(saving.now, run, folder)
  if saved then saving.say(run, reporter, "failed and saved", folder, kept)
  else reporter:say("what was learned could not be saved: " .. errors.describe(why)) end
end

--- Print what a run that ends by the loss of ranks can go on from.
function saving.say_kept(run)
  local folder = run.arguments.save
  local held = folder and run.wrote[real(folder)] and files.held(folder)
  if not held or not held.training or native.settings.quiet then return end
  native.write("stderr", ("%s holds %s: --resume goes on with it\n"):format(folder, files.describe_held(held)))
end

--- Raise where run:save would replace what is not to be replaced.
function saving.check(run, folder, overwrite)
  local held = not (overwrite and not native.confined()) and not run.overwrite and saving.held_by_others(run, folder)
  if held and overwrite then
    errors.usage("run:save: %s holds %s that this run has not written; the recipe asks to replace it, and --overwrite "
      .. "lets it; another folder keeps both", folder, files.describe_held(held))
  elseif held then
    errors.usage("run:save: %s holds %s that this run has not written; %s replaces it, another folder keeps both",
      folder, files.describe_held(held), native.confined() and "--overwrite"
        or ("run:save(%q, { overwrite = true })"):format(folder))
  end
end

-- A copy of the state, or nil where the host has no room for it.
local function copy_of(run)
  if not run.copied and run.state:bytes() > native.device("cpu"):available_bytes() then return nil end
  local ok, copy = pcall(run.state.copy, run.state)
  if not ok and select(2, errors.describe(copy)) ~= "environment" then error(copy, 0) end
  run.copied = ok
  return ok and copy or nil
end

--- Save beside the steps that follow; at once where the host has no room for a copy. All ranks call it.
function saving.beside_steps(run)
  saving.mark_own(run, run.arguments.save)   -- every rank: any of them may write the next one
  saving.go_on(run, true)
  collectgarbage()   -- lets go of what was saved last: memory of a copy is used again
  local state = run:gather()
  if not state then return end
  local copy = state == run.state and copy_of(run)
  if copy then
    run.saving = { copy = copy, about = about_of(run) }
    saving.go_on(run)
  else
    local written = begin_writing(run, run.arguments.save, state, about_of(run))
    if state == run.state then written:wait() else run.saving = { written = written } end
  end
end

return saving
