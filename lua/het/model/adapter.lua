--- Adapters (nn.lora) in folders as PEFT stores them: `adapter_config.json` and `adapter_model.safetensors`, with the
-- names of the base model's layers; and a base model with its adapters merged.
local native = require "het.native"
local access = require "het.sandbox.access"
local errors = require "het.errors"
local families = require "het.families"
local layer_adapter = require "het.nn.adapter"
local nested = require "het.families.nested"
local op = require "het.op"
local tensors_of = require "het.families.tensors"
local text = require "het.text"

local adapter = {}

--- The files of an adapter.
adapter.config_file, adapter.tensors_file = "adapter_config.json", "adapter_model.safetensors"

--- A model without its adapters.
function adapter.base_of(model)
  local lora = rawget(model, "lora")
  return lora and lora.base or model
end

local name_in_file = layer_adapter.name_in_file
local prefix = "base_model.model."

-- The name in the file of a place's layer; of those of experts, of one of them.
-- @int[opt] expert its number, from 0
local function layer_name(place, expert)
  local theirs = place.names[1]
  if not expert then return theirs end
  if not theirs:find("experts.*.", 1, true) then return ("%s.%d"):format(theirs, expert) end
  return (theirs:gsub("experts%.%*%.", "experts." .. expert .. "."))
end

-- The names in the file of a place's A and B; of those of experts, of one of them.
-- @int[opt] expert its number, from 0
local function names_of(place, expert)
  local theirs = prefix .. layer_name(place, expert)
  return theirs .. ".lora_A.weight", theirs .. ".lora_B.weight"
end

-- The names in the file of A and B of a fused parameter of experts. PEFT wraps their layer once for each parameter, the
-- first one, gate_up_proj, innermost.
local function names_of_fused(place, lora)
  local is_inside = false
  for _, other in ipairs(lora.places) do
    is_inside = is_inside
      or place.part ~= "down" and other.part == "down" and other.in_fused and other.path == place.path
  end
  local theirs = prefix .. place.fused:match "^(.*)%.[^.]+$" .. (is_inside and ".base_layer" or "")
  return theirs .. ".lora_A.weight", theirs .. ".lora_B.weight"
end

-- Whole names in the file of a place's layer, one for each expert, or of its parameter.
local function whole_names(place)
  if place.in_fused or not place.experts then return { name_in_file(place) } end
  local list = {}
  for expert = 0, place.experts - 1 do list[expert + 1] = layer_name(place, expert) end
  return list
end

