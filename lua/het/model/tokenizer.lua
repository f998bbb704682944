--- What models have beside their weights for text: the tokenizer of Hugging Face's folders, and the files that
-- transformers wants to find again beside a model that is saved.
local native = require "het.native"
local access = require "het.sandbox.access"

local tokenizer = {}

-- Files that are carried as they were found.
local carried = { "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja",
  "added_tokens.json" }

--- All files beside a model that a save writes when its vocabulary has them.
tokenizer.files = { "tokenizer.json", unpack(carried) }

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

--- The files that a vocabulary of this kind is saved as: text by name.
function tokenizer.contents(vocabulary)
  if type(vocabulary) ~= "table" or vocabulary.kind ~= "huggingface" then return {} end
  local contents = { ["tokenizer.json"] = vocabulary.json }
  for _, name in ipairs(carried) do contents[name] = vocabulary.files and vocabulary.files[name] or nil end
  return contents
end

-- A member of a JSON text, or nil.
local function member(words, name)
  local ok, value = pcall(native.json_decode, words or "")
  return ok and type(value) == "table" and value[name] or nil
end

--- The token ids that end a text, as a set: those of generation_config.json, else of a config.json that others wrote
-- (ours names an id also where none ends a text). Tokens of other vocabularies than tokenizer.json's, such as single
-- characters, end none.
-- @tparam ?table vocabulary
-- @tparam ?table config what config.json holds
function tokenizer.ends(vocabulary, config)
  if type(vocabulary) ~= "table" or vocabulary.kind ~= "huggingface" then return {} end
  local files = type(vocabulary.files) == "table" and vocabulary.files or {}
  local given = member(files["generation_config.json"], "eos_token_id")
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
