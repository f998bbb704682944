--- Models in folders: `model.safetensors`, `config.json`, `vocabulary.json`, and `training.snapshot`, the snapshot of
-- the state that a run goes on from exactly. Models of a family (het.families) are stored in Hugging Face's layout;
-- others by our own names. Of a model with adapters (nn.lora) the adapters are stored, as PEFT stores them, and the
-- base model where no folder has it. Here is what a folder holds; het.model.load makes models of it, het.model.write
-- writes it.
local native = require "het.native"
local access = require "het.sandbox.access"
local adapter = require "het.model.adapter"
local stored_as = require "het.model.precision"
local define = require "het.language.define"
local errors = require "het.errors"
local nested = require "het.families.nested"
local tokenizer = require "het.model.tokenizer"
local text = require "het.text"

local files = {}

-- The files of a saved run, in the order in which they are written and then put in their places. While the first of
-- them is staged the others may be unfinished, and those in place are a whole save; once it stands in its place all
-- of them are whole, and what is still staged counts.
local parts = { "training.snapshot", "model.safetensors", "vocabulary.json", unpack(tokenizer.files) }
parts[#parts + 1] = adapter.tensors_file
parts[#parts + 1] = adapter.config_file
parts[#parts + 1] = "config.json"
files.parts = parts

local function is_staged(folder, part)
  return native.path_kind(native.staged_path(folder .. "/" .. part)) == "file"
end

--- Where a file of a folder is, when a save may have ended half-way.
function files.place_of(folder, part)
  local path = folder .. "/" .. part
  if is_staged(folder, part) and not is_staged(folder, parts[1]) then path = native.staged_path(path) end
  access.check(path)
  return path
end

-- Models that others have saved, in several files or PyTorch's, and earlier versions of hetrun. A save would leave
-- these beside its files.
files.index = "model.safetensors.index.json"   -- of parts
local foreign = { files.index, "pytorch_model.bin", "pytorch_model.bin.index.json", "training.safetensors" }

-- The metadata of a file of tensors; empty when there is none that can be read.
local function metadata_of(path)
  if native.path_kind(path) ~= "file" then return {} end
  local ok, _, metadata = pcall(native.safetensors_open, path)
  return ok and metadata or {}
end

-- A whole number from 0 on that Lua holds exactly, from its digits; nil for all else.
local function count_of(words)
  local number = type(words) == "string" and words:match "^%d+$" and tonumber(words)
  return number and number <= 2 ^ 53 and number or nil
end

--- What a save in a folder would replace; nil when there is nothing.
-- @treturn ?table `file`; `model`: whether it is a model's; `steps` that it has had, when that is known; `training`:
-- whether a run can go on from it; `foreign`: a file that no save of a run writes
function files.held(folder)
  local function first_of(names)
    for _, name in ipairs(names) do
      if native.path_kind(folder .. "/" .. name) == "file" then return name end
    end
  end
  for _, part in ipairs(parts) do
    if native.path_kind(folder .. "/" .. part) == "file" then access.check(folder .. "/" .. part, true) end
  end
  local other = first_of(foreign)
  local weights = { parts[2], adapter.tensors_file }
  local found = first_of { parts[1], unpack(weights) } or other or first_of { parts[3], "config.json" }
  if not found then return nil end
  local steps
  for _, part in ipairs(weights) do steps = steps or count_of(metadata_of(files.place_of(folder, part)).step) end
  local training = found == parts[1]
  return { file = found, model = training or found == other or found:match "safetensors" ~= nil, steps = steps,
    training = training, foreign = other }
end

--- Why a model cannot be saved in a folder whatever is to be replaced there; nil when it can.
function files.problem(folder, model)
  local has_adapters = define.kind_of(model) == "layer" and rawget(model, "lora") ~= nil
  if adapter.is_in(folder) == has_adapters then return nil end
  local held = files.held(folder)
  if not held or not held.model then return nil end
  return ("%s holds %s %s adapters, whose files would stay beside those of this model; another folder works"):format(
    folder, files.describe_held(held), has_adapters and "without" or "with")
end

--- What `held` found, after "it holds": "a model of 300 steps".
function files.describe_held(held)
  if not held.model then return held.file end
  return held.steps and "a model of " .. text.plural(held.steps, "step") or "a model"
end

--- Refuse a folder that holds a model: a command replaces none.
function files.expect_free(folder)
  local held = files.held(folder)
  if held then errors.usage("%s holds %s; another folder keeps both", folder, files.describe_held(held)) end
end

--- The folder beside a model in which a run that ended early is saved: `interrupted`, or the first with a number where
-- a save replaces nothing, or a model that has had no more steps.
-- @string folder of the model
-- @int steps of the run
function files.folder_beside(folder, steps)
  local place, number = folder .. "/interrupted", 1
  while true do
    local held = files.held(place)
    if not held or held.steps and held.steps <= steps then return place end
    number = number + 1
    place = ("%s/interrupted-%d"):format(folder, number)
  end
end

--- What config.json of a folder says, and whether it is the language model's part of it.
function files.read_config(folder)
  local config = native.json_read(files.place_of(folder, "config.json"))
  local own = nested.language_of(config)
  return own or config, own ~= nil
end

--- All tensors of a folder, read when they are asked for, and the file's metadata: one file, or the parts that an
-- index names.
function files.read_tensors(folder)
  local list = folder .. "/" .. files.index
  if native.path_kind(folder .. "/model.safetensors") == "file" or native.path_kind(list) ~= "file" then
    return native.safetensors_open(files.place_of(folder, "model.safetensors"))
  end
  access.check(list)
  return native.safetensors_open(list)
end

--- Refuse what is not a folder that may be read.
function files.require_folder(folder)
  if folder == "" then errors.usage("an empty path names no folder of a saved model") end
  access.check(folder)
  local kind = native.path_kind(folder)
  if kind ~= "folder" then
    errors.usage(kind == "none" and "there is no folder '%s'"
      or "'%s' is a file; the folder of a saved model is needed",
      folder)
  end
end

--- Refuse a folder whose weights are in files that are not read, and say what to do about them.
function files.refuse_pickles(folder)
  for _, name in ipairs { "model.safetensors", files.index } do
    if native.path_kind(folder .. "/" .. name) == "file" or is_staged(folder, name) then return end
  end
  for _, name in ipairs { "pytorch_model.bin", "pytorch_model.bin.index.json" } do
    if native.path_kind(folder .. "/" .. name) == "file" then
      errors.usage("%s has its weights in pytorch_model.bin, which can run code when it is read; convert it where "
        .. "transformers is installed: python3 -c \"from transformers import AutoModelForCausalLM as M; "
        .. "M.from_pretrained('%s').save_pretrained('%s')\"", folder, folder, folder)
    end
  end
end

--- The weights of a folder without adapters as they are stored, by the names in its files.
-- @treturn table tensors that are read when they are asked for
-- @treturn table the metadata of the file
-- @treturn string the text of config.json
function files.weights(folder)
  files.require_folder(folder)
  files.refuse_pickles(folder)
  local config = native.read_text(files.place_of(folder, "config.json"))
  local tensors, metadata = files.read_tensors(folder)
  return tensors, metadata, config
end

--- The texts that a folder has beside its weights and config.json, by name.
function files.beside_weights(folder)
  local contents = {}
  for _, name in ipairs { "vocabulary.json", "vocab.json", "merges.txt", "vocab.txt", unpack(tokenizer.files) } do
    local path = files.place_of(folder, name)
    if native.path_kind(path) == "file" then contents[name] = native.read_text(path) end
  end
  return contents
end

--- The precision of the weights in a folder, or of its adapters; nil where they cannot be read: what reads them says
-- why.
function files.precision(folder)
  local ok, tensors = pcall(adapter.is_in(folder) and adapter.open or files.read_tensors, folder)
  return ok and stored_as.of(nested.tensors(tensors)) or nil
end

--- The vocabulary saved in a folder, or made of its tokenizer.json, as JSON; nil when there is none.
function files.vocabulary(folder)
  local path = files.place_of(folder, "vocabulary.json")
  if native.path_kind(path) == "file" then return native.json_read(path) end
  return tokenizer.vocabulary(folder)
end

--- Keep a vocabulary beside the snapshots in a folder: that of their run, for those who export a model from them.
function files.keep_vocabulary(folder, vocabulary)
  native.save_files({ { path = folder .. "/vocabulary.json", json = vocabulary } }):wait()
end

--- Remove the vocabulary beside the snapshots in a folder: they are of another run.
function files.drop_vocabulary(folder) files.remove(folder .. "/vocabulary.json") end

--- The snapshot of a saved run that can go on, opened; nil where the folder has none.
function files.training(folder)
  local path = folder .. "/" .. parts[1]
  if native.path_kind(path) ~= "file" then return nil end
  access.check(path)
  return (native.snapshot_open(path))
end

--- End what a save that was cut off has begun: put its files in their places when all were whole, else remove them.
function files.finish_save(folder)
  local whole = not is_staged(folder, parts[1])
  for i = #parts, 1, -1 do
    if is_staged(folder, parts[i]) then
      local path = folder .. "/" .. parts[i]
      if whole then native.commit_staged(path) else native.drop_staged(path) end
    end
  end
end

--- Remove a file where there is one.
function files.remove(path)
  if native.path_kind(path) == "file" then native.remove_file(path) end
end

return files
