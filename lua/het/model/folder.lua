--- Models in folders: `model.safetensors`, `config.json`, `vocabulary.json`, and `training.snapshot`, the snapshot of
-- the state that a run goes on from exactly. Models of a family (het.families) are stored in Hugging Face's layout;
-- others by our own names. Of a model with adapters (nn.lora) the adapters are stored, as PEFT stores them, and the
-- base model where no folder has it.
local native = require "het.native"
local access = require "het.sandbox.access"
local adapter = require "het.model.adapter"
local stored_as = require "het.model.precision"
local define = require "het.language.define"
local errors = require "het.errors"
local families = require "het.families"
local nested = require "het.families.nested"
local tensors_of = require "het.families.tensors"
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

local function is_staged(folder, part)
  return native.path_kind(native.staged_path(folder .. "/" .. part)) == "file"
end

-- Where a file of a folder is, when a save may have ended half-way.
local function place_of(folder, part)
  local path = folder .. "/" .. part
  if is_staged(folder, part) and not is_staged(folder, parts[1]) then path = native.staged_path(path) end
  access.check(path)
  return path
end

-- Of a configuration: dropout, which changes no weight, and the context, which the tensors' sizes show where it counts.
local passing = { n_positions = true, n_ctx = true, max_position_embeddings = true,
  attn_pdrop = true, embd_pdrop = true, resid_pdrop = true, hidden_dropout_prob = true }

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
  for _, part in ipairs(weights) do steps = steps or count_of(metadata_of(place_of(folder, part)).step) end
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

-- What config.json says, and whether it is the language model's part of it.
local function config_in(folder)
  local config = native.json_read(place_of(folder, "config.json"))
  local own = nested.language_of(config)
  return own or config, own ~= nil
end

