--- `het.data`: what to train on. A corpus has `vocab` (number of different tokens) and gives batches. Pairs of
-- tensors are in het.data.pairs.
local native = require "het.native"
local batches = require "het.data.batches"
local define = require "het.language.define"
local errors = require "het.errors"
local mistakes = require "het.language.mistakes"
local suggest = require "het.language.suggest"
local text = require "het.text"

local data = {}

-- A corpus: { native, vocab, known (of these ids text can be made), tokens, objective, arguments, held (the share that
-- is held out for validation), sources (of a mixture) }.
local Corpus = {}
Corpus.__index = Corpus
Corpus.__tostring = function(self)
  local counted = ""
  for _, name in ipairs { "examples", "documents" } do
    if self[name] then
      counted = ("%s %s, "):format(text.grouped(self[name]), self[name] == 1 and name:sub(1, -2) or name)
    end
  end
  return ("%s: %s%s tokens, vocabulary of %s"):format(self.native.name, counted, text.grouped(self.tokens),
    text.grouped(self.vocab))
end

--- Token ids of a text.
function Corpus:encode(words) return self.native:encode(words) end

--- Text of token ids.
function Corpus:decode(ids) return self.native:decode(ids) end

--- Token ids that stand before a text that a model is to continue.
function Corpus:prefix() return self.native:prefix() end

--- Token ids that are no text, such as that of <|im_start|>.
function Corpus:special() return self.native:special() end

--- The vocabulary, as it is saved beside a model; nil for token files that were given none.
function Corpus:vocabulary() return self.native:vocabulary() end

--- Batches of one split, drawn by a cursor that does not depend on batch sizes.
-- @tparam table settings `context`, `batch`, `microbatch`, `split`, `seed`, `start`; `first` and `count`: which samples
-- of each batch this rank runs (default: all)
function Corpus:sampler(settings)
  return self.native:sampler {
    context = settings.context, batch = settings.batch, microbatch = settings.microbatch, split = settings.split,
    seed = settings.seed, start = settings.start, first = settings.first, count = settings.count,
    objective = self.objective == "masked" and "masked" or nil,   -- preferences differ by their rows
    mask_share = self.arguments.mask_share, surrounded = self.arguments.special_tokens,
  }
end

define.hint(Corpus.vocabulary, "did you mean corpus.vocab, the number of its tokens?")

--- Do several examples share a row to train on, in it or in one that it mixes?
function Corpus:packs() return self.native.packs end

--- Does it hold out a part for validation?
function Corpus:has_holdout() return self.held > 0 end

--- The same with all of it in one split: "train", or "holdout" as the `data` of `evaluate` has it.
function Corpus:undivided(split)
  local all = setmetatable({}, Corpus)
  for name, value in pairs(self) do all[name] = value end
  all.native, all.held = self.native:undivided(split), split == "holdout" and 1 or 0
  return all
end

--- The `holdout` that a recipe gave it, or one of those that it mixes; nil without, or of 0.
function Corpus:given_holdout()
  for _, source in ipairs(self.sources or {}) do
    local given = source:given_holdout()
    if given then return given end
  end
  return (self.arguments.holdout or 0) > 0 and self.arguments.holdout or nil
end

