--- The model families that are read and written as Hugging Face's transformers stores them: one file each, found by
-- `model_type` of config.json. A family is a table:
--
--   architecture  the class of transformers, as config.json names it
--   constructor   "gpt", "llama", "bert" or "decoder": the constructor of het.nn that makes it
--   decoder       of those made by nn.decoder: arguments whose value is the family's where a model gives none
--   config        rows { key of config.json, our argument, ... }:
--                   is =       the only value there may be, in place of an argument; native.null: none
--                   need =     it has to be there
--                   default =  what it counts as where it is absent; a value
--                   null =     what it counts as where it is null
--                   values =   our values by theirs; `theirs` is written where several of theirs are one of ours
--                   from =     function(value): the argument, where it is not the value
--                   written =  function(arguments) -> value, where it is not the argument's
--   settle        function(settings): sets arguments that follow from others
--   rope          true: rotary positions are read from rope_theta, rope_scaling and rope_parameters
--   base          of rotary positions, where none is given (default: 10000)
--   share, base_key   keys of the share of a head that they turn, and of their base, beside those
--   read, write   function(config, arguments, refuse) and function(arguments, config): what rows cannot say; `reads`
--                 lists its arguments
--   extra         what is written into config.json besides
--   tensors       rows { theirs, ours, ... }, names without ".weight"; %d is the number of a block:
--                   lists      of theirs: their rows one below the other are ours; of ours: the reverse
--                   transpose  theirs is stored [inputs, outputs]
--                   by_heads   theirs has queries, keys and values of one head after the other
--                   bias       true, or the argument that says whether there is a bias
--                   zeros      theirs always has a bias: without ours it is written as zeros
--                   plain      the names are whole
--                   untied     only of a classifier with a table of its own
--                   when       function(arguments, number): whether the block of this number has it
--                   experts    %e is the number of an expert: theirs one below the other are ours
--   alternatives  { pattern, replacement } by which names of some checkpoints differ
local define = require "het.language.define"
local errors = require "het.errors"
local native = require "het.native"
local text = require "het.text"

local families = {}

