--- Saving a run: where, when and what is kept. No save replaces what the run has not written itself, unless the person
-- said so; a run that is interrupted or fails replaces no model that has had more steps.
--
-- A run has `wrote`, by real path the folders that hold its own saves: true for one that this rank wrote or read, the
-- steps of the saves for one that another rank wrote (it may be on another machine); by the field that names a folder,
-- "save" or "keep_best": `save_folders`, where it saves when that folder holds another's model; `saved_steps`, of the
-- last save; `save_precision`, of the weights of its models; and `saving`, what runs beside its steps: { copy =,
-- moment =, folder = } while the state is copied, then { written = }. Saves in one folder wait for each other, and for
-- no other.
local native = require "het.native"
local average = require "het.train.average"
local claims = require "het.train.claims"
local errors = require "het.errors"
local files = require "het.model.folder"
local writer = require "het.model.write"
local record = require "het.train.record"
local reference = require "het.train.reference"
local text = require "het.text"
local together = require "het.train.together"

local saving = {}

local fields = { "save", "keep_best" }

--- A run has saved nothing yet.
function saving.begin(run)
  run.wrote, run.save_folders, run.saved_steps, run.saving, run.copied = {}, {}, {}, {}, {}
end

-- The real path of a folder: however it is written, it is the same one.
local function real(folder) return native.resolve(folder) end

--- From now on a folder holds this run's own save, which it may replace.
function saving.mark_own(run, folder) run.wrote[real(folder)] = true end

--- A run that goes on: in `keep_best` its own model is that of the step that was the best one.
function saving.learn_best(run)
  local folder = run.arguments.keep_best
  local step = run.best_step or run.best_step_before   -- of other data, whose loss does not count any more
  if not folder or not run.resume or not step then return end
  saving.learn_saves(run, { { folder = real(folder), steps = { step } } })
end

-- The run saves in a folder after its present step; of several ranks the first writes.
local function mark_save(run, folder)
  if run.rank == 0 then return saving.mark_own(run, folder) end
  saving.learn_saves(run, { { folder = real(folder), steps = { run.step } } })
end

