--- Text from a model. The prompt is fed in chunks of a few lengths, each with a separate graph, keys and values are
-- kept in caches, and every further token costs one position. When the context is full, the last half of it is fed
-- again from position 0. Models that mix positions in other ways, and those of a recipe's own layers, are computed from
-- the start for each token.
local native = require "het.native"
local builder = require "het.nn.builder"
local define = require "het.language.define"
local errors = require "het.errors"
local rope = require "het.nn.rope"
local text = require "het.text"

local generate = {}

-- Caches are as long as a text needs, in whole numbers of this many tokens, so that texts of like lengths share them.
local cache_step = 64

-- Lengths of the chunks a prompt is fed in: few graphs, and few of them long.
local chunk_sizes = { 64, 16, 4, 1 }

local Generator = {}
Generator.__index = Generator

local function is_layer(model) return define.kind_of(model) == "layer" end

--- Why a model cannot write text, as a sentence; nil when it can.
-- @param model a layer or a function
-- @param[opt] data what it is trained on
function generate.problem(model, data)
  if data and define.kind_of(data) ~= "corpus" then return "only runs on text can generate text" end
  local masked = data and data.objective == "masked" or is_layer(model) and model.class.model and not model.class.last
  return masked and "this model guesses masked tokens; models that predict the next token write text" or nil
end

--- Tokens of the longest text that a model, or a function, computes as a short one.
function generate.most_short(model)
  local least = math.huge
  if is_layer(model) then
    model:walk(function(layer) least = math.min(least, rope.most_short(layer.arguments.scaling)) end)
  end
  return least
end

--- A generator over weights in a state.
-- @tparam table settings `model`, `state`, `precision`; of a model that does not say them also `context`, `vocab` and
-- `ends`, a set of the token ids that end a text
function generate.new(settings)
  local model = settings.model
  local problem = generate.problem(model)
  if problem then errors.usage("%s", problem) end
  local last = is_layer(model) and model.class.last
  local own = last and model.arguments or settings
  return setmetatable({
    model = model, state = settings.state, precision = settings.precision or "f32", longest = own.context,
    vocab = own.vocab, last = last, executors = {}, incremental = last and model:is_incremental() or false,
    most_short = generate.most_short(model), ends = is_layer(model) and rawget(model, "ends") or settings.ends or {},
  }, Generator)
end

--- Raise where a context is asked for that the model does not have.
-- @int[opt] wanted
function Generator:check_context(wanted)
  if wanted and wanted > self.longest then
    errors.usage("generate.context = %d is more than the model's context = %d", wanted, self.longest)
  end
end

-- Make room for a text of `count` tokens: it and its cache are never longer than the context asked for, or the
-- model's own. A model without a cache may depend on the length of its input, so that it gets a whole context.
local function fit(self, count, wanted)
  self:check_context(wanted)
  local most = wanted or self.longest
  if self.incremental then most = math.min(most, math.ceil(count / cache_step) * cache_step) end
  if most == self.context then return end
  self.context, self.executors = most, {}
  for _, entry in ipairs(self.state:names()) do
    if entry.name:match("^cache%.") then self.state:drop(entry.name) end
  end
end

