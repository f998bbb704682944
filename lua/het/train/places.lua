--- Where a run's snapshots are: in its folder and in its store. This finds what is there before the run writes, and
-- raises errors where the run cannot begin beside it or resume from it.
local native = require "het.native"
local average = require "het.train.average"
local errors = require "het.errors"
local loader = require "het.model.load"

local places = {}

--- The newest snapshot in the run's folder, by the names of its files: { step =, ... }; nil where there is none.
function places.newest_in_folder(run)
  local folder = (run.arguments.snapshot or {}).folder
  return folder and native.path_kind(folder) == "folder" and native.snapshot_list(folder)[1] or nil
end

--- The step of the newest snapshot in the run's store; nil without one. A store that does not answer may have newer
-- ones than there are here, which a run that began without them would replace: an error.
function places.newest_in_store(run)
  local store = (run.arguments.snapshot or {}).store
  if not store then return nil end
  local ok, newest = pcall(native.store_newest, store)
  if ok then return newest end
  local why, kind = errors.describe(newest)
  -- Not the loss of a rank, after which the others would try again.
  errors.raise(run.member and "environment" or kind, "%s; a run begins or goes on once its store says what it has", why)
end

--- A run that goes on from snapshots on disk has the model that they are of.
function places.require_same_model(run)
  local folder = (run.arguments.snapshot or {}).folder
  if not run.resume or not folder or native.path_kind(folder) ~= "folder" then return end
  local readable, opened = pcall(native.snapshot_open, folder)
  if not readable then return end   -- what restores says why
  local about = native.json_decode(opened:summary().about)
  loader.require_model_of_snapshot(folder, run.arguments.model, type(about) == "table" and about.config,
    opened:tensors())
end

--- What a folder of snapshots holds that this run would go on beside: a sentence, or nil.
function places.problem(run)
  local folder = (run.arguments.snapshot or {}).folder
  if not folder or run.resume or run.overwrite then return nil end
  local sentence = "%s holds snapshots up to step %d; --resume goes on with them, --overwrite removes them, another %s "
    .. "keeps both"
  local sent = places.newest_in_store(run)
  if sent then return sentence:format(run.arguments.snapshot.store, sent, "place for `snapshot.store`") end
  if native.path_kind(folder) ~= "folder" then return nil end
  local newest = native.snapshot_list(folder)[1]
  return newest and sentence:format(folder, newest.step, "folder for `snapshot.folder`") or nil
end

--- No snapshot could be read: an error where files of some are there, which a run from the start would replace.
function places.expect_none(run)
  if not run.resume or run.has_state or run.step > 0 then return end
  local newest = places.newest_in_folder(run)
  if not newest then return end
  errors.usage("%s holds snapshots up to step %d, and none of them can be read; --overwrite instead of --resume "
    .. "removes them", run.arguments.snapshot.folder, newest.step)
end

--- No place has all of the state that the run is to go on with: an error where the newest snapshot is complete, but of
-- a model alone, or of a run with another optimizer. Else some machine may have the rest.
-- @param graph the training graph
function places.require_states(run, graph)
  local a = run.arguments.snapshot or {}
  for _, place in ipairs { a.folder, a.store } do
    local readable, opened = pcall(native.snapshot_open, place)
    if readable and #opened:missing() == 0 then
      local there, has_states = {}, false
      for _, tensor in ipairs(opened:tensors()) do
        there[tensor.name], has_states = true, has_states or not tensor.trained
      end
      for _, name in ipairs(graph:buffers()) do
        if not there[name] and not has_states then
          errors.usage("%s holds the weights of a model (step %d) without what optim.%s keeps beside them: no run can "
            .. "go on from it with --resume. To begin with these weights: `hetrun snapshot export %s MODEL`, and "
            .. "from = \"MODEL\" in the recipe, with another `snapshot.folder`; or run:restore { from = %q, only = "
            .. "\"*\" }", place, opened:summary().step, run.arguments.optimizer.name, place, place)
        elseif not there[name] then
          errors.usage("the snapshot of step %d in %s has no '%s', which %s keeps: its run had another optimizer, or "
            .. "trained other parameters; go on with the same, or take its weights alone: run:restore { from = %q, "
            .. "only = \"*\" }", opened:summary().step, place, name, average.is_moving(name) and "`ema`"
              or "optim." .. run.arguments.optimizer.name, place)
        end
      end
      return
    end
  end
end

return places