-- A recipe's model has to be the one that was saved, whose configuration is `saved`: weights alone do not show the
-- number of heads or blocks.
local function require_same_model(family, model, folder, saved)
  local own = families.config(family, model.arguments)
  if saved.model_type ~= own.model_type then
    errors.usage("%s holds a model of type '%s', the recipe's is of type '%s'", folder, tostring(saved.model_type),
      own.model_type)
  end
  local theirs = families.config(family, families.make(family, saved, folder).arguments)
  local unlike = {}
  local function shown(value)
    if value == native.null then return "none" end
    return type(value) == "table" and native.json_encode(value) or tostring(value)
  end
  for _, name in ipairs(text.keys(own)) do
    if not passing[name] and shown(own[name]) ~= shown(theirs[name]) then
      unlike[#unlike + 1] = ("%s = %s (the recipe's %s)"):format(name, shown(theirs[name]), shown(own[name]))
    end
  end
  if #unlike > 0 then
    errors.usage("%s holds another model than the recipe's: %s", folder, table.concat(unlike, ", "))
  end
end

-- End what a save that was cut off has begun: put its files in their places when all were whole, else remove them.
local function finish_save(folder)
  local whole = not is_staged(folder, parts[1])
  for i = #parts, 1, -1 do
    if is_staged(folder, parts[i]) then
      local path = folder .. "/" .. parts[i]
      if whole then native.commit_staged(path) else native.drop_staged(path) end
    end
  end
end

-- All tensors of a folder: one file, or the parts that an index names.
local function read_tensors(folder)
  local list = folder .. "/" .. files.index
  if native.path_kind(folder .. "/model.safetensors") == "file" or native.path_kind(list) ~= "file" then
    return native.safetensors_open(place_of(folder, "model.safetensors"))
  end
  access.check(list)
  local map, tensors, seen = native.json_read(list).weight_map, {}, {}
  if type(map) ~= "table" then errors.usage("%s has no 'weight_map'", list) end
  for _, part in pairs(map) do
    if not seen[part] then
      seen[part] = true
      access.check(folder .. "/" .. part)
      for name, tensor in pairs((native.safetensors_open(folder .. "/" .. part))) do tensors[name] = tensor end
    end
  end
  return tensors, {}
end

local function require_folder(folder)
  if folder == "" then errors.usage("an empty path names no folder of a saved model") end
  access.check(folder)
  local kind = native.path_kind(folder)
  if kind ~= "folder" then
    errors.usage(kind == "none" and "there is no folder '%s'"
      or "'%s' is a file; the folder of a saved model is needed",
      folder)
  end
end

--- What config.json says of a model, without the version of hetrun.
function files.config(model)
  if define.kind_of(model) == "layer" and rawget(model, "lora") then
    return { model_type = "hetrun", adapters = true }
  end
  local family = families.of(model)
  if not family then return { model_type = "hetrun", architectures = { "hetrun" } } end
  return rawget(model, "found_config") or families.config(family, model.arguments)
end

-- A model without its adapters.
local function base_of(model)
  local lora = rawget(model, "lora")
  return lora and lora.base or model
end

-- Whether a model that was loaded is saved with another vocabulary than it came with.
local function is_other(model, vocabulary)
  local own = rawget(model, "saved_vocabulary")
  if type(vocabulary) ~= "table" or not vocabulary.kind or type(own) ~= "table" or own == vocabulary then
    return false
  end
  if own.kind ~= vocabulary.kind then return true end
  if own.kind == "huggingface" then return own.json ~= vocabulary.json end
  return native.json_encode(own) ~= native.json_encode(vocabulary)
end

--- That the data has other tokens than a loaded model was trained with, as a sentence; nil where it has not.
-- @param model
-- @tparam ?table vocabulary of the data
function files.other_vocabulary(model, vocabulary)
  if define.kind_of(model) ~= "layer" then return nil end
  local base = base_of(model)
  if not is_other(base, vocabulary) then return nil end
  local folder, own = rawget(base, "folder"), rawget(base, "saved_vocabulary")
  return ("the data's vocabulary (%s) is not that of the model in %s (%s), whose weights know other tokens; %s takes "
    .. "that"):format(vocabulary.kind, folder, own.kind, own.kind == "huggingface"
      and ('tokenizer = "huggingface", model = "%s"'):format(folder) or ('vocabulary = "%s"'):format(folder))
end

--- What a folder has that is left out of the model that was loaded from it, as a sentence; nil where it has no more.
function files.left_out(model)
  if define.kind_of(model) ~= "layer" then return nil end
  local base = base_of(model)
  local left_out, unused = rawget(base, "left_out"), rawget(base, "unused")
  return left_out and unused and left_out .. "\n" .. unused or left_out or unused
end

-- What config.json of a folder said that a model, or the base of its adapters, was loaded from; nil where it was not,
-- or has another vocabulary now.
local function config_found(model, vocabulary)
  local base = model and base_of(model)
  return base and not is_other(base, vocabulary) and rawget(base, "found_config") or nil
end

-- The text of config.json: what was loaded is saved with the configuration that it came with, another model with the
-- tokens of its vocabulary that begin and end a text.
local function config_text(model, vocabulary, precision)
  local found = model and rawget(model, "found_text")
  if found then
    if is_other(model, vocabulary) then found = families.text_with_ids(found, tokenizer.special_ids(vocabulary)) end
    return families.found_text(found, native.version(), stored_as.names[precision])
  end
  local config = {}
  for key, value in pairs(files.config(model)) do config[key] = value end
  config.hetrun_version = native.version()
  local ids = tokenizer.special_ids(vocabulary)
  for _, which in ipairs { "bos", "eos", "pad" } do
    local name = which .. "_token_id"
    if config[name] == native.null then config[name] = ids[which] or native.null end
  end
  config[config.dtype and "dtype" or "torch_dtype"] = stored_as.names[precision]
  return families.config_text(config)
end

-- The tensors of a model without adapters as they are saved in a precision, its config.json, and the precision that
-- they have. No model: one of a recipe's own layers.
local function model_of(model, state, vocabulary, precision)
  local family = model and families.of(model)
  local tensors = {}
  if family then
    tensors = tensors_of.written(family, model, state)
  else
    for _, entry in ipairs(state:names()) do
      if entry.trained then tensors[entry.name] = state:read(entry.name) end
    end
  end
  local converted, used = stored_as.converted(tensors, precision)
  return converted, config_text(model, vocabulary, used), used
end

-- The files of a model's weights and configuration, by name, and the precision that they have.
local function weights_of(model, state, metadata, vocabulary, precision)
  local lora, contents = model and rawget(model, "lora"), {}
  if lora then
    local adapters, used = stored_as.converted(adapter.tensors(model, state), precision)
    contents[adapter.tensors_file] = { tensors = adapters, metadata = metadata }
    contents[adapter.config_file] = { json = adapter.config(model) }
    if rawget(model, "base_folder") then return contents, used end
    local whole = state
    state = { names = function() return adapter.base_names(whole) end,
      read = function(_, name) return whole:read(name):to "f32" end }
    model = families.of(lora.base) and lora.base or nil
  end
  local tensors, config, used = model_of(model, state, vocabulary, precision)
  contents["model.safetensors"] = { tensors = tensors, metadata = metadata }
  contents["config.json"] = { text = config }
  return contents, used
end

-- The tensors that a run goes on with exactly: all but caches, and the parameters that stay in the folder of the base
-- model.
local function training_of(model, state)
  local elsewhere, tensors = {}, {}
  if model and rawget(model, "base_folder") then
    for _, entry in ipairs(adapter.base_names(state)) do elsewhere[entry.name] = true end
  end
  for _, entry in ipairs(state:names()) do
    if not entry.name:match "^cache%." and not elsewhere[entry.name] then
      tensors[#tensors + 1] = { name = entry.name, trained = entry.trained, tensor = state:read(entry.name) }
    end
  end
  return tensors
end

local function remove(path)
  if native.path_kind(path) == "file" then native.remove_file(path) end
end

-- A save that removes, when it is whole, the files of a tokenizer that an earlier one left and this one has not.
local function leaving_none(saving, folder, contents)
  return { done = function() return saving:done() end, wait = function()
    saving:wait()
    for _, name in ipairs(tokenizer.files) do
      if not contents[name] then remove(folder .. "/" .. name) end
    end
  end }
end

--- Begin to save a run, so that it can go on, and its model, so that `het.load` and transformers read it. The last save
-- stays until all files of the new one are whole and on the disk: whenever it is cut off, one of the two is there.
-- @string folder made when it is not there
-- @param model the description
-- @param state the state to go on with, or a copy of it
-- @param weights what has names() and read(name): the state as the model has it, with averages where it has those
-- @tparam table training what goes with the state: `run`, `step`, `cursor`, `seed`, `plan`, `about` (JSON)
-- @param[opt] vocabulary JSON (default: the one that the model was loaded with)
-- @string precision of the weights of the model: "f32", "bf16" or "f16"; the state to go on with is exact
-- @return what has done(), and wait(), which raises what kept it from being saved; and the precision that the model has
-- there
function files.begin_save(folder, model, state, weights, training, vocabulary, precision)
  for _, part in ipairs(parts) do access.check(folder .. "/" .. part, true) end
  native.make_folder(folder)
  finish_save(folder)
  vocabulary = vocabulary or model and rawget(model, "saved_vocabulary")
  local contents, used = weights_of(model, weights, { format = "pt", step = ("%d"):format(training.step) }, vocabulary,
    precision)
  training.tensors = training_of(model, state)
  contents[parts[1]] = { snapshot = training }
  contents["vocabulary.json"] = vocabulary and { json = vocabulary }
  local found = config_found(model, vocabulary)
  for name, content in pairs(tokenizer.contents(vocabulary, found)) do contents[name] = content end
  local set = {}
  for _, part in ipairs(parts) do
    if contents[part] then
      contents[part].path = folder .. "/" .. part
      set[#set + 1] = contents[part]
    end
  end
  return leaving_none(native.save_files(set), folder, contents), used
end

-- The weights of a saved model without adapters as initial values of those of `model`, whose adapters stay as they are.
local function set_initial_base(folder, model, state)
  local tensors, metadata = read_tensors(folder)
  local family = families.of(model)
  if family then
    if not rawget(model, "folder") then require_same_model(family, model, folder, (config_in(folder))) end
    tensors_of.read(family, model, nested.tensors(tensors), folder,
      function(name, tensor) state:set_initial(name, tensor) end)
    return metadata
  end
  local shapes = tensors_of.shapes_of(base_of(model))
  for _, name in ipairs(text.keys(tensors)) do
    if not shapes[name] then
      errors.usage("%s holds a tensor '%s', which the recipe's model has no place for", folder, name)
    end
  end
  for name, shape in pairs(shapes) do
    local tensor = tensors[name]
    if not tensor then errors.usage("%s holds no tensor '%s', which the recipe's model needs", folder, name) end
    if not tensors_of.same_shape(tensor.shape, shape) then
      errors.usage("%s: '%s' is %s, the recipe's model needs %s", folder, name, text.shape(tensor.shape),
        text.shape(shape))
    end
    state:set_initial(name, tensor)
  end
  return metadata
end

--- Refuse a snapshot of another model than a recipe's.
-- @string folder of the snapshot, for messages
-- @tparam table config what files.config gave when it was taken, or what a file says
-- @tparam table tensors of the snapshot: { name =, shape =, trained = }
function files.require_model_of_snapshot(folder, model, config, tensors)
  if define.kind_of(model) ~= "layer" or rawget(model, "lora") or type(config) ~= "table" or config.adapters then
    return
  end
  local family = families.of(model)
  if family and not rawget(model, "folder") and families.find(config.model_type) then
    require_same_model(family, model, folder, config)
  end
  local shapes = tensors_of.shapes_of(model)
  for _, tensor in ipairs(tensors) do
    local shape = shapes[tensor.name]
    if tensor.trained and tensor.name:sub(1, 1) ~= "(" and not shape then
      errors.usage("%s holds snapshots of another model than the recipe's, which has no '%s'", folder, tensor.name)
    elseif shape and not tensors_of.same_shape(tensor.shape, shape) then
      errors.usage("%s holds snapshots of another model than the recipe's: '%s' is %s there and %s here", folder,
        tensor.name, text.shape(tensor.shape), text.shape(shape))
    end
  end
end

--- Make the weights of a saved model the initial values of a state, which reads what its programs need.
-- @string folder
-- @param model the description they are for
-- @param state what has `set_initial(name, stored tensor)`
-- @treturn table the metadata of the file
function files.set_initial_weights(folder, model, state)
  require_folder(folder)
  local lora = define.kind_of(model) == "layer" and rawget(model, "lora")
  if adapter.is_in(folder) then
    if not lora then
      errors.usage("%s holds adapters of a model (nn.lora); the recipe's model has none", folder)
    end
    set_initial_base(rawget(model, "base_folder") or folder, model, state)
    return adapter.set_initial(folder, model, function(name, tensor) state:set_initial(name, tensor) end)
  end
  return set_initial_base(folder, model, state)
end

-- Write the files of a model from which no run goes on, `steps` of it where they are known.
local function write_model(folder, tensors, config, vocabulary, found, steps)
  native.make_folder(folder)
  local set = { { path = folder .. "/model.safetensors", tensors = tensors,
                  metadata = { format = "pt", step = steps and ("%d"):format(steps) } },
                { path = folder .. "/config.json", text = config } }
  if vocabulary then set[3] = { path = folder .. "/vocabulary.json", json = vocabulary } end
  for name, content in pairs(tokenizer.contents(vocabulary, found)) do
    content.path = folder .. "/" .. name
    set[#set + 1] = content
  end
  native.save_files(set):wait()
end

--- Write a model with its adapters merged, as a model of its base's family.
-- @string folder made when it is not there
-- @param model what nn.lora made
-- @param state what has names() and read(name), of the model with its adapters
-- @param[opt] vocabulary JSON (default: the one that the model was loaded with)
-- @string[opt] precision of the weights (default: that of the base model's folder)
-- @treturn string the precision that they have: f32 where they do not fit in f16
function files.save_merged(folder, model, state, vocabulary, precision)
  for _, part in ipairs(parts) do access.check(folder .. "/" .. part, true) end
  local base, weights = model.lora.base, state
  if rawget(model, "base_folder") then   -- a run in bf16 has them in bf16
    local found = {}
    set_initial_base(model.base_folder, base, { set_initial = function(_, name, tensor) found[name] = tensor end })
    weights = { names = function() return state:names() end, read = function(_, name)
      return found[name] and found[name]:read() or state:read(name)
    end }
  end
  local merged = adapter.merged(model, weights)
  vocabulary = vocabulary or rawget(model, "saved_vocabulary")
  precision = precision or rawget(base, "found_precision") or "f32"
  local tensors, config, used = model_of(families.of(base) and base or nil, merged, vocabulary, precision)
  write_model(folder, tensors, config, vocabulary, config_found(base, vocabulary))
  return used
end

--- The vocabulary saved in a folder, or made of its tokenizer.json, as JSON; nil when there is none.
function files.vocabulary(folder)
  local path = place_of(folder, "vocabulary.json")
  if native.path_kind(path) == "file" then return native.json_read(path) end
  return tokenizer.vocabulary(folder)
end

--- Keep a vocabulary beside the snapshots in a folder: that of their run, for those who export a model from them.
function files.keep_vocabulary(folder, vocabulary)
  native.save_files({ { path = folder .. "/vocabulary.json", json = vocabulary } }):wait()
end

--- Remove the vocabulary beside the snapshots in a folder: they are of another run.
function files.drop_vocabulary(folder) remove(folder .. "/vocabulary.json") end

--- The snapshot of a saved run that can go on, opened; nil where the folder has none.
function files.training(folder)
  local path = folder .. "/" .. parts[1]
  if native.path_kind(path) ~= "file" then return nil end
  access.check(path)
  return (native.snapshot_open(path))
end

--- What a folder holds of a run, under our names: for a snapshot.
-- @treturn table list of { name =, tensor = a tensor or a stored one, trained = }
-- @treturn table what is kept beside the tensors: `config`, `vocabulary`, `step` where it is known, and of a run that
-- can go on its numbers
function files.stored(folder)
  require_folder(folder)
  local config = config_in(folder)
  local list, by_name = {}, {}
  local function put(name, tensor, trained)
    if not by_name[name] then
      by_name[name] = { name = name }
      list[#list + 1] = by_name[name]
    end
    by_name[name].tensor, by_name[name].trained = tensor, trained
  end
  local collector = { set_initial = function(_, name, tensor) put(name, tensor, true) end }
  local metadata
  if type(config) == "table" and config.model_type == "hetrun" then
    local tensors
    tensors, metadata = read_tensors(folder)
    for name, tensor in pairs(tensors) do put(name, tensor, true) end
  else
    metadata = files.set_initial_weights(folder, files.load(folder), collector)
  end
  local training, about = files.training(folder), {}
  if training then   -- it has the trained parameters, the model perhaps averaged ones
    for _, tensor in ipairs(training:tensors()) do put(tensor.name, training:read(tensor.name), tensor.trained) end
    local summary = training:summary()
    about = native.json_decode(summary.about)
    about.step, about.cursor, about.seed = summary.step, summary.cursor, summary.seed
  end
  about.config, about.vocabulary = config, files.vocabulary(folder)
  about.step = about.step or tonumber((metadata or {}).step)
  return list, about
end

--- Write a model as `het.load` and transformers read it, from a state under our names.
-- @string folder made when it is not there
-- @tparam table about what files.stored gave: `config`, `vocabulary`, `step`
-- @param state what has names() and read(name), which is asked for one tensor after the other
function files.export(folder, about, state)
  if type(about.config) ~= "table" then errors.usage("the snapshot does not say which model it is of") end
  if about.config.adapters then
    errors.usage "the snapshot is of a model with adapters (nn.lora): its run goes on from it (--resume) and saves them"
  end
  local family = families.find(about.config.model_type)
  local model = family and families.make(family, about.config, folder)
  if model then rawset(model, "found_config", about.config) end
  local tensors, config = model_of(model, state, about.vocabulary, "f32")
  write_model(folder, tensors, config, about.vocabulary, about.config, about.step)
end

-- Files of weights that are not read, and what to do about them.
local function refuse_pickles(folder)
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
  require_folder(folder)
  refuse_pickles(folder)
  local config = native.read_text(place_of(folder, "config.json"))
  local tensors, metadata = read_tensors(folder)
  return tensors, metadata, config
end

--- The texts that a folder has beside its weights and config.json, by name.
function files.beside_weights(folder)
  local contents = {}
  for _, name in ipairs { "vocabulary.json", "vocab.json", "merges.txt", "vocab.txt", unpack(tokenizer.files) } do
    local path = place_of(folder, name)
    if native.path_kind(path) == "file" then contents[name] = native.read_text(path) end
  end
  return contents
end

--- The precision of the weights in a folder, or of its adapters; nil where they cannot be read: what reads them says
-- why.
function files.precision(folder)
  local ok, tensors = pcall(adapter.is_in(folder) and adapter.open or read_tensors, folder)
  return ok and stored_as.of(nested.tensors(tensors)) or nil
end

--- The precision that the weights of a model are saved in: as they are in the folder that it was loaded from, or begins
-- with; f32 of a model from scratch, and of new adapters.
-- @param model the description, or a function
-- @string[opt] from the folder that it begins with in place of that
function files.precision_of_save(model, from)
  local is_new = define.kind_of(model) == "layer" and rawget(model, "lora") and not (from and adapter.is_in(from))
  if from and not is_new then return files.precision(from) or "f32" end
  return define.kind_of(model) == "layer" and rawget(model, "found_precision") or "f32"
end

-- What a folder has that a model has no place for, as a sentence; nil where there is nothing. Where it does not fit,
-- what reads it later says why.
local function unused_of(family, model, tensors, folder)
  local ok, left = pcall(tensors_of.read, family, model, tensors, folder, function() end)
  if not ok or #left == 0 then return nil end
  return ("%s holds %s that its config.json has no place for, such as '%s': left out, also of what is saved"):format(
    folder, text.plural(#left, "tensor"), left[1])
end

-- The model of a recipe, with the weights of a folder that holds one like it.
local function load_own(folder, model)
  files.set_initial_weights(folder, model, { set_initial = function() end })   -- whether they fit
  local copy = model:copied(function() end)
  rawset(copy, "folder", folder)
  rawset(copy, "found_precision", files.precision(folder))
  rawset(copy, "saved_vocabulary", files.vocabulary(folder))
  return copy
end

-- The model of a folder without adapters.
local function load_model(folder, options)
  require_folder(folder)
  local config, is_part = config_in(folder)
  local kind = type(config) == "table" and config.model_type
  if kind == "hetrun" then
    if options.model then return load_own(folder, options.model) end
    errors.usage("%s holds a model that only a recipe describes; het.load(%q, { model = ... }) reads it into the "
      .. "recipe's description, from = %q of het.train goes on from it, and hetrun generate or eval %s --recipe=FILE "
      .. "use that recipe", folder, folder, folder, folder)
  elseif options.model then
    errors.usage("%s says itself which model it holds: het.load(%q) is enough", folder, folder)
  end
  local family = families.find(kind)
  if not family then
    errors.usage("%s/config.json: models of type '%s' are not supported; there are %s", folder, tostring(kind),
      table.concat(families.names(), ", "))
  end
  refuse_pickles(folder)
  local model = families.make(family, config, folder, { context = options.context,
    most_context = options.most_context })
  if not define.is_unknown(model) then
    rawset(model, "folder", folder)
    local readable, tensors = pcall(read_tensors, folder)   -- else what reads them later says why
    tensors = readable and nested.tensors(tensors)
    rawset(model, "found_precision", tensors and stored_as.of(tensors) or nil)
    rawset(model, "unused", tensors and unused_of(family, model, tensors, folder) or nil)
    rawset(model, "found_config", config)
    rawset(model, "found_text", is_part and families.config_text(config)
      or native.read_text(place_of(folder, "config.json")))
    rawset(model, "left_out", is_part and ("%s holds more than a language model, such as a vision tower, which is "
      .. "left out; a saved model is a %s"):format(folder, kind) or nil)
    local vocabulary = files.vocabulary(folder)
    rawset(model, "saved_vocabulary", vocabulary)
    rawset(model, "ends", tokenizer.ends(vocabulary, config, folder))
  end
  return model
end

-- The model with the adapters of a folder, and its base model's folder.
local function load_adapter(folder, options)
  local config = adapter.read_config(folder)
  local base = options.base or config.base or folder
  access.check(base)
  if base ~= folder and native.path_kind(base) ~= "folder" then
    errors.usage("the adapters in %s are of the model %s, which is no folder here; het.load(%q, { base = \"folder\" }) "
      .. "says where it is, and --base=folder of a command", folder, base, folder)
  end
  local stored = adapter.open(folder)
  local targets, whole = adapter.targets(folder, stored), load_model(base, options)
  local places = define.is_unknown(whole) and {}
    or require("het.nn.lora").lora_places(whole, targets, config.parameters)
  local model = require("het.nn").lora { model = whole, rank = config.rank, alpha = config.alpha,
    ranks = adapter.own(folder, config.ranks, "rank_pattern", config.rank, places, whole),
    alphas = adapter.own(folder, config.alphas, "alpha_pattern", config.alpha, places, whole),
    dropout = config.dropout, targets = targets, parameters = config.parameters }
  if define.is_unknown(model) then return model end
  rawset(model, "folder", folder)
  rawset(model, "found_precision", stored_as.of(stored))
  rawset(model, "base_folder", base ~= folder and base or nil)
  local vocabulary = files.vocabulary(folder)
  if vocabulary then rawset(model, "saved_vocabulary", vocabulary) end
  return model
end

--- A copy of a model that computes with the weights of a state, on tensors.
-- @param state what has names() and read(name)
-- @tparam function leaves_out leaves_out(name): whether a parameter is none of the model's
function files.with_weights(model, state, leaves_out)
  local store = {}
  for _, entry in ipairs(state:names()) do
    if entry.trained and not leaves_out(entry.name) then
      store[entry.name] = state:read(entry.name):to("f32"):clone()
    end
  end
  local copy = model:copied(function(layer) rawset(layer, "folder", nil) end)
  rawset(copy, "store", store)
  rawset(copy, "of_run", true)
  return copy
end

--- The description of a saved model; a run that gets it begins with its weights.
files.load = define.document({
  name = "load",
  sentence = "A saved model, or a folder of Hugging Face of one of the families "
    .. table.concat(families.names(), ", ")
    .. ", or the language model of gemma3: a description that remembers where its weights are. het.train goes on "
    .. "from them; model:generate{...} writes with them. With `context` it sees fewer tokens at once than its "
    .. "config.json says; with `most_context` that many, or all where it says fewer or has a table of positions; "
    .. "what is saved keeps that configuration. Of a folder with adapters, as nn.lora and PEFT save them, it is the "
    .. "base model with them; `base` says where that is. Of a model that only a recipe describes, such as one of "
    .. "nn.sequential or nn.layer, `model` is that description.",
  signature = "het.load(folder [, { context =, most_context =, base =, model = }])",
  example = 'local model = het.load "runs/shakespeare"',
}, function(folder, options)
  define.expect("het.load", folder, "string")
  for name in pairs(options == nil and {} or define.expect("het.load: options", options, "table")) do
    if name ~= "context" and name ~= "most_context" and name ~= "base" and name ~= "model" then
      errors.usage("het.load has no option '%s'; there are context, most_context, base and model", tostring(name))
    end
  end
  for _, name in ipairs { "context", "most_context" } do
    local context = options and options[name]
    if context ~= nil and define.expect("het.load: " .. name, context, "integer") < 1 then
      errors.usage("het.load: %s = %.14g; 1 is the least", name, context)
    end
  end
  if options and options.base ~= nil then define.expect("het.load: base", options.base, "string") end
  if options and options.model ~= nil then define.expect("het.load: model", options.model, "layer") end
  require_folder(folder)
  if adapter.is_in(folder) then return load_adapter(folder, options or {}) end
  if options and options.base then errors.usage("%s holds no adapters, so that `base` has no use", folder) end
  return load_model(folder, options or {})
end)

return files