local names = { "bert", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "granite", "llama", "mistral", "mixtral",
  "olmo2", "olmo3", "olmoe", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2" }
local known = {}
for _, name in ipairs(names) do known[name] = true end

--- The family of this `model_type`, or nil.
function families.find(name)
  if not known[name] then return nil end
  local family = require("het.families." .. name)
  family.name = name
  return family
end

--- All names.
function families.names() return { unpack(names) } end

--- The names of those that nn.decoder makes.
function families.decoders()
  local list = {}
  for _, name in ipairs(names) do
    if families.find(name).decoder then list[#list + 1] = name end
  end
  return list
end

--- The family that a model can be stored as, or nil: models with blocks of the recipe's own are stored by our names.
function families.of(model)
  if define.kind_of(model) ~= "layer" or not model.class.model or model.arguments.block then return nil end
  return families.find(model.class.model == "decoder" and model.arguments.family or model.class.model)
end

local resolved = setmetatable({}, { __mode = "k" })   -- settings by arguments

--- The arguments of a model with the family's where none are given.
-- @tparam table a the model's arguments
-- @tparam[opt] table family default: that of nn.decoder's arguments
function families.settings(a, family)
  local s = resolved[a]
  if not s then
    s = {}
    family = family or families.find(a.family)
    for key, value in pairs(family.decoder or {}) do s[key] = value end
    for key, value in pairs(a) do s[key] = value end
    if family.settle then family.settle(s) end
    if s.parallel ~= nil then s.order = s.parallel and "parallel" or "before" end
    resolved[a] = s
  end
  return s
end

-- Is it neither absent nor null?
local function is_given(value) return value ~= nil and type(value) ~= "userdata" end

-- The kind of the scaling in a table of config.json, of either version of transformers.
local function kind_of(rope) return type(rope) == "table" and (rope.rope_type or rope.type) or "default" end

-- Is it a list of numbers?
local function is_numbers(value)
  if type(value) ~= "table" or #value == 0 then return false end
  for _, each in pairs(value) do
    if type(each) ~= "number" then return false end
  end
  return true
end

-- Rotary positions of a configuration: base, scaling and share.
local function read_rope(family, config, a, refuse)
  local parameters = type(config.rope_parameters) == "table" and config.rope_parameters or {}
  if type(parameters.full_attention) == "table" then parameters = parameters.full_attention end
  local base = is_given(config.rope_theta) and config.rope_theta or parameters.rope_theta
  if family.base_key and not base then base = config[family.base_key] end
  a.rotary = is_given(base) and base or family.base or 10000
  for _, rope in ipairs { config.rope_scaling or false, parameters } do
    local kind = kind_of(rope)
    if kind ~= "default" then
      -- MRoPE and others that a model has for pictures have no such words.
      local scaling = { rope_type = kind == "su" and "longrope" or kind }
      for key, value in pairs(rope) do
        local is_wanted = type(value) == "number" or type(value) == "boolean" or is_numbers(value)
        if is_wanted and key ~= "rope_theta" and key ~= "partial_rotary_factor" then scaling[key] = value end
      end
      local longest = is_given(config.max_position_embeddings) and config.max_position_embeddings or nil
      scaling.original_max_position_embeddings = scaling.original_max_position_embeddings
        or is_given(config.original_max_position_embeddings) and config.original_max_position_embeddings or longest
      if kind == "yarn" or scaling.rope_type == "longrope" then scaling.max_position_embeddings = longest end
      local problem = require("het.nn.rope").problem(scaling)
      if problem then refuse(problem) end
      a.scaling = scaling
    end
  end
  local share = parameters.partial_rotary_factor or family.share and config[family.share]
  if not is_given(share) then return end
  if family.share then
    a.rotary_share = share
  elseif share ~= 1 then
    refuse(("partial_rotary_factor = %s is not supported"):format(tostring(share)))
  end
end

local function write_rope(family, s, config)
  config.rope_theta = s.rotary
  if family.base_key then config[family.base_key] = s.rotary end
  if s.scaling then
    config.rope_scaling = {}
    for key, value in pairs(s.scaling) do config.rope_scaling[key] = value end
    config.rope_scaling.max_position_embeddings = nil
  end
  if family.share then config[family.share] = s.rotary_share or 1 end
end

-- Their value of one of ours.
local function theirs_of(row, ours)
  if row.values[row.theirs] == ours then return row.theirs end
  for _, theirs in ipairs(text.keys(row.values)) do
    if row.values[theirs] == ours then return theirs end
  end
end

-- The argument that a row gives for a configuration.
local function read_row(row, config, refuse, family, folder)
  local key, value = row[1], config[row[1]]
  if row.is ~= nil then
    if is_given(value) and value ~= row.is then
      refuse(("%s = %s is not supported; %s is"):format(key, tostring(value),
        row.is == native.null and "null" or tostring(row.is)))
    end
    return nil
  end
  if not row[2] then return nil end
  if row.need and type(value) ~= "number" then
    errors.usage("%s/config.json has no number '%s', which a %s model needs", folder, key, family.name)
  end
  if value == nil then value = row.default elseif type(value) == "userdata" then value = row.null end
  if value == nil then return nil end
  if row.values then
    local ours = row.values[value]
    if ours == nil then
      refuse(("%s = '%s' is not supported; there are %s"):format(key, tostring(value),
        table.concat(text.keys(row.values), ", ")))
    end
    return ours
  end
  if type(value) ~= "number" and type(value) ~= "boolean" then
    refuse(("%s is a %s; a number, or true or false, is needed"):format(key, type(value)))
  end
  return row.from and row.from(value) or value
end

--- The description of a model from its configuration.
-- @tparam table family
-- @tparam table config what config.json holds
-- @string folder for messages
-- @tparam[opt] table options `context`: tokens that it sees at once, at most those of the configuration; or
-- `most_context`: the same, fewer where the configuration has fewer, and all where a table of them stays whole
function families.make(family, config, folder, options)
  local function refuse(sentence) errors.usage("%s/config.json: %s", folder, sentence) end
  local a = {}
  if is_given(config.quantization_config) then
    refuse("its weights are quantised (quantization_config), which is not supported; load it in transformers, "
      .. "dequantize() and save it")
  end
  for _, row in ipairs(family.config) do
    local value = read_row(row, config, refuse, family, folder)
    if row[2] then a[row[2]] = value end
  end
  if family.rope then read_rope(family, config, a, refuse) end
  if family.read then family.read(config, a, refuse) end
  local context, most = options and options.context, options and options.most_context
  if most and family.rope and most < a.context then a.context = most end
  if context then
    if context > a.context then
      errors.usage("context = %d is more than the %d tokens of the model in %s", context, a.context, folder)
    end
    if not family.rope and context ~= a.context then
      errors.usage("context = %d: the model in %s has a table of %d positions, which stays whole", context, folder,
        a.context)
    end
    a.context = context
  end
  local models = require "het.nn"
  if family.constructor ~= "decoder" then
    local plain = true
    for _, name in ipairs(family.beyond or {}) do plain = plain and not a[name] end
    if plain then
      for _, name in ipairs(family.beyond or {}) do a[name] = nil end
      return models[family.constructor](a)
    end
  end
  a.family = family.name
  return models.decoder(a)
end

--- The configuration of a model that was not loaded.
-- @tparam table family
-- @tparam table a the model's arguments
function families.config(family, a)
  local s = families.settings(a, family)
  local config = { architectures = { family.architecture }, model_type = family.name, initializer_range = 0.02,
    torch_dtype = "float32" }
  for key, value in pairs(family.extra or {}) do
    config[key] = key:find "_token_id$" and native.null or value   -- not known: of the vocabulary that it is saved with
  end
  for _, row in ipairs(family.config) do
    local value = row.is
    if row.written then value = row.written(s)
    elseif row[2] then
      value = s[row[2]]
      if row.values then value = theirs_of(row, value) end
    end
    config[row[1]] = value
  end
  if family.rope then write_rope(family, s, config) end
  if family.write then family.write(s, config) end
  return config
end

-- What transformers has as floats: it refuses 10000 for 10000.0.
local floats = {}
for name in ([[attention_dropout attention_multiplier attention_probs_dropout_prob attn_logit_softcapping attn_pdrop
  beta_fast beta_slow embd_pdrop embedding_multiplier factor final_logit_softcapping hidden_dropout
  hidden_dropout_prob high_freq_factor initializer_range layer_norm_eps layer_norm_epsilon logits_scaling
  low_freq_factor norm_epsilon partial_rotary_factor resid_pdrop residual_multiplier rms_norm_eps rope_local_base_freq
  rope_theta rotary_emb_base rotary_pct router_aux_loss_coef router_jitter_noise]]):gmatch "%S+" do
  floats[name] = true
end

--- A configuration as the text of config.json.
function families.config_text(config)
  local words = native.json_encode(config, true)
  return (words:gsub('("([%w_]+)": *)(%-?%d+)([,%s}])', function(key, name, number, after)
    return floats[name] and key .. number .. ".0" .. after or nil
  end)) .. "\n"
end

--- The text of a config.json for weights of a precision.
-- @string dtype as config.json names it: "float32", "bfloat16", "float16"
function families.text_with_dtype(words, dtype)
  local replaced, count = words:gsub('("t?o?r?c?h?_?dtype"%s*:%s*)"[^"]*"', ('%%1"%s"'):format(dtype))
  return count > 0 and replaced or (words:gsub("^%s*{", ('{\n  "torch_dtype": "%s",'):format(dtype), 1))
end

--- The text of a config.json with the ids of other tokens.
-- @tparam table ids `bos`, `eos`, `pad`; nil where there is none
function families.text_with_ids(words, ids)
  for _, which in ipairs { "bos", "eos", "pad" } do
    local key, id = ('("%s_token_id"%%s*:%%s*)'):format(which), "%1" .. (ids[which] or "null")
    words = words:gsub(key .. "%b[]", id):gsub(key .. "[%w%-]+", id)
  end
  return words
end

--- The text of a config.json that was found, for weights of this dtype.
function families.found_text(words, version, dtype)
  words = families.text_with_dtype(words, dtype)
  words = words:gsub('%s*"hetrun_version"%s*:%s*"[^"]*"%s*,', "")
  return (words:gsub("^%s*{", ('{\n  "hetrun_version": "%s",'):format(version), 1))
end

-- The arguments of nn.decoder that config.json of a family keeps.
local function kept_by(family)
  local kept = { family = true, block = true, capacity = true, auxiliary = true }
  for _, row in ipairs(family.config) do
    if row[2] then kept[row[2]] = true end
  end
  for _, name in ipairs(family.reads or {}) do kept[name] = true end
  if family.rope then kept.rotary, kept.scaling, kept.rotary_share = true, true, family.share ~= nil end
  return kept
end

local without_effect = { logit_scale = 1, residual_scale = 1, no_rotary_every = 0 }

--- Why a model cannot be stored as its family, and the argument; nil when it can.
function families.problem(a)
  local family = families.find(a.family)
  local kept = kept_by(family)
  for _, name in ipairs(text.keys(a)) do
    if not kept[name] and a[name] ~= family.decoder[name] and a[name] ~= without_effect[name] then
      local others = {}
      for _, other in ipairs(families.decoders()) do
        if kept_by(families.find(other))[name] then others[#others + 1] = other end
      end
      return ("nn.decoder.%s: models of the family '%s' are saved without it; with it those of %s"):format(name,
        a.family, #others > 0 and table.concat(others, ", ") or "none"), name
    end
  end
end

-- A name, or each of a list, with a suffix and the number of a block.
local function named(name, number, suffix)
  if type(name) == "table" then
    local list = {}
    for i, each in ipairs(name) do list[i] = named(each, number, suffix) end
    return list
  end
  return (number and name:gsub("%%d", number) or name) .. suffix
end

--- The tensors of a model: a list of { theirs, ours, transpose =, by_heads =, zeros = }, with whole names.
-- @tparam table family
-- @tparam table a the model's arguments
function families.rows(family, a)
  local s, list = families.settings(a, family), {}
  local function add(row, number)
    if row.experts then
      local theirs = {}
      for e = 0, s.experts - 1 do theirs[e + 1] = row[1]:gsub("%%e", e) .. ".weight" end
      list[#list + 1] = { named(theirs, number, ""), named(row[2], number, ""), experts = true }
      return
    end
    local function push(suffix, zeros)
      list[#list + 1] = { named(row[1], number, suffix), named(row[2], number, suffix),
        transpose = row.transpose and suffix ~= ".bias" or nil, by_heads = row.by_heads, zeros = zeros or nil }
    end
    if row.plain then return push("") end
    push(".weight")
    local bias = row.bias == true or row.bias and s[row.bias]
    if bias or row.zeros then push(".bias", not bias) end
  end
  for _, row in ipairs(family.tensors) do
    local theirs = type(row[1]) == "table" and row[1][1] or row[1]
    local ours = type(row[2]) == "table" and row[2][1] or row[2]
    if not (row.untied and s.tied) then
      if theirs:find("%%d") or ours:find("%%d") then
        for i = 0, s.layers - 1 do
          if not row.when or row.when(s, i) then add(row, i) end
        end
      else
        add(row)
      end
    end
  end
  return list
end

return families
