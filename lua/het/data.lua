--- `het.data`: what to train on. A corpus has `vocab` (number of different tokens) and gives batches.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local mistakes = require "het.language.mistakes"
local op = require "het.op"
local suggest = require "het.language.suggest"
local text = require "het.text"

local data = {}

local PairSampler = {}   -- batches of data.pairs
PairSampler.__index = PairSampler

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

-- Settings of a sampler that a recipe asks for.
local sampler_settings = define.constructor {
  name = "sampler", signature = 'corpus:sampler { context = 8, batch = 2 }',
  sentence = "Batches of a corpus: `next()` gives { inputs, labels, count }, lists of tensors, and of rows of several "
    .. "examples `starts`; `cursor()` how many samples were handed out, `seek(cursor)` goes on from there.",
  example = 'corpus:sampler { context = 8, batch = 2, split = "train" }:next()',
  fields = {
    { "context", "integer", "tokens of a sample", min = 1 },
    { "batch", "integer", "samples of a batch", default = 1, min = 1 },
    { "microbatch", "integer", "samples of a tensor; it divides the batch (default: batch)", min = 1 },
    { "split", "string", "which part", default = "train", choices = { "train", "holdout" } },
    { "seed", "integer", "of the order", default = 0, min = 0 },
    { "start", "integer", "cursor to begin at", default = 0, min = 0 },
    { "first", "integer", "first sample of each batch that is given, from 0", default = 0, min = 0 },
    { "count", "integer", "samples of each batch that are given (default: all from the first)", min = 1 },
  },
  check = function(a, report)
    local microbatch, first = a.microbatch or a.batch, a.first
    local count = a.count or a.batch - first
    if a.batch % microbatch ~= 0 then
      report("microbatch", ("sampler.microbatch = %.14g does not divide batch = %.14g; nearest that do: %s"):format(
        microbatch, a.batch, suggest.divisors(a.batch, microbatch)))
    elseif first + count > a.batch or count < 1 then
      report("first", ("sampler.first = %.14g and count = %.14g reach over the batch of %.14g"):format(first, count,
        a.batch))
    elseif first % microbatch ~= 0 or count % microbatch ~= 0 then
      report("first", ("sampler.first = %.14g and count = %.14g are not whole micro-batches of %.14g"):format(first,
        count, microbatch))
    end
  end,
  build = function(a)
    a.count = a.count or a.batch - a.first
    return a
  end,
}

-- A sampler as a recipe asks for it; its mistakes are raised.
local function checked_sampler(self, settings)
  local a = sampler_settings(settings == nil and {} or settings)
  mistakes.raise()
  if define.is_unknown(a) then return a end
  if define.kind_of(self) == "corpus" and not a.context then
    errors.usage("corpus:sampler needs 'context', the tokens of a sample")
  end
  return self:sampler(a)
end

define.object {
  name = "batches", kind = "sampler", classes = { PairSampler, "sampler" },
  sentence = "What hands out batches, as corpus:sampler { ... } returns it.",
  members = {
    { "next", "batches:next()", "The next batch: { inputs, labels, count }, lists of tensors, one for each "
      .. "micro-batch; `count` labels of the whole batch, over all ranks, count in the loss. With packing = true "
      .. "also `starts`: where in its row the example of each token begins. Of data.pairs with inputs by name, "
      .. "`inputs` is a list of tables." },
    { "cursor", "batches:cursor()", "Samples handed out so far." },
    { "seek", "batches:seek(cursor)", "Go on from a cursor." },
  },
  methods = {
    next = function(self) return self:next() end,
    cursor = function(self) return self:cursor() end,
    seek = function(self, cursor)
      define.expect("batches:seek", cursor, "integer")
      if cursor < 0 then errors.usage("batches:seek: a cursor of %.14g is below 0", cursor) end
      self:seek(cursor)
    end,
  },
}

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
  classes = { Corpus }, methods = { sampler = checked_sampler },
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

