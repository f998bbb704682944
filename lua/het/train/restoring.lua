--- `run:restore`: weights, or all of the training state, from a snapshot or a saved model, whatever plan either has.
-- Each rank reads what its part of the state needs; what it wants is checked on all ranks before anything is replaced.
-- The state is then of a version that no earlier snapshot has, so that nothing of these is mixed with it.
local native = require "het.native"
local access = require "het.sandbox.access"
local average = require "het.train.average"
local define = require "het.language.define"
local errors = require "het.errors"
local evaluation = require "het.train.evaluation"
local files = require "het.model.folder"
local loader = require "het.model.load"
local ledger = require "het.train.ledger"
local record = require "het.train.record"
local snapshots = require "het.train.snapshots"
local suggest = require "het.language.suggest"
local text = require "het.text"
local together = require "het.train.together"

local restoring = {}

--- The fields of what run:restore is given.
restoring.fields = {
  { "from", "string", "a folder of snapshots, a snapshot file, a store (s3://...), or the folder of a saved model",
    required = true },
  { "only", "string|list", "names of parameters, * stands for any characters: these weights alone are replaced, and "
    .. "training goes on where it is (default: all of the training state, and the run goes on after its step)" },
  { "step", "integer", "the snapshot after this step (default: the latest complete one)", min = 0 },
}

local function checked(given)
  local example = 'run:restore { from = "runs/mine/snapshots" }'
  if type(given) ~= "table" then errors.usage("run:restore takes named fields, as in %s", example) end
  local known, names = {}, {}
  for i, field in ipairs(restoring.fields) do known[field[1]], names[i] = field, field[1] end
  for _, name in ipairs(text.keys(given)) do
    local field, value = known[name], given[name]
    if not field then
      errors.usage("run:restore has no field '%s'%s", tostring(name), suggest.sentence(tostring(name), names))
    end
    local problem = define.value_problem(field, value)
    if problem then errors.usage("run:restore: %s = %s%s", name, text.value(value), problem) end
  end
  if given.from == nil then errors.usage("run:restore needs `from`, as in %s", example) end
  local only = type(given.only) == "string" and { given.only } or given.only
  for _, pattern in ipairs(only or {}) do
    if type(pattern) ~= "string" then
      errors.usage("run:restore: only holds %s; names of parameters are needed", text.value(pattern))
    end
  end
  if only and #only == 0 then errors.usage("run:restore: only is an empty list; leave it out to restore everything") end
  return given.from, only, given.step
end

-- The tensors of an open snapshot as what `wanted_here` chooses from: { shape =, read = } by name.
local function add_snapshot(tensors, opened)
  for _, tensor in ipairs(opened:tensors()) do
    tensors[tensor.name] = { shape = tensor.shape, read = function() return opened:read(tensor.name) end }
  end
end

-- A saved model: its weights, and the training state where it has that.
local function open_model(run, folder, needs_training)
  local source = { tensors = {}, what = "the model in " .. folder }
  local metadata = loader.set_initial_weights(folder, run.arguments.model, { set_initial = function(_, name, stored)
    source.tensors[name] = { shape = stored.shape, read = function() return stored:read() end }
  end })
  source.step = tonumber(metadata.step or "")
  if not needs_training then return source end
  local training = files.training(folder)
  if not training then
    errors.usage('run:restore: %s holds a model alone, without the state of its training; only = "*" takes its weights',
      folder)
  end
  source.training = record.read(training:summary(), source.what)
  add_snapshot(source.tensors, training)
  return source
end

local function open_snapshot(place, step, needs_training)
  local opened = require("het.snapshot").open(place, step)
  local source = { tensors = {}, step = opened.step,
    what = ("the snapshot of step %d in %s"):format(opened.step, place) }
  add_snapshot(source.tensors, opened)
  if needs_training then source.training = record.read(opened.native:summary(), source.what) end
  if needs_training and not opened.whole then
    local missing = opened:missing()
    errors.usage("run:restore: %s is not complete: no file has %s %s", source.what, missing[1].name, missing[1].slice)
  end
  return source
end

local function is_model(place)
  for _, name in ipairs { "model.safetensors", "model.safetensors.index.json", "config.json",
    "adapter_config.json" } do
    if native.path_kind(place .. "/" .. name) == "file" then return true end
  end
  return false
end

local function open(run, place, step, needs_training)
  if place:match "^%w+://" then return open_snapshot(place, step, needs_training) end
  access.check(place)
  if not is_model(place) then return open_snapshot(place, step, needs_training) end
  if step then errors.usage("run:restore: %s holds a saved model, which has no snapshot of a step", place) end
  return open_model(run, place, needs_training)
end

local function pattern_of(wanted)
  return "^" .. wanted:gsub("%W", function(each) return each == "*" and ".*" or "%" .. each end) .. "$"
end

-- The parameters that patterns name, of all ranks.
local function chosen(run, only)
  local names, found = text.keys(run.session.shapes), {}
  for _, wanted in ipairs(only) do
    local pattern, matched = pattern_of(wanted), false
    for _, name in ipairs(names) do
      if name:match(pattern) then found[name], matched = true, true end
    end
    if not matched then
      local near = native.nearest(wanted, names)
      errors.usage("run:restore: only = %q matches no parameter of the model%s", wanted,
        near and (", which has %s"):format(near) or (", which has %s, %s, ..."):format(names[1],
          names[2] or names[1]))
    end
  end
  return found
