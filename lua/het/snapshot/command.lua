--- `hetrun snapshot`: look at snapshots, check them, copy them, and turn saved models into snapshots and back.
local native = require "het.native"
local errors = require "het.errors"
local files = require "het.model.folder"
local loader = require "het.model.load"
local writer = require "het.model.write"
local snapshot = require "het.snapshot"
local subcommand = require "het.program.subcommand"
local text = require "het.text"

local command = {}

local function say(format, ...)
  native.write("stdout", (select("#", ...) == 0 and format or format:format(...)) .. "\n")
end

local wanted_step   -- of the command line

local function open(place) return snapshot.open(place, wanted_step) end

-- A sentence for each part that no file has.
local function lacking(opened)
  local sentences = {}
  for i, need in ipairs(opened:missing()) do sentences[i] = ("no file has %s %s"):format(need.name, need.slice) end
  return sentences
end

local verbs = {}

local in_list = "the snapshots in a folder or a store, the newest first"

verbs.list = { words = "FOLDER", sentence = in_list, run = function(folder)
  local list = snapshot.list(folder)
  if #list == 0 then errors.usage("'%s' holds no snapshot", folder) end
  if native.settings.json then return { snapshots = list } end
  say("%-10s %-11s %-6s %-10s %s", "step", "generation", "files", "size", "state")
  for _, listed in ipairs(list) do
    say("%-10d %-11d %-6d %-10s %s", listed.step, listed.generation, #listed.files,
      listed.bytes and text.bytes(listed.bytes) or "", listed.problem or "whole")
  end
end }

-- Elements, bytes and number of tensors of a kind.
local function sums(tensors, trained)
  local count, elements, bytes = 0, 0, 0
  for _, tensor in ipairs(tensors) do
    if tensor.trained == trained then
      local size = 1
      for _, n in ipairs(tensor.shape) do size = size * n end
      count, elements, bytes = count + 1, elements + size, bytes + tensor.bytes
    end
  end
  return ("%s, %s elements, %s"):format(text.plural(count, "tensor"), text.count(elements), text.bytes(bytes))
end

