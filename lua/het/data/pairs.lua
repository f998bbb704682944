--- Pairs: inputs and labels to train on as tensors, whose rows are the samples. data.pairs has those of a recipe,
-- data.shapes and data.cifar10 have images.
local native = require "het.native"
local batches = require "het.data.batches"
local define = require "het.language.define"
local errors = require "het.errors"
local mistakes = require "het.language.mistakes"
local text = require "het.text"

local constructors = {}   -- of het.data

-- Pairs: { arguments, samples, held (rows at the end that are kept for validation), name (of its constructor), classes
-- (nil: the labels are no classes), pixels (the inputs are bytes, and come as numbers from -2 to 2), is_divided (its
-- files say which rows are held out) }.
local Pairs = {}
Pairs.__index = Pairs
Pairs.__tostring = function(self) return "pairs: " .. text.plural(self.samples, "sample") end

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
  local inputs = batches.each_input(a.inputs, function(tensor) return tensor:contiguous() end)
  local labels = a.labels:contiguous()
  local ignores = labels.dtype == "i32" and native.counted_labels(labels) < labels:numel()
  return batches.of_rows { inputs = inputs, labels = labels, ignores = ignores, batch = settings.batch,
    microbatch = settings.microbatch or settings.batch, skipped = settings.first or 0,
    own = settings.count or settings.batch, at = settings.start or 0, size = size, shuffled = shuffled,
    seed = settings.seed or 0, first = shuffled and 0 or train, pixels = self.pixels }
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
  return batches.each_input(self.arguments.inputs, function(tensor)
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
  classes = { Pairs }, methods = { sampler = batches.checked_sampler },
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

constructors.pairs = define.constructor {
  name = "data.pairs",
  sentence = "Inputs and what should come out, as two tensors whose rows are the samples.",
  example = "data.pairs { inputs = x, labels = y }",
  kind = "pairs",
  fields = {
    { "inputs", "tensor|table", "tensor [samples, ...]; or several by name, which a model of nn.layer gets as a table: "
      .. "{ ids = ids, mask = mask }", required = true },
    { "labels", "tensor", "tensor [samples, ...]; i32 labels that are -100 are ignored, and the loss is the mean over "
      .. "the others", required = true },
    batches.holdout_field("samples", "0.1"),
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

constructors.shapes = define.constructor {
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
    batches.holdout_field("images", "0.1"),
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

constructors.cifar10 = define.constructor {
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

return constructors
