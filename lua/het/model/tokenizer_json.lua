--- The tokenizers of this library as `tokenizer.json`, so that transformers (AutoTokenizer) reads a model that was
-- trained from scratch: single bytes and characters are byte-pair encodings without merges. A SentencePiece model is
-- saved as it is.
local native = require "het.native"

local tokenizer_json = {}

-- A character by its code point, below U+0800.
local function utf8(point)
  if point < 128 then return string.char(point) end
  return string.char(192 + math.floor(point / 64), 128 + point % 64)
end

-- How GPT-2 writes bytes: as themselves where they print, else as the characters from U+0100 on.
local function characters_of_bytes()
  local list, others = {}, 0
  for byte = 0, 255 do
    local prints = byte >= 33 and byte <= 126 or byte >= 161 and byte <= 172 or byte >= 174
    list[byte + 1] = utf8(prints and byte or 256 + others)
    if not prints then others = others + 1 end
  end
  return list
end

-- Tokens by id as a JSON object.
local function vocabulary_of(tokens)
  local ids = {}
  for i, token in ipairs(tokens) do ids[token] = i - 1 end
  return native.json_encode(ids)
end

local function list(values) return #values > 0 and native.json_encode(values) or "[]" end

local byte_level = '{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": %s}'

-- @tparam {string,...} tokens by id
-- @tparam {string,...} merges
-- @tparam table added tokens that text may name whole
-- @string before the pre-tokenizer
-- @string decoder
local function bpe(tokens, merges, added, before, decoder)
  return ('{"version": "1.0", "truncation": null, "padding": null, "added_tokens": %s, "normalizer": null,\n'
    .. '"pre_tokenizer": %s, "post_processor": null, "decoder": %s,\n"model": {"type": "BPE", "dropout": null, '
    .. '"unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, '
    .. '"byte_fallback": false, "ignore_merges": false,\n"vocab": %s,\n"merges": %s}}\n'):format(list(added), before,
    decoder, vocabulary_of(tokens), list(merges))
end

--- The id of what GPT-2 calls the end of a text, of a "bpe" that has it; nil for others.
function tokenizer_json.end_of_text(vocabulary)
  for i, token in ipairs(vocabulary.kind == "bpe" and vocabulary.tokens or {}) do
    if token == "<|endoftext|>" then return i - 1 end
  end
end

local makers = {}

function makers.byte()
  return bpe(characters_of_bytes(), {}, {}, byte_level:format "false", byte_level:format "false")
end

function makers.char(vocabulary)
  local tokens = {}
  for token in vocabulary.characters:gmatch "[%z\1-\127\194-\244][\128-\191]*" do tokens[#tokens + 1] = token end
  return bpe(tokens, {}, {}, "null", '{"type": "Fuse"}')
end

function makers.bpe(vocabulary)
  local added, special, id = {}, {}, tokenizer_json.end_of_text(vocabulary)
  if id then
    local token = vocabulary.tokens[id + 1]
    added[1] = { id = id, content = token, single_word = false, lstrip = false, rstrip = false, normalized = false,
      special = true }
    special = { bos_token = token, eos_token = token }
  end
  return bpe(vocabulary.tokens, vocabulary.merges, added, byte_level:format "true", byte_level:format "true"), special
end

--- The files of a vocabulary of this library, { text = } or { base64 = } by name.
-- @tparam table vocabulary `kind`: "char", "byte", "bpe" or "sentencepiece", and what it holds
function tokenizer_json.contents(vocabulary)
  local contents, config = {}, { tokenizer_class = "PreTrainedTokenizerFast", clean_up_tokenization_spaces = false }
  if vocabulary.kind == "sentencepiece" then
    contents["tokenizer.model"] = { base64 = vocabulary.model }
  elseif makers[vocabulary.kind] then
    local words, special = makers[vocabulary.kind](vocabulary)
    for name, token in pairs(special or {}) do config[name] = token end
    contents["tokenizer.json"] = { text = words }
  else
    return {}
  end
  contents["tokenizer_config.json"] = { text = native.json_encode(config, true) .. "\n" }
  return contents
end

return tokenizer_json