local function held_by(tensor)
  if #tensor.parts == 0 then return "no file" end
  if #tensor.parts == 1 and tensor.held_bytes == tensor.bytes then return tensor.parts[1].file:match "[^/]+$" end
  return ("%s in %s"):format(text.bytes(tensor.held_bytes), text.plural(#tensor.parts, "part"))
end

verbs.show = { words = "PLACE", sentence = "what a snapshot holds, tensor by tensor", run = function(place)
  local opened = open(place)
  local tensors, missing = opened:tensors(), opened:missing()
  if native.settings.json then
    return { run = opened.run, step = opened.step, generation = opened.generation, plan = opened.plan,
      ranks = opened.ranks, cursor = opened.cursor, seed = opened.seed, files = opened.files, bytes = opened.bytes,
      whole = opened.whole, missing = missing[1] and missing, tensors = tensors }
  end
  say("%-12s %s", "snapshot", tostring(opened))
  say("%-12s step %d, decided in generation %d; next sample %d, seed %d", "state", opened.step, opened.generation,
    opened.cursor, opened.seed)
  say("%-12s %s", "parameters", sums(tensors, true))
  say("%-12s %s", "optimizer", sums(tensors, false))
  if opened.plan ~= "" then say("%-12s %s", "plan", (opened.plan:gsub("\n", "\n" .. (" "):rep(13)))) end
  for i, file in ipairs(opened.files) do say("%-12s %s", i == 1 and "files" or "", file) end
  for i, need in ipairs(missing) do say("%-12s %s %s", i == 1 and "missing" or "", need.name, need.slice) end
  say ""
  local longest = 4
  for _, tensor in ipairs(tensors) do longest = math.max(longest, #tensor.name) end
  local row = "%-" .. longest .. "s  %-20s %s"
  local spread = #opened.files > 1 or missing[1]
  say((row:format("name", "type", spread and "held by" or ""):gsub(" +$", "")))
  for _, trained in ipairs { true, false } do
    for _, tensor in ipairs(tensors) do
      local words = row:format(tensor.name, tensor.dtype .. text.shape(tensor.shape), spread and held_by(tensor) or "")
      if tensor.trained == trained then say((words:gsub(" +$", ""))) end
    end
  end
end }

verbs.verify = { words = "PLACE", sentence = "read all data of a snapshot and compare the checksums; of a folder also "
  .. "of newer ones",
  run = function(place)
    local opened, problems = snapshot.open_newest(place, wanted_step)
    if problems[1] then problems[#problems + 1] = ("%s is the latest complete one"):format(tostring(opened)) end
    for _, sentences in ipairs { opened:verify(), lacking(opened) } do
      for _, sentence in ipairs(sentences) do problems[#problems + 1] = sentence end
    end
    if #problems > 0 then errors.usage("%s", table.concat(problems, "\n")) end
    if native.settings.json then return { step = opened.step, bytes = opened.bytes, files = opened.files } end
    say("%s: whole, and all data matches its checksums", tostring(opened))
  end }

-- The vocabulary beside the snapshots of a folder or a store; nil where there is none.
local function vocabulary_beside(place)
  if place:match "^%w+://" then
    local words = native.store_text(place, "vocabulary.json")
    return words and native.json_decode(words) or nil
  end
  return native.path_kind(place) == "folder" and files.vocabulary(place) or nil
end

local function copy_vocabulary(place, into)
  local vocabulary = vocabulary_beside(place)
  if not vocabulary then return end
  if not into:match "^%w+://" then return files.keep_vocabulary(into, vocabulary) end
  local file = os.tmpname()
  native.write_text(file, native.json_encode(vocabulary))
  local ok, problem = pcall(native.store_put, into, "vocabulary.json", file)
  os.remove(file)
  if not ok then error(problem, 0) end
end

verbs.copy = { words = "PLACE FOLDER", sentence = "copy a snapshot, checked, into a folder of snapshots or a store",
  run = function(place, folder)
    local opened = open(place)
    local problems = lacking(opened)
    if problems[1] then
      errors.usage("%s cannot be copied:\n  %s", tostring(opened), table.concat(problems, "\n  "))
    end
    local paths = opened.native:copy_to(folder)
    copy_vocabulary(place, folder)
    if native.settings.json then return { files = paths } end
    for _, path in ipairs(paths) do say("%s", path) end
  end }

verbs.import = { words = "MODEL FOLDER",
  sentence = "make a snapshot of a saved model, also of Hugging Face's, in a folder of snapshots or a store",
  run = function(model, folder)
    local tensors, about = loader.stored(model)
    local step, cursor, seed = about.step or 0, about.cursor or 0, about.seed or 0
    about.cursor, about.seed = nil, nil
    local path = native.snapshot_write { folder = folder, step = step, cursor = cursor, seed = seed,
      about = native.json_encode(about), tensors = tensors }
    if native.settings.json then return { file = path, step = step } end
    say("%s: step %d, %s", path, step, text.plural(#tensors, "tensor"))
    if not native.settings.quiet and not files.training(model) then
      native.write("stderr", ("note: these are weights alone; --resume needs what the optimizer keeps, too. A run "
        .. "takes them by run:restore { from = %q, only = \"*\" }\n"):format(folder))
    end
  end }

verbs.export = { words = "PLACE MODEL", sentence = "write the model of a snapshot as het.load and transformers read it",
  run = function(place, model)
    local opened = open(place)
    files.expect_free(model)
    opened.about.step = opened.step
    opened.about.vocabulary = opened.about.vocabulary or vocabulary_beside(place)
    writer.export(model, opened.about, {
      names = function() return opened:tensors() end,
      read = function(_, name) return opened:read(name) end,
    })
    if native.settings.json then return { folder = model, step = opened.step } end
    say("%s: the model after step %d", model, opened.step)
  end }

local order = { "list", "show", "verify", "copy", "import", "export" }

local function help()
  local lines = { "hetrun snapshot WORD PLACE [TO]. A place is a snapshot file, the folder of a saved run, or a folder "
    .. "of snapshots or", "a store (s3://bucket/name, file:///folder): then the latest complete one is used.", "" }
  for _, name in ipairs(order) do
    lines[#lines + 1] = ("  %-22s %s"):format(name .. " " .. verbs[name].words, verbs[name].sentence)
  end
  lines[#lines + 1] = ("  %-22s %s"):format("--step=N", "the snapshot after this step")
  lines[#lines + 1] = ("  %-22s %s"):format("--json", "print one JSON object instead")
  native.write("stdout", table.concat(lines, "\n") .. "\n")
  return 0
end

--- Run the words of the command line; returns the exit code.
function command.run(...)
  if native.settings.help then return help() end
  local words = { ... }
  local given, problems = subcommand.take({ { "step", "N" } }, words)
  local word = table.remove(words, 1)
  local verb = verbs[word]
  if not verb then
    errors.usage("hetrun snapshot needs one of %s%s", table.concat(order, ", "),
      word and (", not '%s'"):format(word) or "; hetrun snapshot --help explains them")
  end
  if problems[1] then errors.usage("hetrun snapshot: %s", problems[1]) end
  wanted_step = given.step and tonumber(given.step:match "^%d+$")
  if given.step and not wanted_step then errors.usage("--step=%s: a whole number is needed", given.step) end
  local _, wanted = verb.words:gsub("%S+", "")
  for _, option in ipairs(native.arguments or {}) do
    errors.usage("hetrun snapshot: there is no option %s; there are --step, --json", option:match "^[^=]+")
  end
  if #words ~= wanted then
    errors.usage("hetrun snapshot %s takes %s: hetrun snapshot %s %s", word, text.plural(wanted, "path"),
      word, verb.words)
  end
  local result = verb.run(unpack(words))
  if native.settings.json then native.write("stdout", native.json_encode(result) .. "\n") end
  return 0
end

return command
