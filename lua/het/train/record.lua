--- What is kept of a run beside the tensors of its state, in saves and in snapshots alike, so that it goes on exactly.
local native = require "het.native"
local average = require "het.train.average"
local define = require "het.language.define"
local digest = require "het.train.digest"
local errors = require "het.errors"
local evaluation = require "het.train.evaluation"
local graphs = require "het.train.graphs"
local writer = require "het.model.write"
local ledger = require "het.train.ledger"
local packing = require "het.train.packing"
local text = require "het.text"

local record = {}

-- Of data: a hash, and how much there is. Of a corpus the hash is of a part of its tokens and of how it is divided, of
-- pairs of all; and how many tokens, or samples, are trained on.
local function fingerprint(data)
  if define.kind_of(data) == "corpus" then
    return ("%s %d"):format(data.native.fingerprint, data.native:count "train"), data.tokens
  end
  local inputs, hashes = graphs.named_inputs(data.arguments.inputs), {}
  for i, name in ipairs(text.keys(inputs)) do hashes[i] = ("%s %.0f"):format(name, digest.hash_of(inputs[name])) end
  hashes[#hashes + 1] = ("%.0f %d"):format(digest.hash_of(data.arguments.labels), data.samples - data.held)
  return table.concat(hashes, " "), data.samples
end

-- Fields of the record about the data, and about what it is evaluated on where that is other data.
local function data_of(run)
  if not run.known_data then   -- it is in each snapshot
    local known, other = {}, run.arguments.evaluate.data
    known.data, known.data_tokens = fingerprint(run.arguments.data)
    if other then known.evaluated_data, known.evaluated_tokens = fingerprint(other) end
    run.known_data = known
  end
  return run.known_data
end

--- What is kept of a run as it is now, beside step, cursor and seed: JSON.
function record.of(run)
  run.config = run.config or writer.config(run.arguments.model)
  local kept = evaluation.numbers(run)
  kept.precision, kept.config = run.arguments.precision, run.config
  kept.packed, kept.packed_sources = packing.context(run), packing.sources(run)
  for name, value in pairs(data_of(run)) do kept[name] = value end
  -- Which has times: saves of others are the same bytes.
  kept.account = run.member and ledger.kept(run.ledger, run.is_over) or nil
  return native.json_encode(kept)
end

-- Files may come from anywhere: what each field has to be.
local texts = { precision = true, data = true, evaluated_data = true }
local whole = { best_step = true, since = true, evaluated = true, averages_since = true, packed = true,
  data_tokens = true, evaluated_tokens = true }
local finite = { best = true, validation = true, lowest = true }

local function problem_of(name, value)
  if texts[name] then return type(value) ~= "string" and "a string" or nil end
  if name == "packed_sources" then
    return not (type(value) == "string" and value:match "^[01]+$") and "0 or 1 for each source" or nil
  end
  if name == "account" then return not ledger.is_kept(value) and "an account of steps and ranks" or nil end
  local number = text.finite(value)
  if finite[name] then return not number and "a number" or nil end
  local is_whole = number and number >= 0 and number <= 2 ^ 53 and number % 1 == 0
  return whole[name] and not is_whole and "a whole number" or nil
end

--- What was kept of a run, checked.
-- @tparam table kept what a snapshot says of itself: `step`, `cursor`, `seed`, and `about`, what record.of gave
-- @string what the snapshot, for errors
-- @treturn table fields by name, `step`, `cursor` and `seed` among them
function record.read(kept, what)
  local about = kept.about ~= "" and native.json_decode(kept.about) or {}
  if type(about) ~= "table" then errors.usage("%s says nothing of the run that it is of", what) end
  for _, name in ipairs(text.keys(about)) do
    local wanted = problem_of(name, about[name])
    if wanted then
      errors.usage("%s: its %s is %s and not %s; no run can go on from it", what, name, text.value(about[name]), wanted)
    end
  end
  about.step, about.cursor, about.seed = kept.step, kept.cursor, kept.seed
  return about
end

-- Say that samples are others than they would have been, where data_of shows it. Losses of other data are no measure
-- for those to come.
local function note_other_data(run, about, what)
  local now = data_of(run)
  if not about.data then return end   -- of an earlier version
  local trains_alike, evaluates_alike = about.data == now.data, about.evaluated_data == now.evaluated_data
  if trains_alike and evaluates_alike then return end
  run.best_step_before = about.best_step
  about.best, about.best_step, about.lowest, about.since = nil, nil, nil, nil
  if run.rank ~= 0 or native.settings.quiet or about.step >= run.arguments.steps then return end
  local unit = define.kind_of(run.arguments.data) == "pairs" and "samples" or "tokens"
  if trains_alike then
    return native.write("stderr", ("note: %s was evaluated on other data (%s %s then, %s now); its lowest validation "
      .. "loss is forgotten\n"):format(what, text.grouped(about.evaluated_tokens or 0), unit,
      text.grouped(now.evaluated_tokens or 0)))
  end
  native.write("stderr", ("note: %s was trained on other data (%s %s then, %s now); it goes on with sample %s of the "
    .. "new data, and its lowest validation loss is forgotten\n"):format(what, text.grouped(about.data_tokens or 0),
    unit, text.grouped(now.data_tokens), text.grouped((about.cursor or 0) + 1)))
end

--- Refuse to go on where the run would give other results than the one that was kept; of data that differs there is a
-- note.
-- @param run a run
-- @tparam table about what record.read gave
-- @string what was kept: "the run of the snapshots"
-- @string[opt] otherwise what works instead (default: to go on with the same settings)
function record.require_alike(run, about, what, otherwise)
  local a = run.arguments
  if about.seed ~= a.seed or about.precision and about.precision ~= a.precision then
    errors.usage("%s has seed = %.14g and precision = %s, this run has seed = %.14g and precision = %s; %s", what,
      about.seed, about.precision or "unknown", a.seed, a.precision, otherwise or "go on with the same")
  end
  packing.require_alike(run, about, what)
  note_other_data(run, about, what)
end

-- Refuse to go on from a save that has more than this run keeps, which would be lost with the next save.
local function require_use(run, graph)
  local used = {}
  for _, name in ipairs(graph:buffers()) do used[name] = true end
  for _, parameter in ipairs(graph:parameters()) do used[parameter.name] = true end
  for _, name in ipairs(run.kept) do
    if not used[name] and not average.is_moving(name) then
      local a = run.arguments
      errors.usage("the run saved in %s has '%s', which this run with optim.%s does not keep: it had another "
        .. "optimizer; go on with the same, or begin another run with its weights: from = \"%s\"", a.save, name,
        a.optimizer.name, a.save)
    end
  end
end

--- Refuse to go on from a save that lacks what the optimizer keeps, which would begin at zeros, or has more.
-- @param graph the training graph
function record.require_states(run, graph)
  require_use(run, graph)
  for _, name in ipairs(graph:buffers()) do
    if not run.initial[name] and not average.is_moving(name) then
      local a = run.arguments
      errors.usage("the run saved in %s has no '%s', which optim.%s keeps: it had another optimizer, or trained other "
        .. "parameters; go on with the same, or begin another run with its weights: from = \"%s\"", a.save, name,
        a.optimizer.name, a.save)
    end
  end
end

return record
