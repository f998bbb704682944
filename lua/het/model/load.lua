--- Models made of what folders hold: the description of a saved model, its weights as initial values of a run, and
-- the check that a folder holds the recipe's model.
local native = require "het.native"
local access = require "het.sandbox.access"
local adapter = require "het.model.adapter"
local stored_as = require "het.model.precision"
local files = require "het.model.folder"
local define = require "het.language.define"
local errors = require "het.errors"
local families = require "het.families"
local nested = require "het.families.nested"
local tensors_of = require "het.families.tensors"
local tokenizer = require "het.model.tokenizer"
local text = require "het.text"

local loader = {}

-- Of a configuration: dropout and padding, which change no weight, and the context, which the tensors' sizes show where
-- it counts.
local passing = { hetrun_padding = true, n_positions = true, n_ctx = true, max_position_embeddings = true,
  attn_pdrop = true, embd_pdrop = true, resid_pdrop = true, hidden_dropout_prob = true }

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

--- What a folder has that is left out of the model that was loaded from it, as a sentence; nil where it has no more.
function loader.left_out(model)
  if define.kind_of(model) ~= "layer" then return nil end
  local base = adapter.base_of(model)
  local left_out, unused = rawget(base, "left_out"), rawget(base, "unused")
  return left_out and unused and left_out .. "\n" .. unused or left_out or unused
end

--- The weights of a saved model without adapters as initial values of those of `model`; its adapters stay as they are.
function loader.set_initial_base(folder, model, state)
  local tensors, metadata = files.read_tensors(folder)
  local family = families.of(model)
  if family then
    if not rawget(model, "folder") then require_same_model(family, model, folder, (files.read_config(folder))) end
    tensors_of.read(family, model, nested.tensors(tensors), folder,
      function(name, tensor) state:set_initial(name, tensor) end)
    return metadata
  end
  local shapes = tensors_of.shapes_of(adapter.base_of(model))
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
-- @tparam table config what writer.config gave when it was taken, or what a file says
-- @tparam table tensors of the snapshot: { name =, shape =, trained = }
function loader.require_model_of_snapshot(folder, model, config, tensors)
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
function loader.set_initial_weights(folder, model, state)
  files.require_folder(folder)
  local lora = define.kind_of(model) == "layer" and rawget(model, "lora")
  if adapter.is_in(folder) then
    if not lora then
      errors.usage("%s holds adapters of a model (nn.lora); the recipe's model has none", folder)
    end
    loader.set_initial_base(rawget(model, "base_folder") or folder, model, state)
    return adapter.set_initial(folder, model, function(name, tensor) state:set_initial(name, tensor) end)
  end
  return loader.set_initial_base(folder, model, state)
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
  loader.set_initial_weights(folder, model, { set_initial = function() end })   -- whether they fit
  local copy = model:copied(function() end)
  rawset(copy, "folder", folder)
  rawset(copy, "found_precision", files.precision(folder))
  rawset(copy, "saved_vocabulary", files.vocabulary(folder))
  return copy
end

-- The model of a folder without adapters.
local function load_model(folder, options)
  files.require_folder(folder)
  local config, is_part = files.read_config(folder)
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
  files.refuse_pickles(folder)
  if options.padding then
    if family.constructor ~= "bert" then
      errors.usage("%s holds a model of type '%s'; `padding` is for BERT: in a causal model no token attends to what "
        .. "is behind it", folder, kind)
    end
    config.hetrun_padding = options.padding
  end
  local model = families.make(family, config, folder, { context = options.context,
    most_context = options.most_context })
  if not define.is_unknown(model) then
    rawset(model, "folder", folder)
    local readable, tensors = pcall(files.read_tensors, folder)   -- else what reads them later says why
    tensors = readable and nested.tensors(tensors)
    rawset(model, "found_precision", tensors and stored_as.of(tensors) or nil)
    rawset(model, "unused", tensors and unused_of(family, model, tensors, folder) or nil)
    rawset(model, "found_config", config)
    rawset(model, "found_text", (is_part or options.padding) and families.config_text(config)
      or native.read_text(files.place_of(folder, "config.json")))
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
function loader.with_weights(model, state, leaves_out)
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

local options_of_load = { "context", "most_context", "padding", "base", "model" }

--- The description of a saved model; a run that gets it begins with its weights.
loader.load = define.document({
  name = "load",
  sentence = "A saved model, or a folder of Hugging Face of one of the families "
    .. table.concat(families.names(), ", ")
    .. ", or the language model of gemma3: a description that remembers where its weights are. het.train goes on "
    .. "from them; model:generate{...} writes with them. With `context` it sees fewer tokens at once than its "
    .. "config.json says; with `most_context` that many, or all where it says fewer or has a table of positions; "
    .. "what is saved keeps that configuration. `padding` is as of nn.bert. Of a folder with adapters, as nn.lora and "
    .. "PEFT save them, it is the base model with them; `base` says where that is. Of a model that only a recipe "
    .. "describes, such as one of nn.sequential or nn.layer, `model` is that description.",
  signature = "het.load(folder [, { context =, most_context =, padding =, base =, model = }])",
  example = 'local model = het.load "runs/shakespeare"',
}, function(folder, options)
  define.expect("het.load", folder, "string")
  for name in pairs(options == nil and {} or define.expect("het.load: options", options, "table")) do
    if not text.contains(options_of_load, name) then
      errors.usage("het.load has no option '%s'; there are %s", tostring(name), table.concat(options_of_load, ", "))
    end
  end
  for _, name in ipairs { "context", "most_context" } do
    local context = options and options[name]
    if context ~= nil and define.expect("het.load: " .. name, context, "integer") < 1 then
      errors.usage("het.load: %s = %.14g; 1 is the least", name, context)
    end
  end
  if options and options.padding ~= nil and define.expect("het.load: padding", options.padding, "integer") < 0 then
    errors.usage("het.load: padding = %.14g is no token; 0 is the least", options.padding)
  end
  if options and options.base ~= nil then define.expect("het.load: base", options.base, "string") end
  if options and options.model ~= nil then define.expect("het.load: model", options.model, "model") end
  files.require_folder(folder)
  if adapter.is_in(folder) then return load_adapter(folder, options or {}) end
  if options and options.base then errors.usage("%s holds no adapters, so that `base` has no use", folder) end
  return load_model(folder, options or {})
end)

--- What a folder holds of a run, under our names: for a snapshot.
-- @treturn table list of { name =, tensor = a tensor or a stored one, trained = }
-- @treturn table what is kept beside the tensors: `config`, `vocabulary`, `step` where it is known, and of a run that
-- can go on its numbers
function loader.stored(folder)
  files.require_folder(folder)
  local config = files.read_config(folder)
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
    tensors, metadata = files.read_tensors(folder)
    for name, tensor in pairs(tensors) do put(name, tensor, true) end
  else
    metadata = loader.set_initial_weights(folder, loader.load(folder), collector)
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

return loader