define.object {
  name = "corpus",
  sentence = "Text or tokens to train on, as data.text, data.jsonl, data.preferences, data.masked, data.tokens and "
    .. "data.mixture return them.",
  members = {
    { "vocab", "corpus.vocab", "Number of different tokens: the model's `vocab`." },
    { "known", "corpus.known", "Of these token ids, from 0 on, text can be made." },
    { "tokens", "corpus.tokens", "Number of tokens in all." },
    { "examples", "corpus.examples", "Number of examples, of data.jsonl; nil of others." },
    { "documents", "corpus.documents", "Number of documents, of data.text and data.tokens with packing = true; nil of "
      .. "others." },
    { "encode", "corpus:encode(text)", "Token ids of a text, as a list.", example = 'corpus:encode "to be"' },
    { "decode", "corpus:decode(ids)", "Text of a list of token ids.", example = "corpus:decode { 0, 1 }" },
    { "vocabulary", "corpus:vocabulary()", "The vocabulary as it is saved beside a model; nil for token files that "
      .. "were given none." },
    { "has_holdout", "corpus:has_holdout()", "Whether a part is held out for validation." },
    { "sampler", "corpus:sampler { context =, batch =, split = }", "Batches of \"train\" or \"holdout\": its "
      .. "`next()` gives { inputs, labels, count }, lists of tensors.",
      example = 'corpus:sampler { context = 8, batch = 2, split = "train" }:next()' },
  },
  classes = { Corpus }, methods = { sampler = batches.checked_sampler },
}

--- What becomes of examples in a context: nil where none is cut, else a sentence.
-- @int context tokens of a sample
-- @string[opt] split default: "train"
function Corpus:cuts(context, split)
  local examples, cut, empty = unpack(self.native:cuts(split or "train", context))
  if cut == 0 then return nil end
  if empty == examples then
    errors.usage("all %d examples of %s are longer than the %d tokens of the context, and what is left of them has "
      .. "nothing to learn; a longer context is needed", examples, self.native.name, context)
  end
  return ("%d of %d examples of %s have more than the %d tokens of the context: their ends are left out%s"):format(cut,
    examples, self.native.name, context, empty > 0 and (", and %d have nothing left to learn"):format(empty) or "")
end

-- The share that is held out where a recipe does not say and it is not 0.1. With `evaluate.data` it is 0.
local default_holdout = { ["data.jsonl"] = 0.05, ["data.preferences"] = 0.05 }

-- A corpus, and its vocabulary: where tokens are masked and the tokenizer has no mask, one more.
local function opened(settings, objective)
  local corpus = native.corpus(settings)
  return corpus, corpus.vocab + (objective == "masked" and not corpus.mask_token and 1 or 0)
end

-- Open a corpus; what is wrong with it is a mistake of the recipe like any other.
local function open(constructor, settings, arguments, objective)
  settings.holdout = arguments.holdout or default_holdout[constructor] or 0.1
  local ok, result, vocab = pcall(opened, settings, objective)
  if not ok then
    local message, kind = errors.describe(result)
    if kind ~= "usage" then error(result, 0) end
    mistakes.record(constructor, "path", message)
    return define.unknown
  end
  return setmetatable({
    native = result, arguments = arguments, objective = objective, held = settings.holdout,
    vocab = vocab, known = result.known, tokens = result.tokens,
    examples = result.examples, documents = result.documents,
  }, Corpus)
end

local packs = { packing = "data.jsonl, data.text or data.tokens, whose examples and documents can share a row" }

-- Of texts and token files: how documents share rows.
local document_fields = {
  { "packing", "boolean", "a sample to train on is as many documents as fit in the context, not a window; attention "
    .. "and positions keep them apart, and longer ones are divided", default = false },
  { "ending", "string|integer", "with packing: the token behind each document, its text or its number (default: the "
    .. "token that ends a text by the folder of the tokenizer; Megatron's .idx names documents itself)" },
}

-- What is wrong with them.
local function check_documents(name, a, report)
  if a.ending ~= nil and not a.packing then
    report("ending", name .. ".ending is the token behind each document: it needs packing = true")
  elseif type(a.ending) == "number" and (a.ending < 0 or a.ending >= 2 ^ 31) then
    report("ending", ("%s.ending = %.14g is no token; tokens are from 0 to below 2^31"):format(name, a.ending))
  end
end

-- The same as settings of native.corpus.
local function add_documents(settings, a)
  settings.packing = a.packing
  settings[type(a.ending) == "number" and "ending_id" or "ending"] = a.ending
end