-- Places by the name of the layer in the file, or of the parameter; several are parts of one there.
local function by_layer(places)
  local groups, list = {}, {}
  for _, place in ipairs(places) do
    local name = name_in_file(place)
    if not groups[name] then
      groups[name] = {}
      list[#list + 1] = groups[name]
    end
    table.insert(groups[name], place)
  end
  return list
end

-- Is its base model a part of what its folder holds? PEFT loads all of that, where names begin otherwise.
local function is_part(model)
  return rawget(model, "base_folder") ~= nil and rawget(model.lora.base, "left_out") ~= nil
end

--- The tensors of a model's adapters under PEFT's names.
-- @param model what nn.lora made
-- @param state what has read(name)
function adapter.tensors(model, state)
  local result = {}
  local function push_of_experts(place)
    local function one(tensor, expert)
      local part = op.slice(tensor, { dim = 0, start = expert, length = 1 })
      return op.reshape(part, { shape = { tensor.shape[2], tensor.shape[3] } })
    end
    local a, b = layer_adapter.parameters_of(place)
    a, b = state:read(a), state:read(b)
    for expert = 0, place.experts - 1 do
      local theirs_a, theirs_b = names_of(place, expert)
      result[theirs_a], result[theirs_b] = one(a, expert), one(b, expert)
    end
  end
  local function push(group)
    local theirs_a, theirs_b = names_of(group[1])
    local rows = {}
    for i, place in ipairs(group) do
      local a, b = layer_adapter.parameters_of(place)
      result[theirs_a] = result[theirs_a] or state:read(a)
      rows[i] = state:read(b)
    end
    rows[#rows + 1] = { dim = 0 }
    local whole = #group > 1 and op.concat(unpack(rows)) or rows[1]
    result[theirs_b] = group[1].by_heads and tensors_of.to_heads(model.arguments, whole) or whole
  end
  -- A of all experts, one below the other; a row of B has the columns of all experts, rank by rank.
  local function push_fused(group)
    local theirs_a, theirs_b = names_of_fused(group[1], model.lora)
    local a = state:read((layer_adapter.parameters_of(group[1])))
    local rows = {}
    for i, place in ipairs(group) do rows[i] = state:read((select(2, layer_adapter.parameters_of(place)))) end
    rows[#rows + 1] = { dim = 1 }
    local b = #group > 1 and op.concat(unpack(rows)) or rows[1]   -- [experts, outputs, rank]
    local experts, outputs, rank = unpack(b.shape)
    result[theirs_a] = op.reshape(a, { shape = { experts * rank, a.shape[3] } })
    result[theirs_b] = op.reshape(op.transpose(b, { order = { 1, 2, 0 } }), { shape = { outputs, rank * experts } })
  end
  for _, group in ipairs(by_layer(model.lora.places)) do
    if group[1].in_fused then push_fused(group)
    elseif group[1].experts then push_of_experts(group[1])
    else push(group) end
  end
  return is_part(model) and nested.whole_adapters(result) or result
end

-- What the layers have whose rank or alpha differs from the default, by whole names: after "^" a name is not the end of
-- another. nil where there are none.
local function pattern_of(model, what)
  local lora, is_nested, pattern = model.lora, is_part(model), nil
  for _, group in ipairs(by_layer(lora.places)) do
    local place = group[1]
    if place[what] ~= lora[what] then
      pattern = pattern or {}
      for _, name in ipairs(whole_names(place)) do
        if is_nested then name = nested.whole_layer(name) end
        pattern["^" .. name:gsub("%.", "\\.")] = place[what]
      end
    end
  end
  return pattern
end

--- What adapter_config.json says of a model's adapters.
function adapter.config(model)
  local lora, family = model.lora, families.of(model)
  local targets = #lora.targets > 0 and lora.targets or native.null
  return {
    peft_type = "LORA", task_type = family and family.name ~= "bert" and "CAUSAL_LM" or native.null,
    base_model_name_or_path = rawget(model, "base_folder") or native.null, r = lora.rank, lora_alpha = lora.alpha,
    rank_pattern = pattern_of(model, "rank"), alpha_pattern = pattern_of(model, "alpha"),
    lora_dropout = lora.dropout,
    target_modules = is_part(model) and targets ~= native.null and nested.whole_targets(targets) or targets,
    target_parameters = lora.parameters or native.null, bias = "none", inference_mode = true,
    fan_in_fan_out = family ~= nil and family.name == "gpt2", init_lora_weights = true, use_rslora = false,
    use_dora = false, modules_to_save = native.null,
  }
end

--- Whether a folder holds an adapter.
function adapter.is_in(folder) return native.path_kind(folder .. "/" .. adapter.config_file) == "file" end

local function is_given(value)
  if value == nil or value == false or value == native.null then return false end
  return type(value) ~= "table" or next(value) ~= nil
end

-- What PEFT's configuration may not ask for.
local refused = { "modules_to_save", "layers_to_transform", "layer_replication", "use_dora", "lora_bias",
  "trainable_token_indices", "megatron_config", "alora_invocation_tokens" }

-- The names of `target_parameters`; nil where there are none.
local function parameters_of(config, refuse)
  local list = config.target_parameters
  if not is_given(list) then return nil end
  for _, name in ipairs(type(list) == "table" and list or { list }) do
    if type(list) ~= "table" or type(name) ~= "string" or not name:find "experts%.[^.]+$" then
      refuse("target_parameters: %s is not supported; mlp.experts.gate_up_proj and mlp.experts.down_proj are",
        text.value(name))
    end
  end
  return list
end

local function is_rank(value) return type(value) == "number" and value >= 1 and value % 1 == 0 and value <= 2 ^ 53 end
local function is_alpha(value) return type(value) == "number" and value > 0 and value < math.huge end

-- rank_pattern or alpha_pattern as a list of { key, value, patterns }. Its keys are regular expressions of the ends of
-- names, or, after "^", of whole ones; plain names are taken, with "." (any character, as there) and "\.", also after
-- ".*\.", as PEFT writes them for adapters that it has converted. nil where there is none.
local function pattern_in(config, field, refuse)
  if not is_given(config[field]) then return nil end
  if type(config[field]) ~= "table" then refuse("%s = %s is no table", field, text.value(config[field])) end
  local list = {}
  for _, key in ipairs(text.keys(config[field])) do
    local value, anchor, name = config[field][key], tostring(key):match "^(%^?)(.*)$"
    local within
    name, within = name:gsub("^%.%*\\%.", "")
    if name:gsub("\\%.", "."):find "[^%w_.]" then
      refuse("%s: %s is not supported; plain names are", field, text.value(key))
    end
    if field == "rank_pattern" and not is_rank(value) then
      refuse("%s: %s = %s is no rank", field, key, text.value(value))
    elseif field == "alpha_pattern" and not is_alpha(value) then
      refuse("%s: %s = %s is not above 0", field, key, text.value(value))
    end
    local pattern = name:gsub("\\%.", "%%.") .. "$"
    local patterns = { (within > 0 and "^.*%." or "^") .. pattern }
    if within == 0 and anchor == "" then patterns[2] = "^.*%." .. pattern end
    list[#list + 1] = { key = key, value = value, patterns = patterns }
  end
  return list
end

-- Does a key of a pattern match one of a layer's names?
local function matches(key, names)
  for _, pattern in ipairs(key.patterns) do
    for _, name in ipairs(names) do
      if name:find(pattern) then return true end
    end
  end
end

-- What the keys of a pattern give a layer; nil where none does. PEFT takes the first key that matches, but their order
-- in the file is not kept. `names`: those that the layer may have.
local function value_of(keys, names, field, refuse)
  local value, by
  for _, each in ipairs(keys) do
    if matches(each, names) then
      if by and value ~= each.value then
        refuse("%s: %s and %s give %s different values; write a key for each layer, of its whole name", field,
          text.value(by), text.value(each.key), names[1])
      end
      value, by = each.value, each.key
    end
  end
  return value
end

--- What nn.lora takes as `ranks` or `alphas` for a pattern of adapter_config.json: layers by whole names in the file.
-- nil where all have the default.
-- @string folder
-- @tparam table|nil keys what read_config gave: ranks or alphas
-- @string field "rank_pattern" or "alpha_pattern"
-- @number default of layers that no key names
-- @tparam table places those of the layers that have adapters
-- @param base the model without them
function adapter.own(folder, keys, field, default, places, base)
  local own
  local function refuse(...)
    errors.usage("%s/%s: %s", folder, adapter.config_file, (...):format(select(2, ...)))
  end
  for _, group in ipairs(keys and by_layer(places) or {}) do
    local value
    for i, name in ipairs(whole_names(group[1])) do
      local names = rawget(base, "left_out") and nested.layer_names(name) or { name }
      local found = value_of(keys, names, field, refuse) or default
      if i > 1 and found ~= value then
        refuse("%s: the experts of %s have different values; all experts of a layer have one here", field,
          name_in_file(group[1]))
      end
      value = found
    end
    if value ~= default then
      own = own or {}
      own["^" .. name_in_file(group[1])] = value
    end
  end
  return own
end

--- The configuration of an adapter, checked: { base (nil: in the folder itself), rank, alpha, ranks, alphas (for
-- adapter.own), dropout, parameters }.
function adapter.read_config(folder)
  local path = folder .. "/" .. adapter.config_file
  access.check(path)
  local config = native.json_read(path)
  local function refuse(...) errors.usage("%s: %s", path, (...):format(select(2, ...))) end
  if type(config) ~= "table" or config.peft_type ~= "LORA" then
    refuse("adapters of type %s are not supported; LORA is", text.value(type(config) == "table" and config.peft_type))
  end
  for _, name in ipairs(refused) do
    if is_given(config[name]) then refuse("%s is not supported", name) end
  end
  if config.bias ~= nil and config.bias ~= "none" then refuse("bias = %s is not supported", text.value(config.bias)) end
  if type(config.init_lora_weights) == "string" and config.init_lora_weights ~= "gaussian" then
    refuse("init_lora_weights = %s, which may change the base model, is not supported",
      text.value(config.init_lora_weights))
  end
  local rank, alpha = config.r, config.lora_alpha
  if not is_rank(rank) then refuse("r = %s is no rank", text.value(rank)) end
  if not is_alpha(alpha) then refuse("lora_alpha = %s is not above 0", text.value(alpha)) end
  local ranks, alphas = pattern_in(config, "rank_pattern", refuse), pattern_in(config, "alpha_pattern", refuse)
  if config.use_rslora == true then
    if ranks or alphas then refuse "use_rslora with rank_pattern or alpha_pattern is not supported" end
    alpha = alpha * math.sqrt(rank)
  end
  local dropout = type(config.lora_dropout) == "number" and config.lora_dropout or 0
  local base = config.base_model_name_or_path
  return { rank = rank, alpha = alpha, ranks = ranks, alphas = alphas, dropout = dropout,
    base = type(base) == "string" and base or nil, parameters = parameters_of(config, refuse) }
end

--- The tensors of an adapter by name, and the metadata of their file.
function adapter.open(folder)
  local path = folder .. "/" .. adapter.tensors_file
  if native.path_kind(path) ~= "file" then
    errors.usage("%s has an %s, but no %s", folder, adapter.config_file, adapter.tensors_file)
  end
  access.check(path)
  local stored, metadata = native.safetensors_open(path)
  return nested.adapters(stored), metadata
end

-- Does a file hold it beside the adapters of a classifier? PEFT writes the classifier's weights and the table of tokens
-- there, which it does not train.
local function is_base(name)
  return name:find "%.base_layer%.weight$" ~= nil or name:find "%.embed_tokens%.weight$" ~= nil
    or name:find "%.wte%.weight$" ~= nil or name:find "%.embed_in%.weight$" ~= nil
end

-- Is it the layer of all experts, whose parameters have adapters?
local function is_fused(layer) return layer:find "%.experts$" ~= nil or layer:find "%.experts%.base_layer$" ~= nil end

--- The names of the layers that have adapters in a file: whole ones, as nn.lora's targets; nil where parameters alone
-- have any.
function adapter.targets(folder, stored)
  local list = {}
  for _, name in ipairs(text.keys(stored)) do
    if is_base(name) then goto continue end
    local layer, which = name:match("^" .. prefix:gsub("%.", "%%.") .. "(.+)%.lora_([AB])%.weight$")
    if not layer then
      errors.usage("%s/%s holds '%s', which is no A or B of a linear layer", folder, adapter.tensors_file, name)
    end
    if which == "A" and not is_fused(layer) then list[#list + 1] = layer end
    ::continue::
  end
  return #list > 0 and list or nil
end

--- The adapters of a folder as initial values of a model's.
-- @string folder
-- @param model what nn.lora made
-- @tparam function set_initial called with the name and the stored tensor of each parameter
-- @treturn table the metadata of the file
function adapter.set_initial(folder, model, set_initial)
  local stored, metadata = adapter.open(folder)
  local lora, used = model.lora, 0
  local function take(name, shape)
    local tensor = stored[name]
    if not tensor then errors.usage("%s/%s has no '%s', which the model needs", folder, adapter.tensors_file, name) end
    if not tensors_of.same_shape(tensor.shape, shape) then
      errors.usage("%s/%s: '%s' is %s, the model needs %s", folder, adapter.tensors_file, name,
        text.shape(tensor.shape), text.shape(shape))
    end
    used = used + 1
    return tensor
  end
  local function take_of_experts(place)
    local all_a, all_b = {}, {}
    for expert = 0, place.experts - 1 do
      local theirs_a, theirs_b = names_of(place, expert)
      all_a[expert + 1] = take(theirs_a, { place.rank, place.inputs })
      all_b[expert + 1] = take(theirs_b, { place.outputs, place.rank })
    end
    local a, b = layer_adapter.parameters_of(place)
    set_initial(a, native.stored_joined(all_a):reshaped { place.experts, place.rank, place.inputs })
    set_initial(b, native.stored_joined(all_b):reshaped { place.experts, place.outputs, place.rank })
  end
  local function take_of(group)
    local theirs_a, theirs_b = names_of(group[1])
    local outputs = 0
    for _, place in ipairs(group) do outputs = outputs + place.outputs end
    local whole_a = take(theirs_a, { group[1].rank, group[1].inputs })
    local whole_b = take(theirs_b, { outputs, group[1].rank })
    if group[1].by_heads then whole_b = tensors_of.from_heads(model.arguments, whole_b) end
    for i, place in ipairs(group) do
      local a, b = layer_adapter.parameters_of(place)
      if i == 1 then set_initial(a, whole_a) end
      set_initial(b, #group > 1 and whole_b:rows(place.first, place.outputs) or whole_b)
    end
  end
  local function take_fused(group)
    local theirs_a, theirs_b = names_of_fused(group[1], lora)
    local experts, rank, outputs = group[1].experts, group[1].rank, 0
    for _, place in ipairs(group) do outputs = outputs + place.outputs end
    local whole_a = take(theirs_a, { experts * rank, group[1].inputs })
    local whole_b = take(theirs_b, { outputs, rank * experts })
    local first = 0
    for i, place in ipairs(group) do
      local a, b = layer_adapter.parameters_of(place)
      if i == 1 then set_initial(a, whole_a:reshaped { experts, rank, place.inputs }) end
      local own = whole_b:rows(first, place.outputs):reshaped { place.outputs * rank, experts }
      set_initial(b, own:transposed():reshaped { experts, place.outputs, rank })
      first = first + place.outputs
    end
  end
  for _, group in ipairs(by_layer(lora.places)) do
    if group[1].in_fused then take_fused(group)
    elseif group[1].experts then take_of_experts(group[1])
    else take_of(group) end
  end
  local table_of = { model.arguments.vocab, model.arguments.width }
  for name, tensor in pairs(stored) do
    if not is_base(name) then
      used = used - 1
    elseif not tensors_of.same_shape(tensor.shape, table_of) then
      errors.usage("%s/%s: '%s' is %s, the base model's is %s; another vocabulary is not supported", folder,
        adapter.tensors_file, name, text.shape(tensor.shape), text.shape(table_of))
    end
  end
  if used ~= 0 then
    errors.usage("%s holds adapters of layers for which the model has none: its targets are %s", folder,
      table.concat(lora.targets, ", "))
  end
  return metadata
end

--- Of a state's tensors, those of the base model's parameters.
function adapter.base_names(state)
  local list = {}
  for _, entry in ipairs(state:names()) do
    if entry.trained and not entry.name:match "lora_[ab]$" then list[#list + 1] = entry end
  end
  return list
end

-- The rows that a place has of its layer's weight: the first one, and how many.
local function rows_of(model, place)
  if place.part == "" or place.experts then return 0, place.outputs end
  local a = families.settings(model.arguments, families.of(model))
  local d = a.head_size or a.width / a.heads
  local first = { q = 0, k = a.heads * d, v = (a.heads + (a.kv_heads or a.heads)) * d }
  return first[place.part], place.outputs
end

--- What reads a model's parameters with its adapters merged: W + scale · B A.
-- @param model what nn.lora made
-- @param state what has read(name), of the model with its adapters
-- @treturn table `names`: of the base model's parameters; `read(name)`
function adapter.merged(model, state)
  local places = {}
  for _, place in ipairs(model.lora.places) do
    local name = place.experts and place.names[2] or place.path .. (place.part == "" and ".weight" or ".qkv.weight")
    places[name] = places[name] or {}
    table.insert(places[name], place)
  end
  local function change_of(place)
    local a, b = layer_adapter.parameters_of(place)
    local change = op.matmul(state:read(b):to "f32", state:read(a):to "f32")
    return (op.scale(change, { factor = place.scale }))
  end
  local merged = {}
  function merged.names() return adapter.base_names(state) end
  function merged.read(_, name)
    local weight = state:read(name):to "f32"
    if not places[name] then return weight end
    if places[name][1].experts then   -- [experts, outputs, inputs]
      return (op.add(weight, change_of(places[name][1])))
    end
    local sizes, parts, at = {}, {}, 0
    table.sort(places[name], function(x, y) return rows_of(model, x) < rows_of(model, y) end)
    local function keep(count)
      if count > 0 then
        parts[#parts + 1] = op.slice(weight, { dim = 0, start = at, length = count })
        sizes[#sizes + 1], at = count, at + count
      end
    end
    for _, place in ipairs(places[name]) do
      local first, count = rows_of(model, place)
      keep(first - at)
      keep(count)
      parts[#parts] = op.add(parts[#parts], change_of(place))
    end
    keep(weight.shape[1] - at)
    if #parts == 1 then return parts[1] end
    parts[#parts + 1] = { dim = 0 }
    return (op.concat(unpack(parts)))
  end
  return merged
end

return adapter