local function holdout_field(of, share)
  return { "holdout", "number", ("share of the %s, at the end, kept for validation (default: %s; 0 where het.train "
    .. "has other data to evaluate on, `evaluate.data`)"):format(of, share), min = 0, below = 1 }
end

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
  holdout_field("tokens", "0.1"),
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
  holdout_field("examples", "0.05"),
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
    holdout_field("tokens", "0.1"),
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

-- Pairs of tensors: rows are samples. { arguments, samples, held (rows at the end that are kept for validation),
-- name (of its constructor), classes (nil: the labels are no classes), pixels (the inputs are bytes, and come as
-- numbers from -2 to 2), is_divided (its files say which rows are held out) }.
local Pairs = {}
Pairs.__index = Pairs
Pairs.__tostring = function(self) return "pairs: " .. text.plural(self.samples, "sample") end

-- f of each of the inputs: of one tensor, or of several by name.
local function each_input(inputs, f)
  if type(inputs) ~= "table" then return f(inputs) end
  local made = {}
  for name, tensor in pairs(inputs) do made[name] = f(tensor) end
  return made
end

-- Rows of a tensor from sample number `at` on. Behind the last row that is held out come copies of it.
local function rows_of(self, tensor, at, count)
  if self.shuffled then return native.shuffled_rows(tensor, self.size, self.seed, at, count) end
  local left = math.max(0, math.min(count, self.size - at))
  local rows = left > 0 and op.slice(tensor, { dim = 0, start = self.first + at, length = left })
  if left == count then return rows end
  local copies = op.slice(tensor, { dim = 0, start = self.first + self.size - 1, length = 1 })
  while copies.shape[1] < count - left do copies = op.concat(copies, copies, { dim = 0 }) end
  copies = op.slice(copies, { dim = 0, start = 0, length = count - left })
  return rows and op.concat(rows, copies, { dim = 0 }) or copies
end

-- Labels of a batch that count in the loss, over all ranks: i32 labels other than -100; of other labels, samples.
local function counted_labels(self, at)
  if self.labels.dtype ~= "i32" then return self.batch end
  if not self.ignores then return self.batch * self.labels:numel() / self.labels.shape[1] end
  return native.counted_labels(rows_of(self, self.labels, at, self.batch):contiguous())
end

-- The batch that begins with sample number `at`.
local function batch_at(self, at)
  local batch = { inputs = {}, labels = {}, count = counted_labels(self, at), cursor = at }
  for i = 1, self.own / self.microbatch do
    local start = at + self.skipped + (i - 1) * self.microbatch
    batch.labels[i] = rows_of(self, self.labels, start, self.microbatch)
    batch.inputs[i] = each_input(self.inputs, function(tensor)
      local rows = rows_of(self, tensor, start, self.microbatch)
      if not self.pixels then return rows end
      return op.scale(op.shift(op.cast(rows, { dtype = "f32" }), { amount = -127.5 }), { factor = 4 / 255 })
    end)
  end
  return batch
end

--- The next batch. Training sees each row once in an epoch, in an order that seed and epoch decide; the rows held out
-- come once, as they stand. Sample number i is the same whatever the batch, and whichever rank has it.
--
-- The last rows held out may be fewer than a batch, which is then filled with copies of the last one: `filled` says how
-- many, and `copies` is a batch of nothing else, whose loss says what they add. Behind it batches have a count of 0.
function PairSampler:next()
  local at, left = self.at, self.shuffled and self.batch or self.size - self.at
  local batch = batch_at(self, at)
  self.at = at + self.batch
  if left <= 0 then
    batch.count = 0
  elseif left < self.batch then
    batch.filled, batch.copies = self.batch - left, batch_at(self, self.size)
  end
  return batch
end

--- Samples handed out so far.
function PairSampler:cursor() return self.at end

--- Go on from a cursor.
function PairSampler:seek(cursor) self.at = cursor end

--- It has no thread to end.
function PairSampler.close() end

