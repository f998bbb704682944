--- A model's folder written as another: `hetrun merge ADAPTERS MODEL`, with its adapters merged, and `hetrun convert
-- FOLDER TO`, in another precision or in files of a given size.
local native = require "het.native"
local adapter = require "het.model.adapter"
local errors = require "het.errors"
local families = require "het.families"
local files = require "het.model.folder"
local loader = require "het.model.load"
local writer = require "het.model.write"
local stored_as = require "het.model.precision"
local subcommand = require "het.program.subcommand"
local text = require "het.text"

local convert = {}

local function say(format, ...) native.write("stdout", format:format(...) .. "\n") end

-- The options given, and a sentence for each mistake.
local function take(options, words, usage)
  local given, problems = subcommand.take(options, words)
  local names = {}
  for i, option in ipairs(options) do names[i] = "--" .. option[1] end
  for _, word in ipairs(native.arguments or {}) do
    problems[#problems + 1] = ("there is no option %s; there %s %s"):format(word, #names == 1 and "is" or "are",
      table.concat(names, ", "))
  end
  if #words ~= 2 then problems[#problems + 1] = "two folders are needed: " .. usage end
  return given, problems
end

local function raise(command, problems)
  if #problems > 0 then errors.usage("hetrun %s:\n  %s", command, table.concat(problems, "\n  ")) end
end

local function help(sentence, options)
  say("%s\n", sentence)
  for _, option in ipairs(options) do say("  %-20s %s", "--" .. option[1] .. "=" .. option[2], option[3]) end
  return 0
end

local of_merge = {
  { "base", "FOLDER", "the base model (default: the one that adapter_config.json names)" },
  { "precision", "bf16", "of the weights: f32, bf16 or f16 (default: that of the base model)" },
}

-- A sentence about a precision that there is not.
local function check_precision(given, problems)
  if given.precision and not stored_as.names[given.precision] then
    problems[#problems + 1] = ("--precision=%s is not f32, bf16 or f16"):format(given.precision)
  end
end

-- Refuse adapters of a model that no folder describes.
local function expect_described(folder, base, to)
  local found, config = pcall(files.read_config, base or adapter.read_config(folder).base or folder)
  if not found or type(config) ~= "table" or config.model_type ~= "hetrun" then return end
  errors.usage("%s holds adapters of a model that only a recipe describes: run:save(%q, { merge = true }) in that "
    .. "recipe, as in its `after`, writes the model with them", folder, to)
end

--- `hetrun merge ADAPTERS MODEL`. Returns the exit code.
function convert.merge(...)
  if native.settings.help then
    return help("hetrun merge ADAPTERS MODEL writes the base model with what its adapters (nn.lora, PEFT) add into the "
      .. "folder\nMODEL.", of_merge)
  end
  local words = { ... }
  local given, problems = take(of_merge, words, "hetrun merge ADAPTERS MODEL")
  check_precision(given, problems)
  raise("merge", problems)
  local folder, to = words[1], words[2]
  if adapter.is_in(folder) then expect_described(folder, given.base, to) end
  local model = loader.load(folder, given.base and { base = given.base } or nil)
  require("het.language.mistakes").raise()
  if not rawget(model, "lora") then errors.usage("%s holds no adapters", folder) end
  files.expect_free(to)
  local stored, list = {}, {}
  loader.set_initial_weights(folder, model, { set_initial = function(_, name, tensor)
    stored[name], list[#list + 1] = tensor, { name = name, trained = true }
  end })
  local precision = writer.save_merged(to, model, { names = function() return list end, read = function(_, name)
    return stored[name]:read()
  end }, nil, given.precision)
  if not native.settings.quiet then
    say("%s: the model of %s with its adapters merged%s", to, model.lora.base.folder,
      precision == "f32" and "" or ", in " .. precision)
  end
  return 0
end

local precisions, floats = stored_as.names, stored_as.floats
local widths = { f64 = 8, f32 = 4, bf16 = 2, f16 = 2, i64 = 8, i32 = 4, u8 = 1, bool = 1 }   -- bytes of an element

local of_convert = {
  { "precision", "bf16", "of the weights: f32, bf16 or f16 (default: as they are)" },
  { "shard", "5GB", "bytes of a file of weights at most (default: one file holds all)" },
}

-- The dtype that a stored tensor is written in: integers stay.
local function dtype_of(stored, precision) return precision and floats[stored.dtype] and precision or stored.dtype end

-- Bytes of a stored tensor when it is written.
local function bytes_of(stored, precision)
  local bytes = widths[dtype_of(stored, precision)]
  for _, size in ipairs(stored.shape) do bytes = bytes * size end
  return bytes
end

-- Names of the tensors of each file, with `limit` bytes at most; a tensor above it has a file alone. And all bytes.
local function shards_of(tensors, precision, limit)
  local shards, room, total = {}, -1, 0
  for _, name in ipairs(text.keys(tensors)) do
    local bytes = bytes_of(tensors[name], precision)
    if #shards == 0 or bytes > room then shards[#shards + 1], room = {}, limit end
    table.insert(shards[#shards], name)
    room, total = room - bytes, total + bytes
  end
  return shards, total
end

-- Refuse values that f16 does not hold, before anything is written.
local function expect_in_f16(tensors)
  for _, name in ipairs(text.keys(tensors)) do
    local stored = tensors[name]
    local largest = floats[stored.dtype] and stored.dtype ~= "f16" and stored_as.greatest(stored:read()) or 0
    if largest > stored_as.greatest_f16 then
      errors.usage("'%s' has the value %.6g, and f16 holds %d at most; --precision=bf16 holds it", name, largest,
        stored_as.greatest_f16)
    end
  end
end

-- Write the weights: one file, or several with an index, one after the other. Returns bytes and files.
local function write_weights(to, tensors, metadata, precision, limit)
  local shards, total = shards_of(tensors, precision, limit)
  local files_of = {}
  for i, names in ipairs(shards) do
    local file = #shards == 1 and "model.safetensors" or ("model-%05d-of-%05d.safetensors"):format(i, #shards)
    local contents = {}
    for _, name in ipairs(names) do
      local tensor = tensors[name]:read()
      contents[name], files_of[name] = tensor:to(dtype_of(tensor, precision)), file
    end
    native.save_files({ { path = to .. "/" .. file, tensors = contents, metadata = metadata } }):wait()
    collectgarbage()   -- lets go of this file's tensors
  end
  if #shards > 1 then
    local index = { metadata = { total_size = total }, weight_map = files_of }
    native.save_files({ { path = to .. "/" .. files.index, json = index } }):wait()
  end
  return total, #shards
end

--- `hetrun convert FOLDER TO`. Returns the exit code.
function convert.convert(...)
  if native.settings.help then
    return help("hetrun convert FOLDER TO writes the model of a folder that hetrun saved, or of Hugging Face's, into "
      .. "the folder\nTO, with its configuration and tokenizer, for hetrun, transformers and vLLM.", of_convert)
  end
  local words = { ... }
  local given, problems = take(of_convert, words, "hetrun convert FOLDER TO")
  local precision = given.precision
  check_precision(given, problems)
  local sized, limit = pcall(native.parse_bytes, given.shard or "0")
  if not sized then problems[#problems + 1] = "--shard: " .. errors.describe(limit) end
  raise("convert", problems)
  local from, to = words[1], words[2]
  if adapter.is_in(from) then
    errors.usage("%s holds adapters; hetrun merge %s MODEL writes the model with them", from, from)
  end
  local tensors, metadata, config = files.weights(from)
  metadata.format = metadata.format or "pt"   -- which transformers looks for
  files.expect_free(to)
  if precision == "f16" then expect_in_f16(tensors) end
  native.make_folder(to)
  local bytes, count = write_weights(to, tensors, metadata, precision, given.shard and limit or math.huge)
  local set = { { path = to .. "/config.json",
    text = precision and families.text_with_dtype(config, precisions[precision]) or config } }
  for name, words_of_file in pairs(files.beside_weights(from)) do
    set[#set + 1] = { path = to .. "/" .. name, text = words_of_file }
  end
  native.save_files(set):wait()
  if not native.settings.quiet then
    say("%s: the model of %s in %s, %s", to, from, count == 1 and "one file" or count .. " files", text.bytes(bytes))
  end
  return 0
end

return convert