local text_fields = {
  { "path", "string", 'a text file, a folder: its text files in sorted order, or a pattern such as "texts/*.md"',
    required = true, path = "read" },
  { "tokenizer", "string", "what a token is", default = "char", choices = { "char", "byte", "sentencepiece", "bpe",
    "huggingface" } },
  { "model", "string", "file of a SentencePiece model, folder with vocab.json and merges.txt of a bpe, or folder with "
    .. "tokenizer.json of Hugging Face",
    path = "read" },
  { "vocabulary", "string|corpus", "that of another corpus; or vocabulary.json of an earlier run, or its folder, or a "
    .. "folder with tokenizer.json: used instead of a new one",
    path = "read" },
  batches.holdout_field("tokens", "0.1"),
  { "limit", "string|number", 'most text read from a folder, such as "4 MB"', default = "1 GiB" },
}

local function check_text(name)
  return function(a, report)
    local needed = { sentencepiece = "SentencePiece model file", bpe = "folder with vocab.json and merges.txt",
      huggingface = "folder with tokenizer.json" }
    if needed[a.tokenizer] and not a.model and not a.vocabulary then
      report("tokenizer", ("%s.tokenizer = \"%s\" needs 'model', the %s"):format(name, a.tokenizer,
        needed[a.tokenizer]))
    end
    if type(a.limit) == "string" and not pcall(native.parse_bytes, a.limit) then
      report("limit", ('%s.limit = "%s" is not a size; write it as "4 MB"'):format(name, a.limit))
    end
  end
end

-- The vocabulary of another corpus, in a file, or in the folder of a saved model.
local function read_vocabulary(path)
  if not path then return nil end
  if define.kind_of(path) == "corpus" then
    return path:vocabulary() or errors.usage("the corpus %s, which is to give its vocabulary, has none: its tokens are "
      .. "numbers only", path.native.name)
  end
  if native.path_kind(path) ~= "folder" then return native.json_read(path) end
  local own = path .. "/vocabulary.json"
  if native.path_kind(own) ~= "file" then
    local found = require("het.model.tokenizer").vocabulary(path)
    if found then return found end
  end
  return native.json_read(own)
end

-- The same of text, which a tokenizer encodes: `settings` beside what all of it has.
local function open_encoded(constructor, settings, a, objective)
  local ok, vocabulary = pcall(read_vocabulary, a.vocabulary)
  if not ok then
    mistakes.record(constructor, "vocabulary", (errors.describe(vocabulary)))
    return define.unknown
  end
  settings.path, settings.tokenizer, settings.model = a.path, a.tokenizer, a.model
  settings.vocabulary = vocabulary
  return open(constructor, settings, a, objective)
end

local function open_text(constructor, a, objective)
  local settings = { kind = "text",
    most_bytes = type(a.limit) == "string" and native.parse_bytes(a.limit) or a.limit }
  add_documents(settings, a)
  return open_encoded(constructor, settings, a, objective)
end