--- The saves of the run that this rank knows, for one that joins: a list of { folder =, steps = }.
function saving.steps_of_saves(run)
  local list = {}
  for folder, known in pairs(run.wrote) do
    if known == true then   -- it read the one that the run began with, or writes this one
      known = { run.begun }
      for _, step in pairs(run.saved_steps) do known[#known + 1] = step end
      for _, under_way in pairs(run.saving) do known[#known + 1] = under_way.moment and under_way.moment.step end
    end
    list[#list + 1] = { folder = folder, steps = known }
  end
  return list
end

--- Take over what another rank knows of the run's saves.
function saving.learn_saves(run, list)
  for _, save in ipairs(list) do
    local known = run.wrote[save.folder] or {}
    if known ~= true then
      for _, step in ipairs(save.steps) do known[#known + 1] = step end
      run.wrote[save.folder] = known
    end
  end
end

--- Whether a save would replace what is not this run's: what the folder holds, else nil.
function saving.held_by_others(run, folder)
  local held = files.held(folder)
  return held and saving.is_of_others(run, folder, held) and held or nil
end

--- Whether what a folder holds is not this run's.
-- @tparam[opt] table held what files.held found there
function saving.is_of_others(run, folder, held)
  local known = run.wrote[real(folder)]
  if known == nil or known == true then return not known end
  for _, step in ipairs(known) do
    if held and held.training and held.steps == step then return false end
  end
  return true
end

-- What is saved of this step beside the state: `training` with it, and the weight of the averages.
local function moment_of(run)
  local a = run.arguments
  return { step = run.step, average_weight = average.weight(run),
    training = { run = a.name, step = run.step, cursor = run.cursor, seed = a.seed,
      plan = run.plan and tostring(run.plan) or "", about = record.of(run) } }
end

--- The precision that the run's model is to be saved in.
function saving.precision(run)
  local a = run.arguments
  run.save_precision = run.save_precision or a.save_precision or writer.precision_of_save(a.model, a.from)
  return run.save_precision
end

-- Before a save in a folder, which may be one that the run has claimed.
local function renew_claim(run, folder)
  for _, field in ipairs(fields) do
    if folder == run.arguments[field] then claims.renew(run, field) end
  end
end

local function begin_writing(run, field, folder, state, moment)
  renew_claim(run, folder)
  saving.mark_own(run, folder)   -- this rank writes it
  run.saved_steps[field] = moment.step
  if run.arguments.reference then state = reference.without(state) end
  local written, used = writer.begin_save(folder, run.arguments.model, state,
    average.saved(run, state, moment.average_weight), moment.training, run.arguments.data:vocabulary(),
    saving.precision(run))
  run.saved_precision = used
  return written
end

-- Go on with the save of a field.
local function go_on_with(run, field, wait)
  local under_way = run.saving[field]
  if not under_way then return end
  if under_way.copy and (wait or under_way.copy:done()) then
    run.saving[field] = nil   -- until it is being written
    under_way = { written = begin_writing(run, field, under_way.folder, under_way.copy, under_way.moment) }
    run.saving[field] = under_way
  end
  if under_way.written and (wait or under_way.written:done()) then
    run.saving[field] = nil
    under_way.written:wait()
  end
end

-- A save that runs beside the steps: what the machine refuses, such as a full disk, is said, and the run goes on to the
-- next one.
local function beside(run, field, write, ...)
  local ok, problem = pcall(write, run, field, ...)
  if ok then return end
  local why, kind = errors.describe(problem)
  if kind ~= "environment" then error(problem, 0) end
  run.saving[field], run.saved_steps[field] = nil, nil
  native.write("stderr", ("the save in %s was not written: %s; training goes on\n"):format(run.arguments[field], why))
end

--- Go on with the saves that run beside the steps: write what has been copied.
function saving.go_on(run)
  for _, field in ipairs(fields) do beside(run, field, go_on_with) end
end

local function drop(run, field)
  local under_way = run.saving[field]
  run.saving[field] = nil
  if under_way and under_way.written then pcall(under_way.written.wait, under_way.written) end
end

--- Give up the saves that run beside the steps: what is being written is waited for, a copy is not written.
function saving.drop(run)
  for _, field in ipairs(fields) do drop(run, field) end
end

--- Finish the saves that run beside the steps of a run that fails: unless the others have ended the run without this
-- rank, or have saved a later step there. Returns what went wrong, else nil.
function saving.finish_failed(run, problem)
  local wrong
  for _, field in ipairs(fields) do
    local under_way = run.saving[field]
    local held = under_way and under_way.copy and files.held(under_way.folder)
    local is_late = held and (held.steps or 0) > under_way.moment.step
    local has_ended = select(2, errors.describe(problem)) == "ended"
    if under_way and under_way.copy and (is_late or has_ended) then drop(run, field) end
    local saved, why = pcall(go_on_with, run, field, true)
    wrong = wrong or not saved and errors.describe(why) or nil
  end
  return wrong
end

-- Finish the saves of some fields. All ranks call it.
local function finish(run, list)
  together.in_time(run, function()
    for _, field in ipairs(list) do
      beside(run, field, go_on_with)
      while run.saving[field] do
        native.sleep(0.005)
        together.wait(run)
        beside(run, field, go_on_with)
      end
    end
  end)
end

--- Finish the saves that run beside the steps. All ranks call it.
function saving.finish(run) finish(run, fields) end

--- Save at once, in a folder that the caller has checked: what it holds is replaced. All ranks call it.
function saving.now(run, folder)
  mark_save(run, folder)   -- every rank: any of them may write the next one
  saving.finish(run)
  local state = run:gather()
  together.in_time(run, function()
    if not state then return end
    local written = begin_writing(run, "save", folder, state, moment_of(run))
    together.until_done(run, written)
    written:wait()
  end)
end

--- Where the state is saved when the run has ended: in `save`, unless the model there is not to be replaced. A run that
-- `stopped` early replaces none that has had more steps; what came there since this run began is kept, too.
-- @return the folder, and what `save` holds when that is another one
function saving.folder_of_end(run, stopped)
  local folder = run.arguments.save
  if run.rank > 0 then return folder end   -- which writes nothing
  local claimed, why = pcall(renew_claim, run, folder)
  if not claimed then
    native.write("stderr", ("%s\n"):format((errors.describe(why))))
    return files.folder_beside(folder, run.step), files.held(folder) or { file = "what that run writes" }
  end
  local held = saving.held_by_others(run, folder)
  local replaces = not held or run.overwrite and not (stopped and (held.steps or math.huge) > run.step)
  if replaces then return folder end
  return files.folder_beside(folder, run.step), held
end

--- Print where a run that ended was saved; `kept`: what `save` still holds.
function saving.say(run, reporter, how, folder, kept)
  local precision = run.saved_precision or saving.precision(run)
  local sentence = ("%s after step %d in %s%s"):format(how, run.step, folder,
    precision == "f32" and "" or (", the model in %s"):format(precision))
  if not kept then return reporter:say(sentence) end
  -- Also when quiet: it is not where the recipe says.
  reporter:finish()
  native.write("stderr", ("%s; %s keeps %s. To go on with this one: save = %q and --resume. To go on with the other: "
    .. "--resume\n"):format(sentence, run.arguments.save, files.describe_held(kept):gsub("^a ", "its "), folder))
end

-- Where a run that failed is saved, and what `save` holds that is kept; "" where no step is new.
local function folder_of_failed(run)
  if run.step == (run.saved_steps.save or run.first_step) then return "" end
  local folder = run.arguments.save
  if run.rank > 0 then return folder end   -- which writes nothing
  local kept = files.held(folder)
  return kept and files.folder_beside(folder, run.step) or folder, kept
end

--- Save a run that fails between its steps: beside the last save, which may be the better one. Of several ranks the
-- first says where; all call it.
function saving.keep_failed(run, reporter)
  local folder, kept
  local saved, why = pcall(function()
    folder, kept = folder_of_failed(run)
    if run.cluster then folder = run.cluster:all_gather(folder)[1] end
    if folder ~= "" then saving.now(run, folder) end
  end)
  if not saved then reporter:say("what was learned could not be saved: " .. errors.describe(why))
  elseif folder ~= "" then saving.say(run, reporter, "failed and saved", folder, kept) end
end

--- Print what a run that ends by the loss of ranks can go on from.
function saving.say_kept(run)
  local folder = run.arguments.save
  local held = folder and run.wrote[real(folder)] and files.held(folder)
  local taken = (run.arguments.snapshot or {}).folder
  local newest = taken and native.path_kind(taken) == "folder" and native.snapshot_list(taken)[1]
  if held and held.training then
    native.write("stderr", ("%s holds %s: --resume goes on with it\n"):format(folder, files.describe_held(held)))
  elseif newest then
    native.write("stderr", ("%s holds snapshots up to step %d: --resume goes on with them\n"):format(taken,
      newest.step))
  elseif not taken and not run.member then
    native.write("stderr", ("nothing was saved of %s%s\n"):format(text.plural(run.step, "step"),
      folder and "" or " (set `save` with `save_every`, or `snapshot.folder`)"))
  end
end

--- Raise where run:save would replace what is not to be replaced.
function saving.check(run, folder, overwrite, merged)
  local model = run.arguments.model
  local problem = files.problem(folder, merged and model.lora.base or model)
  if problem then errors.usage("run:save: %s", problem) end
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
local function copy_of(run, field)
  for _, other in pairs(run.saving) do
    if other.copy and other.moment.step == run.step then return other.copy end
  end
  if not run.copied[field] and run.state:bytes() > native.device("cpu"):available_bytes() then return nil end
  local ok, copy = pcall(run.state.copy, run.state)
  if not ok and select(2, errors.describe(copy)) ~= "environment" then error(copy, 0) end
  run.copied[field] = ok
  return ok and copy or nil
end

-- Where the saves beside the steps go: in the folder that the field names; beside it where this rank, which writes
-- since others were lost, finds a model there that is not the run's.
local function folder_of_steps(run, field)
  local folder = run.arguments[field]
  local held = run.rank == 0 and not run.overwrite and saving.held_by_others(run, folder)
  if not held then return folder end
  if not run.save_folders[field] then
    run.save_folders[field] = files.folder_beside(folder, run.step)
    native.write("stderr", ("%s holds %s that this run has not written: it is saved in %s\n"):format(folder,
      files.describe_held(held), run.save_folders[field]))
  end
  return run.save_folders[field]
end

-- Begin to save a state of all ranks.
local function begin_beside(run, field, folder, state)
  local copy = state == run.state and copy_of(run, field)
  if copy then
    run.saving[field] = { copy = copy, moment = moment_of(run), folder = folder }
    go_on_with(run, field)
  else
    local written = begin_writing(run, field, folder, state, moment_of(run))
    if state == run.state then written:wait() else run.saving[field] = { written = written } end
  end
end

--- Save beside the steps that follow; at once where the host has no room for a copy. All ranks call it.
-- @string field of het.train that names the folder: "save" or "keep_best"
function saving.beside_steps(run, field)
  local folder = folder_of_steps(run, field)
  mark_save(run, folder)   -- every rank: any of them may write the next one
  finish(run, { field })
  collectgarbage()   -- lets go of what was saved last: memory of a copy is used again
  local state = run:gather()
  if state then beside(run, field, begin_beside, folder, state) end
end

--- Print where the parameters of the lowest loss are kept; where the folder has those of another step, also when quiet.
function saving.say_best(run, reporter)
  local folder = run.save_folders.keep_best or run.arguments.keep_best
  local held = folder and run.rank == 0 and run.best_step and files.held(folder)
  if held and held.steps == run.best_step then
    reporter:say(("the parameters of step %d, with the lowest validation loss (%.4f), are in %s"):format(run.best_step,
      run.best, folder))
  elseif folder and run.rank == 0 and run.best_step then
    reporter:finish()
    native.write("stderr", ("%s holds %s: the parameters of step %d, with the lowest validation loss (%.4f), are not "
      .. "there\n"):format(folder, not held and "no model" or files.describe_held(held), run.best_step, run.best))
  end
end

return saving