function Pairs:sampler(settings)
  local a = self.arguments
  local held, train = self.held, self.samples - self.held
  local shuffled = settings.split ~= "holdout"
  local size = shuffled and train or held
  if shuffled and size < settings.batch then
    errors.usage("%s has %d samples to train on, fewer than a batch of %d; a smaller batch works", self.name, size,
      settings.batch)
  elseif size == 0 then
    errors.usage("%s holds no samples out; with holdout = 0.1 it does", self.name)
  end
  local inputs = each_input(a.inputs, function(tensor) return tensor:contiguous() end)
  local labels = a.labels:contiguous()
  local ignores = labels.dtype == "i32" and native.counted_labels(labels) < labels:numel()
  return setmetatable({ inputs = inputs, labels = labels, ignores = ignores, batch = settings.batch,
    microbatch = settings.microbatch or settings.batch, skipped = settings.first or 0,
    own = settings.count or settings.batch, at = settings.start or 0, size = size, shuffled = shuffled,
    seed = settings.seed or 0, first = shuffled and 0 or train, pixels = self.pixels }, PairSampler)
end

function Pairs:has_holdout() return self.held > 0 end

--- The same with all of it in one split, as Corpus:undivided. data.cifar10, whose files say which rows are held out,
-- stays divided.
function Pairs:undivided(split)
  if self.is_divided then return self end
  local all = setmetatable({}, Pairs)
  for name, value in pairs(self) do all[name] = value end
  all.held = split == "holdout" and self.samples or 0
  return all
end

--- The `holdout` that a recipe gave it; nil without, or of 0.
function Pairs:given_holdout()
  return (self.arguments.holdout or 0) > 0 and self.arguments.holdout or nil
end
function Pairs.vocabulary() return nil end

--- What the inputs of a batch are, whatever they are kept as: { dtype, shape of a row }, or these by name.
function Pairs:input_types()
  return each_input(self.arguments.inputs, function(tensor)
    return { self.pixels and "f32" or tensor.dtype, { unpack(tensor.shape, 2) } }
  end)
end

define.object {
  name = "pairs", kind = "pairs", sentence = "Inputs and labels to train on, as data.pairs, data.shapes and "
    .. "data.cifar10 return them.",
  members = {
    { "samples", "pairs.samples", "Number of rows." },
    { "classes", "pairs.classes", "Number of different labels of images: the model's `classes`." },
    { "has_holdout", "pairs:has_holdout()", "Whether a part is held out for validation." },
    { "sampler", "pairs:sampler { batch =, split = }", "Batches of \"train\" or \"holdout\": its `next()` gives "
      .. "{ inputs, labels, count }, lists of tensors." },
  },
  classes = { Pairs }, methods = { sampler = checked_sampler },
}

-- Rows that a share holds out (default: 0.1). 29 / 100 of 100 rows are 29, though as numbers a little less.
local function rows_held(rows, share) return math.floor(rows * (share or 0.1) + 1e-6) end

-- What is wrong with inputs by name; nil of a tensor.
local function inputs_problem(inputs)
  if type(inputs) ~= "table" then return nil end
  local names = debug.getmetatable(inputs) == nil and text.keys(inputs) or {}
  if #names == 0 then return "data.pairs.inputs: a tensor or tensors by name are needed, such as { ids = ids }" end
  for _, name in ipairs(names) do
    if type(name) ~= "string" or not name:match "^[%a_][%w_]*$" then
      return ("data.pairs.inputs has the name %s; a name of letters, digits and _ is needed"):format(text.value(name))
    elseif not define.accepts("tensor", inputs[name]) then
      return ("data.pairs.inputs.%s = %s; a tensor is needed"):format(name, text.value(inputs[name]))
    end
  end
end

