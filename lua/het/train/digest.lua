--- What the ranks of a run have to agree on, as texts that they compare when they join: an unnoticed
-- difference would give them different weights, or have them wait for each other for good.
local native = require "het.native"
local access = require "het.sandbox.access"
local define = require "het.language.define"
local options = require "het.language.options"
local text = require "het.text"

local digest = {}

-- Of het.train: places, names and files, which may differ from machine to machine. That there is a folder to save in
-- is agreed on beside them: all ranks take part in saving.
local own_affairs = { data = true, metrics = true, save = true, keep_best = true, rendezvous = true, name = true }

-- Of a corpus: where its files are on this machine.
local places = { path = true, model = true, vocabulary = true }

--- A hash of a tensor's contents, taken piece by piece.
function digest.hash_of(tensor)
  local ffi = require "ffi"
  tensor = tensor:contiguous()
  local first, bytes = native.address(tensor)
  local address, at, hashes = ffi.cast("const char *", first), 0, {}
  while at < bytes do
    local count = math.min(2 ^ 20, bytes - at)
    hashes[#hashes + 1] = ("%.0f"):format(native.hash(ffi.string(address + at, count)))
    at = at + count
  end
  return native.hash(table.concat(hashes, " "))
end

-- The lines of a function of the recipe, or of a file beside it; the library's are the same in each version.
local function lines_of(fn)
  local info = debug.getinfo(fn, "S")
  local path = info.source:match("^@(.*)$")
  -- A recipe that loads a text gives it any name: only files that it may read are read.
  if not path or path:match("^het%.") or access.problem(path) or native.path_kind(path) ~= "file" then
    return info.source .. ":" .. info.linedefined
  end
  local lines, number = {}, 0
  for line in (native.read_text(path) .. "\n"):gmatch("([^\n]*)\n") do
    number = number + 1
    if number >= info.linedefined and number <= info.lastlinedefined then lines[#lines + 1] = line end
  end
  return table.concat(lines, "\n")
end

local function is_tensor(value) return type(value) == "userdata" and pcall(function() return value:numel() end) end

-- The hash of a tensor; `hashes`: of those that were seen before, by tensor.
local function hash_once(tensor, hashes)
  hashes[tensor] = hashes[tensor] or digest.hash_of(tensor)
  return hashes[tensor]
end

local write

local function write_table(value, out, seen)
  out[#out + 1] = define.kind_of(value) .. " {"
  if define.kind_of(value) == "layer" then
    write({ value.class.name, value.arguments, value:own_parameters(), value:children(),
      value.class.own_forward or value.class.forward, value.hints or false, value.adapters or false }, out, seen)
  else
    for _, key in ipairs(text.keys(value)) do
      out[#out + 1] = "[" .. tostring(key) .. "]"
      write(value[key], out, seen)
    end
  end
  out[#out + 1] = "}"
end

function write(value, out, seen)
  local kind = type(value)
  if kind == "number" then
    out[#out + 1] = ("%.17g"):format(value)
  elseif kind == "string" then
    out[#out + 1] = ("%q"):format(value)
  elseif kind == "function" then
    out[#out + 1] = lines_of(value)
  elseif is_tensor(value) then
    out[#out + 1] = ("tensor %s %s %.0f"):format(value.dtype, text.shape(value.shape), hash_once(value, seen.hashes))
  elseif kind ~= "table" then
    out[#out + 1] = kind == "boolean" and tostring(value) or kind
  elseif seen[value] then
    out[#out + 1] = "as before: " .. seen[value]
  else
    seen.count = seen.count + 1
    seen[value] = seen.count
    write_table(value, out, seen)
  end
end

-- Any value of a recipe as text: equal values give equal texts, in every process.
local function text_of(value, hashes)
  local out = {}
  write(value, out, { count = 0, hashes = hashes })
  return table.concat(out, "\n")
end

-- The arguments of a run without its own affairs.
local function arguments_of(a)
  local arguments = { evaluate = {} }
  for name, value in pairs(a) do
    if name == "evaluate" then
      for field, inner in pairs(value) do
        if not own_affairs[field] then arguments.evaluate[field] = inner end
      end
    elseif not own_affairs[name] then
      arguments[name] = value
    end
  end
  return arguments
end

-- What the ranks compare of the recipe: all arguments of the run, and the options of the recipe, which its functions
-- may use. What is the machine's own is left out, also where an option says it.
local function recipe_of(a, arguments)
  local settings = native.settings or {}
  local compared = { saves = a.save ~= nil, keeps_best = a.keep_best ~= nil,
    resumes = not settings.elastic and settings.resume or false,   -- with --elastic all do where one does
    writes = a.sample ~= nil and not settings.quiet,
    traces = (settings.trace or "") ~= "", arguments = arguments, options = {} }
  local own = {}
  for name in pairs(own_affairs) do own[a[name] or false] = true end
  for _, data in ipairs { a.data, a.evaluate.data } do
    for name in pairs(places) do own[data.arguments[name] or false] = true end
  end
  for name, value in pairs(options.values()) do
    if not own[value] then compared.options[name] = value end
  end
  return compared
end

local function hex(hash) return ("%x"):format(hash):sub(-8) end

-- A value as messages show it: of functions, tensors and long texts what they are, and a hash of them; nil of others.
local function shown(value, hashes)
  local kind = type(value)
  if kind == "number" or kind == "boolean" then return text.value(value) end
  if kind == "string" then
    local is_short = #value <= 80 and not value:find "%c"
    return is_short and value or ("a string of %d bytes (hash %s)"):format(#value, hex(native.hash(value)))
  elseif kind == "function" then
    return ("a function (hash %s)"):format(hex(native.hash(lines_of(value))))
  elseif is_tensor(value) then
    return ("a tensor %s %s (hash %s)"):format(value.dtype, text.shape(value.shape), hex(hash_once(value, hashes)))
  end
  return nil
end

-- Settings as lines "name = value"; of objects those that they were made with.
local function list_settings(name, value, out, depth, hashes)
  local words = shown(value, hashes)
  if words then
    out[#out + 1] = ("%s = %s"):format(name, words)
  elseif type(value) == "table" and depth < 4 then
    local inner = value
    if debug.getmetatable(value) ~= nil then inner = rawget(value, "arguments") end
    for _, key in ipairs(type(inner) == "table" and text.keys(inner) or {}) do
      list_settings(("%s.%s"):format(name, tostring(key)), inner[key], out, depth + 1, hashes)
    end
  end
end

-- What the ranks compare of the data, by name: a corpus or pairs.
local function data_of(data)
  if define.kind_of(data) == "pairs" then return data.arguments end
  local compared = { objective = data.objective, vocab = data.vocab, tokens = data.tokens,
    [data.native.mixed_packs and "tokens and shares (hash)" or "tokens (hash)"] = data.native.fingerprint }
  for name, value in pairs(data.arguments) do
    if not places[name] then compared[name] = value end
  end
  return compared
end

local most_settings = 100   -- that ranks show each other

-- What a message on ranks that differ chooses from: a line "name = value" for each setting.
-- @tparam table groups values by name, each with what stands before their names
local function settings_of(groups, hashes)
  local out = {}
  for _, group in ipairs(groups) do
    for _, name in ipairs(text.keys(group.values)) do
      list_settings(group.prefix .. name, group.values[name], out, 1, hashes)
    end
  end
  return table.concat(out, "\n", 1, math.min(#out, most_settings))
end

--- What the ranks of a run compare when they join.
-- @tparam table a arguments of het.train
-- @treturn table `recipe` and `data`: all that has to be alike, as texts; `settings` and `data_settings`: lines "name =
-- value" of both, from which a message says what differs
function digest.of_run(a)
  local hashes, arguments, data = {}, arguments_of(a), data_of(a.data)
  local evaluated = a.evaluate.data and data_of(a.evaluate.data) or {}
  local settings = native.settings or {}
  local groups = { { prefix = "", values = arguments }, { prefix = "--", values = options.values() },
    { prefix = "--", values = settings.elastic and {} or { resume = settings.resume or false } } }
  return {
    recipe = text_of(recipe_of(a, arguments), hashes), settings = settings_of(groups, hashes),
    data = text_of({ data, evaluated }, hashes),
    data_settings = settings_of({ { prefix = "", values = data }, { prefix = "evaluate.data.", values = evaluated } },
      hashes),
  }
end

return digest