end

-- The parameter that a name of the state is the average of; nil for other names. Where parameters alone are restored,
-- averages begin with them: those of before would mix other weights into evaluations and saves, and a schedule-free
-- optimizer finds its last point z from the parameter and its average.
local function averaged_by(kept, entry)
  local is_average = kept and not entry.trained and entry.name:sub(1, #kept.prefix) == kept.prefix
  return is_average and entry.name:sub(#kept.prefix + 1) or nil
end

-- The names of this rank's part of the state that are replaced, in a map to the names that the source has for them, and
-- how many parameters of all ranks': all of it can be, or an error says why not.
local function wanted_here(run, source, only)
  local parameters, count = chosen(run, only or { "*" }), 0
  for name in pairs(parameters) do
    count = count + 1
    local theirs, shape = source.tensors[name], run.session.shapes[name]
    if not theirs then errors.usage("run:restore: %s has no '%s'", source.what, name) end
    if text.shape(theirs.shape) ~= text.shape(shape) then
      errors.usage("run:restore: '%s' is %s in %s, this run's is %s", name, text.shape(theirs.shape), source.what,
        text.shape(shape))
    end
  end
  local names, kept = {}, only and average.of(run.arguments)
  for _, entry in ipairs(run.state:names()) do
    local averaged = averaged_by(kept, entry)
    local is_wanted = parameters[entry.name] or not only and not entry.trained and not entry.name:match "^cache%."
    if is_wanted and not source.tensors[entry.name] then
      errors.usage("run:restore: %s has no '%s', which %s needs; only = \"*\" takes the weights alone", source.what,
        entry.name, run.arguments.ema and average.is_moving(entry.name) and "`ema`" or "the optimizer")
    end
    if is_wanted then names[entry.name] = entry.name
    elseif averaged and parameters[averaged] then names[entry.name] = averaged end
  end
  return names, count
end

-- The run goes on after the step of what was restored.
local function go_on_after(run, about)
  run.step = about.step
  evaluation.restore(run, about)
  run.cursor = about.cursor or about.step * run.arguments.batch
  ledger.restore(run.ledger, run.step, run.cursor)
  run.called, run.followed, run.reported = run.step, run.step, run.step
  run.session.sampler:seek(run.cursor)
end

-- The step of the snapshot that is taken: where none is given, the latest complete one that the first rank finds, as
-- others may find one that has become complete since. Nil of a saved model.
local function step_on_first(run, place, step)
  local is_store = place:match "^%w+://" ~= nil
  local found = together.by_first(run, function()
    if not is_store then access.check(place) end
    if step or not is_store and is_model(place) then return "" end
    return ("%d"):format(require("het.snapshot").open(place).step)
  end)
  return step or tonumber(found)
end

-- A model may be replaced while the ranks open it.
local function require_same_step(run, source)
  together.require_same(run, tostring(source.step), function(first, rank, theirs)
    return ("run:restore: %s is of step %s on rank 0 and of step %s on rank %d; all need the same"):format(source.what,
      first, theirs, rank)
  end)
end

--- Replace weights, or all of the state, by those of elsewhere. All ranks call it at the same place.
-- @tparam table run
-- @tparam table given see `restoring.fields`
-- @treturn table { step =, parameters = (how many) }: the step after which the run goes on
function restoring.restore(run, given)
  local source, names, count
  local parts = {}   -- read, and so checked, before anything is replaced
  if run.snapshots then snapshots.settle(run) end
  local asked = together.call(run, function()
    local place, only, step = checked(given)
    return { place = place, only = only, step = step }
  end)
  local place, only = asked.place, asked.only
  local step = step_on_first(run, place, asked.step)
  local function prepare()
    source = open(run, place, step, not only)
    if not only then
      record.require_alike(run, source.training, "run:restore: the run of " .. source.what,
        'only = "*" takes the weights alone')
    end
    names, count = wanted_here(run, source, only)
    source.all = not only
    for _, stored in pairs(names) do parts[stored] = parts[stored] or source.tensors[stored].read() end
  end
  together.call(run, prepare)
  require_same_step(run, source)
  together.call(run, function()
    for name, stored in pairs(names) do run.state:write(name, parts[stored]) end
    parts = {}
  end)
  if source.all then go_on_after(run, source.training) end
  run.state:restart(run.step)
  -- The run has done more now than it had when it began.
  run.begun = math.min(run.begun, run.step - 1)
  if run.first_step then run.first_step = math.min(run.first_step, run.step - 1) end
  run.session.first_step = math.min(run.session.first_step, run.step - 1)
  if run.snapshots then
    snapshots.restart(run)
    if run.member then snapshots.take_now(run) end
  end
  if run.rank == 0 and not native.settings.quiet then
    native.write("stderr", ("restored %s from %s; the run goes on after step %d\n"):format(source.all
      and "all of the state" or text.plural(count, "parameter"), source.what, run.step))
  end
  return { step = run.step, parameters = count }
end

return restoring