-- list[first .. last] as a new list. (`{ unpack(list) }` fails at about 8,000: all of it would be on Lua's stack.)
local function copy(list, first, last)
  local result = {}
  for i = first or 1, last or #list do result[#result + 1] = list[i] end
  return result
end

-- Logits of tokens: [1, count or 1, vocab].
local function logits_of(self, b, tokens)
  local model = self.model
  if self.last then return (self.incremental and self.last or model.class.forward)(model:bind(b), tokens) end
  b:begin_layer("model")
  local result = b:call(model, nil, false, tokens)
  local wanted = { 1, tokens.shape[2], self.vocab }
  if text.shape(result.shape) ~= text.shape(wanted) then
    errors.usage("text needs %s from the model, a number for each token that may follow; it gives %s",
      text.shape(wanted), text.shape(result.shape))
  end
  return result
end

-- The executor that takes `count` tokens of a text of `length`, made on first use.
function Generator:executor(count, length)
  local is_long = length > self.most_short
  local key = is_long and -count or count
  if self.executors[key] then return self.executors[key] end
  local incremental = self.incremental
  local b = builder.new {
    precision = self.precision, mode = incremental and "generate" or "evaluate",
    cache = incremental and { length = self.context } or nil,
    sequence = self.most_short < math.huge and (is_long and math.huge or 1) or nil,
  }
  local tokens = b.graph:input("tokens", "i32", { 1, count })
  b.graph:output("logits", logits_of(self, b, tokens))
  local made = {
    run = native.executor(native.program(b.graph, { microbatches = 1 }), self.state),
    positions = b.values["input:positions"] ~= nil, position = b.values["input:position"] ~= nil,
    counter = b.values["input:counter"] ~= nil,
  }
  self.executors[key] = made
  return made
end

-- Run ids that stand at a position of a text; returns a row of logits for each output position.
local function run(self, ids, position, length)
  local made = self:executor(#ids, length)
  made.run:write("tokens", native.tensor(ids, "i32", { 1, #ids }), 1)
  if made.positions then made.run:write("positions", native.arange(#ids, "i32", position)) end
  if made.counter then made.run:write("counter", native.tensor({ 0, 0 }, "i64"), 1) end   -- the same draws each time
  if made.position then made.run:write("position", native.tensor({ position }, "i32")) end
  if not made.run:run() then errors.raise("interrupted", "interrupted") end
  return made.run:read("logits")[1]
end

-- Feed ids at a position of the cache, of a text of `length`; returns the last one's logits.
function Generator:feed(ids, position, length) return run(self, ids, position, length)[1] end

-- Without a cache: the whole context, filled up behind the ids, where causal models do not look.
function Generator:feed_whole(ids)
  local padded = copy(ids)
  for i = #ids + 1, self.context do padded[i] = 0 end
  return run(self, padded, 0, #ids)[#ids]
end

-- Feed all ids of a text, in chunks; returns the last one's logits.
function Generator:feed_all(ids)
  local logits
  local at = 1
  for _, size in ipairs(chunk_sizes) do
    while #ids - at + 1 >= size do
      logits = self:feed(copy(ids, at, at + size - 1), at - 1, #ids)
      at = at + size
    end
  end
  return logits
end

--- Ids that follow the prompt's.
-- @tparam {int,...} prompt at least one id
-- @tparam table options `tokens`, `context`, `temperature`, `top_k`, `top_p`, `seed`
-- @tparam[opt] function emit called with each id as it is drawn; the text ends when it returns "end"
-- @tparam[opt] int known ids from 0 on that may be drawn (default: all)
function Generator:ids(prompt, options, emit, known)
  fit(self, #prompt + options.tokens, options.context)
  local all, made = copy(prompt), {}
  local logits, position
  local function refill(keep)
    local first = math.max(1, #all - keep + 1)
    local ids = copy(all, first)
    if self.incremental then logits = self:feed_all(ids) else logits = self:feed_whole(ids) end
    position = #all - first + 1
  end
  local turn = {}
  self.turn = turn
  refill(self.incremental and math.max(1, math.min(#all, self.context - 1)) or self.context)
  for i = 1, options.tokens do
    if native.interrupted() then errors.raise("interrupted", "interrupted") end
    local id = native.draw(logits, options.temperature, options.top_k, options.top_p,
      native.random(options.seed, 0x67656e, i), known)
    all[#all + 1], made[#made + 1] = id, id
    local ends = emit and emit(id) == "end"
    if self.turn ~= turn then
      errors.usage("another text was begun before this one ended; generate cannot be called from a function that "
        .. "it calls")
    end
    if ends then
      made[#made] = nil
      break
    end
    if i < options.tokens then
      if not self.incremental then
        refill(self.context)
      elseif position >= self.context then
        refill(math.floor(self.context / 2) + 1)
      elseif position == self.most_short then
        refill(position + 1)   -- with the frequencies of a long text
      else
        logits = self:feed({ id }, position, position + 1)
        position = position + 1
      end
    end
  end
  return made
end

--- The fields of everything that generates.
generate.fields = {
  { "prompt", "string", "text to begin with (default: a line break; the vocabulary's first character if it has none)" },
  { "tokens", "integer", "how many tokens to write", default = 300, min = 1 },
  { "context", "integer", "tokens that it looks back at; fewer take less memory (default: the model's context)",
    min = 1 },
  { "temperature", "number", "0: greedy; 1: the model's own distribution", default = 0.8, min = 0 },
  { "top_k", "integer", "choose among this many of the likeliest (default: all)", min = 1 },
  { "top_p", "number", "choose among the likeliest that have this share of the probability", default = 1, above = 0,
    max = 1 },
  { "seed", "integer", "of the sampling", default = 1337, min = 0 },
}

--- What a text begins with by default: a line break, or the first token of a vocabulary without one.
-- @param tokenizer something with encode and decode
function generate.default_prompt(tokenizer)
  local ok, ids = pcall(tokenizer.encode, tokenizer, "\n")
  if ok and #ids > 0 then return "\n" end
  return tokenizer:decode { 0 }
end

--- Write text: prompt and what follows, decoded with a corpus. Tokens that are no text, such as <|im_start|>, are left
-- out.
-- @param corpus something with encode, decode, prefix and special
-- @tparam table options see `generate.fields`; `begins`: nothing stands before the prompt, which a chat template wrote
-- @tparam[opt] function emit called with pieces of text as they come
-- @tparam[opt] function count called for each token that the model writes, also for those that are left out
-- @treturn string what follows the prompt
function Generator:text(corpus, options, emit, count)
  local prompt = options.begins and {} or corpus:prefix()
  for _, id in ipairs(corpus:encode(options.prompt or generate.default_prompt(corpus))) do prompt[#prompt + 1] = id end
  if #prompt == 0 then errors.usage("the prompt is empty; give at least one character") end
  for _, id in ipairs(prompt) do
    if id >= self.vocab then errors.usage("the prompt has token %d, the model knows %d", id, self.vocab) end
  end
  -- A character may be spread over several tokens, and some begin with a space that the first of a text lacks: what is
  -- decoded is always the whole, from the prompt's last token on, and its new end is emitted.
  local ids = { prompt[#prompt] }
  local before, special = #corpus:decode(ids), {}
  local shown = before
  for _, id in ipairs(corpus:special()) do special[id] = true end
  self:ids(prompt, options, function(id)
    if self.ends[id] then return "end" end
    if count then count() end
    if special[id] then return nil end
    ids[#ids + 1] = id
    if emit then
      local whole = corpus:decode(ids)
      local ready = whole:match("^(.-)\239\191\189*$") or whole
      local tail = ready:match "[\194-\244][\128-\191]*$"   -- of bytes: a character that has begun
      local lead = tail and tail:byte() or 0
      if tail and #tail < (lead >= 240 and 4 or lead >= 224 and 3 or 2) then ready = ready:sub(1, -#tail - 1) end
      if #ready > shown then
        emit(ready:sub(shown + 1))
        shown = #ready
      end
    end
  end, corpus.known or corpus.vocab)   -- a model may have more tokens than its vocabulary
  local result = corpus:decode(ids)
  if emit and #result > shown then emit(result:sub(shown + 1)) end
  return result:sub(before + 1)
end

local arguments_of = define.constructor {
  name = "generate",
  signature = "model:generate { ... }",
  sentence = "Text from a model that het.load returned: the prompt and what follows. A run writes likewise with the "
    .. "weights that it has, run:generate { ... }.",
  example = 'print(het.load("runs/shakespeare"):generate { prompt = "ROMEO:" })',
  fields = generate.fields,
  build = function(a) return a end,
}

--- All of `generate.fields` with defaults, of what was given; mistakes are raised.
function generate.arguments(options)
  local a = arguments_of(options == nil and {} or options)
  require("het.language.mistakes").raise()
  if define.is_unknown(a) then errors.usage("generate was given the result of a mistake") end
  return a
end

--- The tokenizer saved beside a model; what is wrong with it is an error that names the folder.
-- @string folder
-- @param vocabulary of that folder, or nil
function generate.tokenizer_of(folder, vocabulary)
  if vocabulary then return native.tokenizer(vocabulary) end
  errors.usage("%s has neither vocabulary.json nor tokenizer.json; without them text cannot be encoded", folder)
end

--- A state that reads the weights of a saved model.
-- @string folder
-- @param model its description
function generate.state_of(folder, model)
  local state = native.state(native.device(native.settings and native.settings.device or "cpu"), 0)
  require("het.model.load").set_initial_weights(folder, model, state)
  return state
end

--- Text from a loaded model (het.load), with the vocabulary that was saved beside it.
-- @param model the description that het.load returned
-- @tparam table options see `generate.fields`
-- @treturn string prompt and what follows
function generate.from_model(model, options)
  local a = generate.arguments(options)
  if not rawget(model, "folder") then
    errors.usage("this model has no weights yet; train it, or load one: het.load(folder)")
  end
  local tokenizer = generate.tokenizer_of(model.folder, rawget(model, "saved_vocabulary"))
  if not rawget(model, "state") then rawset(model, "state", generate.state_of(model.folder, model)) end
  local generator = generate.new { model = model, state = model.state }
  a.prompt = a.prompt or generate.default_prompt(tokenizer)
  return a.prompt .. generator:text(tokenizer, a)
end

return generate
