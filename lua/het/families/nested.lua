--- Language models in folders that have more: `text_config` inside of config.json, and their tensors beside those of a
-- vision tower, under names that begin otherwise.
local native = require "het.native"

local nested = {}

-- By `model_type`: that of the language model, and sizes that transformers has where text_config says none.
local known = {
  gemma3 = { model_type = "gemma3_text", architecture = "Gemma3ForCausalLM", sizes = {
    vocab_size = 262208, hidden_size = 2304, intermediate_size = 9216, num_hidden_layers = 26, num_attention_heads = 8,
    num_key_value_heads = 4, head_dim = 256, max_position_embeddings = 131072,
  } },
}

-- What the language model has from the whole, where text_config does not say it.
local shared = { "dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "quantization_config",
  "transformers_version", "hetrun_version" }

--- The configuration of the language model in that of a whole.
-- @param config what a config.json holds
-- @treturn ?table as a config.json of the language model alone; nil where `config` is no such whole
function nested.language_of(config)
  local about = type(config) == "table" and type(config.text_config) == "table" and known[config.model_type]
  if not about then return nil end
  local own = { architectures = { about.architecture } }
  for name, size in pairs(about.sizes) do own[name] = size end
  for _, name in ipairs(shared) do own[name] = config[name] end
  for name, value in pairs(config.text_config) do
    local is_empty = type(value) == "table" and next(value) == nil   -- a list or an object: nothing either way
    if not is_empty and (value ~= native.null or own[name] == nil) then own[name] = value end
  end
  own.model_type = about.model_type
  return own
end

-- How their names begin in such folders, and alone: as transformers wrote them first, and since version 4.52.
local of_tensors = { { "^language_model%.", "" }, { "^model%.language_model%.", "model." } }
-- The same of adapters, as PEFT names them.
local of_adapters = {
  { "^base_model%.model%.language_model%.", "base_model.model." },
  { "^base_model%.model%.model%.language_model%.", "base_model.model.model." },
}

-- Those whose names begin so, by the names that they have alone; nil where there are none.
local function part_of(stored, prefixes)
  local own = {}
  for name, tensor in pairs(stored) do
    for _, prefix in ipairs(prefixes) do
      local short, count = name:gsub(prefix[1], prefix[2])
      if count > 0 then own[short] = tensor end
    end
  end
  return next(own) and own
end

--- The tensors of the language model, by its names; all of them where none is of such a folder.
-- @tparam table stored by name
function nested.tensors(stored)
  local own = part_of(stored, of_tensors)
  if own then own["lm_head.weight"] = stored["lm_head.weight"] or own["lm_head.weight"] end
  return own or stored
end

--- The adapters of the language model, by the names that they have of it alone; those of a vision tower are left out.
-- All of them where none is of such a folder.
-- @tparam table stored by name
function nested.adapters(stored) return part_of(stored, of_adapters) or stored end

--- The name that a layer of the language model has in such a folder.
-- @string name its name in the language model alone
function nested.whole_layer(name) return (name:gsub("^model%.", "model.language_model.")) end

--- The adapters of a language model by the names that they have in such a folder.
-- @tparam table tensors by name
function nested.whole_adapters(tensors)
  local whole, prefix = {}, "base_model.model."
  for name, tensor in pairs(tensors) do whole[prefix .. nested.whole_layer(name:sub(#prefix + 1))] = tensor end
  return whole
end

--- All names by which adapters of such a folder may call a layer of the language model: of the folder, as transformers
-- names it now and as it did first, and of the language model alone.
-- @string name its name in the language model alone
-- @treturn {string,...}
function nested.layer_names(name) return { nested.whole_layer(name), "language_model." .. name, name } end

--- The layers with these ends of names in the language model of such a folder alone, as a regular expression of PEFT.
-- @tparam {string,...} targets
function nested.whole_targets(targets)
  local ends = {}
  for i, name in ipairs(targets) do ends[i] = name:gsub("%.", "\\.") end
  return (".*\\.language_model\\.(.*\\.)?(%s)"):format(table.concat(ends, "|"))
end

return nested
