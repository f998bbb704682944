--- What models have beside their weights for text: the tokenizer of Hugging Face's folders, and the files that
-- transformers wants to find again beside a model that is saved.
local native = require "het.native"
local access = require "het.sandbox.access"
local made = require "het.model.tokenizer_json"

local tokenizer = {}

-- Files that are carried as they were found.
local carried = { "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja",
  "added_tokens.json" }

--- All files beside a model that a save writes when its vocabulary has them.
tokenizer.files = { "tokenizer.json", "tokenizer.model", unpack(carried) }

local function text_in(folder, name)
  local path = folder .. "/" .. name
  if native.path_kind(path) ~= "file" then return nil end
  access.check(path)
  return native.read_text(path)
end

--- The vocabulary of a folder with tokenizer.json, as native.tokenizer takes it; nil where there is none.
-- @string folder
function tokenizer.vocabulary(folder)
  local json = text_in(folder, "tokenizer.json")
  if not json then return nil end
  local files = {}
  for _, name in ipairs(carried) do files[name] = text_in(folder, name) end
  return { kind = "huggingface", json = json, files = next(files) and files or nil }
end

-- A member of a JSON text, or nil.
local function member(words, name)
  local ok, value = pcall(native.json_decode, words or "")
  return ok and type(value) == "table" and value[name] or nil
end

local special = { "bos", "eos", "pad" }

-- The texts of the tokens that begin, end and fill up a text, as far as what stands beside tokenizer.json names them.
local function special_tokens(files)
  local tokens = {}
  for _, name in ipairs { "special_tokens_map.json", "tokenizer_config.json" } do   -- the later one counts
    local ok, named = pcall(native.json_decode, files[name] or "")
    for _, which in ipairs(ok and type(named) == "table" and special or {}) do
      local token = named[which .. "_token"]
      if type(token) == "table" then token = token.content end
      if type(token) == "string" then tokens[which] = token end
    end
  end
  return tokens
end

local known = {}   -- by tokenizer.json: reading a large one takes a while

--- The ids of the tokens that begin, end and fill up a text, { bos =, eos =, pad = }, of a vocabulary that names them.
function tokenizer.special_ids(vocabulary)
  if type(vocabulary) ~= "table" then return {} end
  if vocabulary.kind ~= "huggingface" then
    local id = made.end_of_text(vocabulary)
    return { bos = id, eos = id }
  end
  local tokens = type(vocabulary.files) == "table" and special_tokens(vocabulary.files) or {}
  if not next(tokens) then return {} end
  local key = ("%s\n%s\n%s\n%s"):format(tokens.bos, tokens.eos, tokens.pad, vocabulary.json)
  if not known[key] then
    local reader, found = native.tokenizer(vocabulary), {}
    for which, token in pairs(tokens) do
      local ids = reader:encode(token)
      found[which] = #ids == 1 and ids[1] or nil
    end
    known = { [key] = found }
  end
  return known[key]
end

--- The files that transformers finds a vocabulary in, as native.save_files takes them: { text = } or { base64 = } by
-- name. Of tokenizer.json those that came with it; where none of these says which token ends a text, one that does.
-- @tparam ?table vocabulary
-- @tparam ?table config what config.json said that the model was loaded with
function tokenizer.contents(vocabulary, config)
  if type(vocabulary) ~= "table" then return {} end
  if vocabulary.kind ~= "huggingface" then return made.contents(vocabulary) end
  local contents, files = { ["tokenizer.json"] = { text = vocabulary.json } }, vocabulary.files or {}
  for _, name in ipairs(carried) do contents[name] = files[name] and { text = files[name] } or nil end
  if files["generation_config.json"] then return contents end
  local bos, eos
  if config and not config.hetrun_version then bos, eos = config.bos_token_id, config.eos_token_id
  else
    local ids = tokenizer.special_ids(vocabulary)
    bos, eos = ids.bos, ids.eos
  end
  if eos and eos ~= native.null then
    contents["generation_config.json"] = { text = native.json_encode({ bos_token_id = bos, eos_token_id = eos }, true)
      .. "\n" }
  end
  return contents
end

--- The token ids that end a text by a vocabulary alone, as a set.
function tokenizer.ends_by_name(vocabulary)
  local eos = tokenizer.special_ids(vocabulary).eos
  return eos and { [eos] = true } or {}
end

--- The token ids that end a text, as a set: those of generation_config.json, else of a config.json that others wrote
-- (earlier versions of hetrun named an id also where none ends a text). Of other vocabularies than tokenizer.json's it
-- is the one that they name so.
-- @tparam ?table vocabulary
-- @tparam ?table config what config.json holds
-- @string folder of the model, which may have a generation_config.json beside another kind of vocabulary file
function tokenizer.ends(vocabulary, config, folder)
  if type(vocabulary) ~= "table" or vocabulary.kind ~= "huggingface" then return tokenizer.ends_by_name(vocabulary) end
  local files = type(vocabulary.files) == "table" and vocabulary.files or {}
  local given = member(text_in(folder, "generation_config.json") or files["generation_config.json"], "eos_token_id")
  if type(given) ~= "number" and type(given) ~= "table" then
    given = config and not config.hetrun_version and config.eos_token_id or nil
  end
  local ends = {}
  for _, id in ipairs(type(given) == "table" and given or { given }) do
    if type(id) == "number" then ends[id] = true end
  end
  return ends
end

return tokenizer