local function with_documents(fields)
  local all = { unpack(fields) }
  for _, field in ipairs(document_fields) do all[#all + 1] = field end
  return all
end

data.text = define.constructor {
  name = "data.text",
  sentence = "Text to train on, a file or a folder.",
  example = 'data.text { path = "shakespeare.txt", tokenizer = "char", holdout = 0.1 }',
  kind = "corpus", positional = 1, fields = with_documents(text_fields),
  check = function(a, report)
    check_text("data.text")(a, report)
    check_documents("data.text", a, report)
  end,
  build = function(a) return open_text("data.text", a) end,
}

local masked_fields = { unpack(text_fields) }
masked_fields[#masked_fields + 1] =
  { "mask_share", "number", "share of the tokens to be guessed", default = 0.15, above = 0, below = 1 }
masked_fields[#masked_fields + 1] =
  { "special_tokens", "boolean", "the tokens that the tokenizer has around a text, such as [CLS] and [SEP], stand "
    .. "around each window; they count in the context", default = true }

data.masked = define.constructor {
  name = "data.masked",
  instead = packs,
  sentence = "Text with tokens to be guessed, as BERT is trained. They are hidden by the tokenizer's mask, such as "
    .. "[MASK]; where it has none, as of characters and bytes, the vocabulary has one token more.",
  example = 'data.masked { path = "shakespeare.txt" }',
  kind = "corpus", positional = 1, fields = masked_fields, check = check_text("data.masked"),
  build = function(a) return open_text("data.masked", a, "masked") end,
}

local jsonl_fields = {
  { "path", "string", "a file with a JSON object on each line, or one list of them; a folder: its .jsonl files, sorted "
    .. 'by name; or a pattern such as "chats/*.jsonl"',
    required = true, path = "read" },
  { "tokenizer", "string", "what a token is", default = "huggingface", choices = text_fields[2].choices },
  text_fields[3], text_fields[4],
  batches.holdout_field("examples", "0.05"),
  { "loss", "string", "what the loss counts: completions and what the assistant says, or all tokens",
    default = "completion", choices = { "completion", "all" } },
  { "ending", "string", "what ends a text and a completion (default: the token that ends a text by the folder of the "
    .. "tokenizer, if it names one)" },
  { "chat_template", "string", "file of a chat template (default: the one in the folder of the tokenizer)",
    path = "read" },
  { "packing", "boolean", "several examples share a sample to train on, as many as fit in the context; attention and "
    .. "positions keep them apart", default = false },
}

-- Examples: `settings` beside those that all of them have.
local function open_examples(constructor, a, settings, objective)
  settings.kind, settings.ending, settings.chat_template = "examples", a.ending, a.chat_template
  return open_encoded(constructor, settings, a, objective)
end

data.jsonl = define.constructor {
  name = "data.jsonl",
  sentence = "Examples to fine-tune on, a JSON object a line: `text`; `prompt` and `completion`; or a conversation "
    .. "for the model's chat template, as `messages`, ShareGPT's `conversations`, or Alpaca's `instruction`, `input` "
    .. "and `output`. A sample is an example, padded to the context or cut there; with packing = true it is several.",
  example = 'data.jsonl { path = "chats.jsonl", model = "Qwen2.5-0.5B-Instruct" }',
  kind = "corpus", positional = 1, fields = jsonl_fields, check = check_text("data.jsonl"),
  build = function(a)
    return open_examples("data.jsonl", a, { counts_all = a.loss == "all", packing = a.packing })
  end,
}

local preference_fields = {}
for _, field in ipairs(jsonl_fields) do
  if field[1] ~= "loss" and field[1] ~= "packing" then preference_fields[#preference_fields + 1] = field end
end

data.preferences = define.constructor {
  name = "data.preferences",
  instead = { packing = "data.jsonl, whose examples can share a row; a pair of answers is two rows",
    loss = "`loss` of het.train; the tokens of both answers count" },
  sentence = "Pairs of answers, a better and a worse one, a JSON object a line: `prompt`, `chosen` and `rejected`, "
    .. "strings or lists of messages, as TRL has them. A sample is a pair: two rows of a batch, the chosen answer and "
    .. "the rejected one, each with the prompt before it, padded to the context or cut there.",
  example = 'data.preferences { path = "pairs.jsonl", model = "Qwen2.5-0.5B-Instruct" }',
  kind = "corpus", positional = 1, fields = preference_fields, check = check_text("data.preferences"),
  build = function(a) return open_examples("data.preferences", a, { preferences = true }, "preferences") end,
}

-- What the tokens of a file were made with, as fields of native.corpus.
local function tokenizer_of(path)
  if not path then return {} end
  if define.kind_of(path) == "corpus" then return { tokenizer_json = read_vocabulary(path) } end
  local kind = native.path_kind(path)
  if kind == "folder" and native.path_kind(path .. "/vocabulary.json") ~= "file"
    and native.path_kind(path .. "/tokenizer.json") ~= "file"
    and native.path_kind(path .. "/merges.txt") == "file" then
    return { tokenizer = "bpe", model = path }
  end
  if kind == "file" and not path:match("%.json$") then return { tokenizer = "sentencepiece", model = path } end
  return { tokenizer_json = read_vocabulary(path) }
end

data.tokens = define.constructor {
  name = "data.tokens",
  sentence = "Token ids: nanoGPT's .bin, llm.c's with its header, Megatron's .bin with its .idx, or several of them. "
    .. "They are mapped, not read.",
  example = 'data.tokens { path = "train.bin", width = 16 }',
  kind = "corpus", positional = 1,
  fields = with_documents {
    { "path", "string", "the file; a Megatron data set without its ending; a folder: its .bin files; or a pattern such "
      .. 'as "shards/web-*.bin". Several files follow one another, sorted by name', required = true, path = "read" },
    { "width", "integer", "bits of a token in a raw file", default = 16, choices = { 16, 32 } },
    batches.holdout_field("tokens", "0.1"),
    { "vocab", "integer", "number of different tokens (default: the vocabulary's, or the greatest found, plus one)",
      min = 1 },
    { "vocabulary", "string|corpus", "what the tokens were made with, so that the run can write text: that of another "
      .. "corpus, vocabulary.json of an earlier run or its folder, a folder with tokenizer.json or with vocab.json and "
      .. "merges.txt, or a SentencePiece model file",
      path = "read" },
  },
  check = function(a, report) check_documents("data.tokens", a, report) end,
  build = function(a)
    local ok, settings = pcall(tokenizer_of, a.vocabulary)
    if not ok then
      mistakes.record("data.tokens", "vocabulary", (errors.describe(settings)))
      return define.unknown
    end
    settings.kind, settings.path, settings.width = "tokens", a.path, a.width
    settings.vocabulary = a.vocab
    add_documents(settings, a)
    return open("data.tokens", settings, a)
  end,
}

-- What is wrong with the sources of a mixture, each { corpus, share }.
local function check_mixture(a, report)
  local first
  for i, source in ipairs(a) do
    local corpus, share = unpack(type(source) == "table" and source or {})
    if define.is_unknown(corpus) then return report() end
    if define.kind_of(corpus) ~= "corpus" or type(share) ~= "number" or share < 0 or share == math.huge then
      report(nil, ('data.mixture: item %d has to be { corpus, share }, such as { data.text "web.txt", 0.7 }'):format(
        i))
    else
      first = first or corpus
      if corpus.objective ~= first.objective or corpus.arguments.mask_share ~= first.arguments.mask_share
        or corpus.arguments.special_tokens ~= first.arguments.special_tokens then
        report(nil, "data.mixture: data.masked mixes with data.masked alone, of the same mask_share and "
          .. "special_tokens; and data.preferences with data.preferences")
      end
    end
  end
end

data.mixture = define.constructor {
  name = "data.mixture",
  sentence = "Several corpora with one vocabulary, and the share of the samples that each gives, in any unit. Shares "
    .. "hold in every batch as nearly as they can. What is held out of them is mixed alike.",
  example = 'data.mixture { { data.tokens "web.bin", 0.7 }, { data.tokens "code.bin", 0.3 } }',
  kind = "corpus", fields = {}, list = { "list", "corpora with their shares", least = 1 }, check = check_mixture,
  instead = { packing = "packing = true of the sources whose examples or documents shall share rows" },
  build = function(a)
    local settings, first = { kind = "mixture", sources = {} }, a[1][1]
    local sources = {}
    for i, source in ipairs(a) do
      settings.sources[i] = { corpus = source[1].native, weight = source[2] }
      sources[i] = source[1]
    end
    local mixed = open("data.mixture", settings, { mask_share = first.arguments.mask_share,
      special_tokens = first.arguments.special_tokens }, first.objective)
    if not define.is_unknown(mixed) then mixed.held, mixed.sources = mixed.native.holds_out and 1 or 0, sources end
    return mixed
  end,
}

for name, constructor in pairs(require "het.data.pairs") do data[name] = constructor end

return suggest.module("het.data", data)
