--- What corpora and pairs have in common: the field for the part that is held out, and the batches that recipes ask
-- for. The engine hands out those of a corpus; PairSampler hands out those of pairs.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local mistakes = require "het.language.mistakes"
local op = require "het.op"
local suggest = require "het.language.suggest"

local batches = {}

--- The field `holdout` of a constructor.
-- @string of what is held out: "tokens"
-- @string share the default
function batches.holdout_field(of, share)
  return { "holdout", "number", ("share of the %s, at the end, kept for validation (default: %s; 0 where het.train "
    .. "has other data to evaluate on, `evaluate.data`)"):format(of, share), min = 0, below = 1 }
end

--- f of each of the inputs: of one tensor, or of several by name.
function batches.each_input(inputs, f)
  if type(inputs) ~= "table" then return f(inputs) end
  local made = {}
  for name, tensor in pairs(inputs) do made[name] = f(tensor) end
  return made
end

local PairSampler = {}   -- batches of data.pairs
PairSampler.__index = PairSampler

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
    batch.inputs[i] = batches.each_input(self.inputs, function(tensor)
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

--- A sampler of the rows of tensors.
-- @tparam table fields `inputs`, `labels`, `ignores` (some labels do not count), `batch`, `microbatch`, `skipped`
-- (samples of each batch before those that this rank runs), `own` (how many it runs), `at` (the cursor), `first` and
-- `size` (rows of the split), `shuffled`, `seed`, `pixels`
function batches.of_rows(fields) return setmetatable(fields, PairSampler) end

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

--- The method `sampler` of corpora and pairs, as a recipe calls it; its mistakes are raised.
function batches.checked_sampler(self, settings)
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

return batches