data.pairs = define.constructor {
  name = "data.pairs",
  sentence = "Inputs and what should come out, as two tensors whose rows are the samples.",
  example = "data.pairs { inputs = x, labels = y }",
  kind = "pairs",
  fields = {
    { "inputs", "tensor|table", "tensor [samples, ...]; or several by name, which a model of nn.layer gets as a table: "
      .. "{ ids = ids, mask = mask }", required = true },
    { "labels", "tensor", "tensor [samples, ...]; i32 labels that are -100 are ignored, and the loss is the mean over "
      .. "the others", required = true },
    holdout_field("samples", "0.1"),
  },
  check = function(a, report)
    local problem = inputs_problem(a.inputs)
    if problem then return report("inputs", problem) end
    local all = { labels = a.labels }
    if type(a.inputs) == "table" then
      for name, tensor in pairs(a.inputs) do all["inputs." .. name] = tensor end
    else
      all.inputs = a.inputs
    end
    for _, name in ipairs(text.keys(all)) do
      if (all[name].shape[1] or 0) == 0 then
        report(name:match "^%w+", ("data.pairs.%s has the shape %s; a tensor with a row for each sample is needed")
          :format(name, text.shape(all[name].shape)))
        return
      end
    end
    for _, name in ipairs(text.keys(all)) do
      local tensor = all[name]
      if tensor.shape[1] ~= a.labels.shape[1] then
        report("labels", ("data.pairs: %d %s but %d labels (shapes %s and %s)"):format(tensor.shape[1], name,
          a.labels.shape[1], text.shape(tensor.shape), text.shape(a.labels.shape)))
        return
      end
    end
  end,
  build = function(a)
    local samples = a.labels.shape[1]
    return setmetatable({ arguments = a, samples = samples, held = rows_held(samples, a.holdout),
      name = "data.pairs" }, Pairs)
  end,
}

-- Images by the engine; what is wrong with their files is a mistake of the recipe like any other.
local function open_images(constructor, settings, field, classes)
  local ok, pixels, labels, held = pcall(native.images, settings)
  if not ok then
    local message, kind = errors.describe(pixels)
    if kind ~= "usage" then error(pixels, 0) end
    mistakes.record(constructor, field, message)
    return define.unknown
  end
  return setmetatable({ arguments = { inputs = pixels, labels = labels }, samples = pixels.shape[1], held = held,
    classes = classes, pixels = true, name = constructor }, Pairs)
end

data.shapes = define.constructor {
  name = "data.shapes",
  sentence = "Drawn images to try a model on: a shape in a colour on another colour, with noise; the label says which. "
    .. "Images come as numbers from -2 to 2, [samples, 3, size, size].",
  example = "data.shapes { samples = 4000, size = 32, classes = 10 }",
  kind = "pairs",
  fields = {
    { "samples", "integer", "images to draw", default = 4000, min = 1, max = 10 ^ 6 },
    { "size", "integer", "their height and width", default = 32, min = 8, max = 1024 },
    { "classes", "integer", "different shapes: disk, ring, square, frame, diamond, triangle, cross, diagonal cross, "
      .. "bars, columns", default = 10, min = 1, max = 10 },
    { "seed", "integer", "of what is drawn", default = 0, min = 0 },
    holdout_field("images", "0.1"),
  },
  build = function(a)
    local images = open_images("data.shapes", { kind = "shapes", count = a.samples, size = a.size, classes = a.classes,
      seed = a.seed }, "samples", a.classes)
    if not define.is_unknown(images) then
      images.held, images.arguments.holdout = rows_held(a.samples, a.holdout), a.holdout
    end
    return images
  end,
}

data.cifar10 = define.constructor {
  name = "data.cifar10",
  sentence = "CIFAR-10 from the folder of its binary version (data_batch_1.bin to data_batch_5.bin, test_batch.bin); "
    .. "the test images are held out. Images come as numbers from -2 to 2, [samples, 3, 32, 32].",
  example = 'data.cifar10 { path = "cifar-10-batches-bin" }',
  kind = "pairs", positional = 1,
  fields = { { "path", "string", "the folder", required = true, path = "read" } },
  build = function(a)
    local images = open_images("data.cifar10", { kind = "cifar10", path = a.path }, "path", 10)
    if not define.is_unknown(images) then images.is_divided = true end
    return images
  end,
}

return suggest.module("het.data", data)
