--- What is written of a model in a folder: weights in the layout of its family or of PEFT, their configuration and
-- vocabulary, and the state that a run goes on from.
local native = require "het.native"
local access = require "het.sandbox.access"
local adapter = require "het.model.adapter"
local stored_as = require "het.model.precision"
local files = require "het.model.folder"
local loader = require "het.model.load"
local define = require "het.language.define"
local errors = require "het.errors"
local families = require "het.families"
local tensors_of = require "het.families.tensors"
local tokenizer = require "het.model.tokenizer"

local writer = {}

--- What config.json says of a model, without the version of hetrun.
function writer.config(model)
  if define.kind_of(model) == "layer" and rawget(model, "lora") then
    return { model_type = "hetrun", adapters = true }
  end
  local family = families.of(model)
  if not family then return { model_type = "hetrun", architectures = { "hetrun" } } end
  return rawget(model, "found_config") or families.config(family, model.arguments)
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
function writer.other_vocabulary(model, vocabulary)
  if define.kind_of(model) ~= "layer" then return nil end
  local base = adapter.base_of(model)
  if not is_other(base, vocabulary) then return nil end
  local folder, own = rawget(base, "folder"), rawget(base, "saved_vocabulary")
  return ("the data's vocabulary (%s) is not that of the model in %s (%s), whose weights know other tokens; %s takes "
    .. "that"):format(vocabulary.kind, folder, own.kind, own.kind == "huggingface"
      and ('tokenizer = "huggingface", model = "%s"'):format(folder) or ('vocabulary = "%s"'):format(folder))
end

--- The precision that the weights of a model are saved in: as they are in the folder that it was loaded from, or begins
-- with; f32 of a model from scratch, and of new adapters.
-- @param model the description, or a function
-- @string[opt] from the folder that it begins with in place of that
function writer.precision_of_save(model, from)
  local is_new = define.kind_of(model) == "layer" and rawget(model, "lora") and not (from and adapter.is_in(from))
  if from and not is_new then return files.precision(from) or "f32" end
  return define.kind_of(model) == "layer" and rawget(model, "found_precision") or "f32"
end

-- What config.json of a folder said that a model, or the base of its adapters, was loaded from; nil where it was not,
-- or has another vocabulary now.
local function config_found(model, vocabulary)
  local base = model and adapter.base_of(model)
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
  for key, value in pairs(writer.config(model)) do config[key] = value end
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

-- A save that removes, when it is whole, the files of a tokenizer that an earlier one left and this one has not.
local function leaving_none(saving, folder, contents)
  return { done = function() return saving:done() end, wait = function()
    saving:wait()
    for _, name in ipairs(tokenizer.files) do
      if not contents[name] then files.remove(folder .. "/" .. name) end
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
function writer.begin_save(folder, model, state, weights, training, vocabulary, precision)
  for _, part in ipairs(files.parts) do access.check(folder .. "/" .. part, true) end
  native.make_folder(folder)
  files.finish_save(folder)
  vocabulary = vocabulary or model and rawget(model, "saved_vocabulary")
  local contents, used = weights_of(model, weights, { format = "pt", step = ("%d"):format(training.step) }, vocabulary,
    precision)
  training.tensors = training_of(model, state)
  contents[files.parts[1]] = { snapshot = training }
  contents["vocabulary.json"] = vocabulary and { json = vocabulary }
  local found = config_found(model, vocabulary)
  for name, content in pairs(tokenizer.contents(vocabulary, found)) do contents[name] = content end
  local set = {}
  for _, part in ipairs(files.parts) do
    if contents[part] then
      contents[part].path = folder .. "/" .. part
      set[#set + 1] = contents[part]
    end
  end
  return leaving_none(native.save_files(set), folder, contents), used
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
function writer.save_merged(folder, model, state, vocabulary, precision)
  for _, part in ipairs(files.parts) do access.check(folder .. "/" .. part, true) end
  local base, weights = model.lora.base, state
  if rawget(model, "base_folder") then   -- a run in bf16 has them in bf16
    local found = {}
    loader.set_initial_base(model.base_folder, base,
      { set_initial = function(_, name, tensor) found[name] = tensor end })
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

--- Write a model as `het.load` and transformers read it, from a state under our names.
-- @string folder made when it is not there
-- @tparam table about what loader.stored gave: `config`, `vocabulary`, `step`
-- @param state what has names() and read(name), which is asked for one tensor after the other
function writer.export(folder, about, state)
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

return writer
