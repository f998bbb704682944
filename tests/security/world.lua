--- What reachable.lua and ../fuzz/recipe_api.lua share: a recipe's environment in a trusted process, its objects
-- (objects.lua), hostile values, and the check that nothing a recipe reaches is more than it may hold.
local native = require "het.native"
local handle = require "het.sandbox.handle"
local sandbox = require "het.sandbox"

local world = {}

local objects_path = (debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or ".") .. "/objects.lua"
local objects_text = native.read_text(objects_path)   -- while it may be read

--- A folder with data to train on, which the library gives to recipes; nothing else but /usr is.
function world.folder()
  local folder = os.tmpname()
  os.remove(folder)
  native.make_folder(folder)
  local text = ("the quick brown fox jumps over the lazy dog.\n"):rep(30)
  native.write_text(folder .. "/text.txt", text)
  native.write_text(folder .. "/tokens.bin", (text:gsub(".", "%0\0")))
  native.settings.trust, native.settings.quiet, native.settings.json = false, true, true
  native.arguments = {}
  native.confine(folder .. "/world.lua", { words = {}, writes = { folder } })
  return folder
end

--- What is printed of failures: each once, whatever numbers it names.
-- @treturn function fail(what, why)
-- @treturn function count(): failures so far
function world.failures()
  local failed, count = {}, 0
  local function fail(what, why)
    local sentence = ("%s: %s"):format(what, why)
    local short = sentence:gsub("%d+", "#")
    if failed[short] then return end
    failed[short], count = true, count + 1
    native.write("stdout", "FAIL " .. sentence .. "\n")
  end
  return fail, function() return count end
end

--- The environment of a recipe in a folder.
function world.environment(folder)
  local environment = sandbox.environment(false, folder)
  rawset(environment, "print", function() end)
  return environment
end

--- Run objects.lua in an environment.
function world.objects(environment, folder, keep, inside)
  local chunk = assert(sandbox.load(objects_text, "@" .. objects_path, environment))
  local outcome = { pcall(chunk, function(name, value)
    keep(name, value)
    return value
  end, folder, inside) }
  require("het.language.mistakes").take()
  if not outcome[1] then error(tostring(outcome[2]), 0) end
  return outcome[2]
end

local cyclic = {}
cyclic[1], cyclic.name, cyclic.model, cyclic.prompt = cyclic, cyclic, cyclic, cyclic

--- Values that no documented argument is.
function world.hostile()
  local nested = {}
  for _ = 1, 150 do nested = { nested } end
  return {
    -1, 0, 0.5, 2 ^ 31, 2 ^ 53, -2 ^ 53, 2 ^ 63, 1e300, 0 / 0, math.huge, -math.huge, true, false, "", "\0", "a\0b",
    "..", "/etc/passwd", "%d%s%n", "train", ("x"):rep(5000), "\255\254", "tokens.weight", {}, { -1 },
    { 2 ^ 53, 2 ^ 53 }, { 0 / 0 }, { 1, 2, 3 }, { "a", "b" }, { {} }, cyclic, nested, { prompt = 5, tokens = -1 },
    function() error "hostile" end, function() return nil end, function(...) return ... end,
    coroutine.create(function() end), setmetatable({}, { __index = function() return 1 end }),
    setmetatable({}, { __index = function() error "index" end, __tostring = function() error "text" end }),
    setmetatable({ kind = "run", inner = {} }, { kind = "run", __metatable = "run" }),
    setmetatable({ kind = "layer" }, { kind = "layer", class = {} }),
  }
end

local plain_natives = { tensor = true, value = true }

-- The keys of a table, whatever its metatable: "builder children".
local function names_in(given)
  local names = {}
  for key in next, given do names[#names + 1] = tostring(key) end
  table.sort(names)
  return ("%q"):format(table.concat(names, " ", 1, math.min(#names, 20)))
end

--- Why a recipe may not hold a value, or nil. `own` is the set of metatables that recipes made.
function world.problem(value, environment, own)
  local kind = type(value)
  if kind == "userdata" then
    local name = debug.getmetatable(value) and getmetatable(value)
    if io.type(value) then return nil end   -- a file that the recipe opened
    return not plain_natives[name] and ("userdata of class %s"):format(tostring(name)) or nil
  end
  if kind == "cdata" then return "cdata" end
  if kind ~= "table" then return nil end
  local meta = debug.getmetatable(value)
  if not meta or own[meta] then return nil end
  local shown = environment.getmetatable(value)
  if type(shown) == "table" then
    return ("a metatable of the library, with the fields %s, of a table with %s"):format(names_in(shown),
      names_in(value))
  end
  if handle.is_protected(value) then
    if next(value) ~= nil then return "a handle that has a field" end
    for _, name in ipairs(meta.__names or {}) do
      if pcall(function() value[name] = 1 end) then return "a field that can be set: " .. name end
    end
    if meta.__names and pcall(function() value.anything = 1 end) then return "a field that can be added" end
    if pcall(environment.rawset, value, "anything", 1) then return "rawset" end
    if pcall(environment.setmetatable, value, {}) then return "setmetatable" end
    if pcall(environment.table.insert, value, 1) then return "table.insert" end
    return nil
  end
  -- Errors, the environment and its libraries have a name for a metatable, and hold plain values.
  if type(shown) ~= "string" then return "a table with a metatable that has no name" end
  if handle.kind(value) then return "an object of the library: a " .. handle.kind(value) end
  if not world.named[shown] then return "a table of the library with the metatable " .. shown end
end

world.named = { error = true, recipe = true, os = true, io = true, options = true, help = true, self = true,
  ["layer of self"] = true }

--- What may be read of a value: pairs of a name and a value.
function world.parts(value)
  local parts = {}
  if type(value) == "table" then
    for key, part in next, value do
      parts[#parts + 1] = { tostring(key), part }
      if type(key) == "table" or type(key) == "userdata" then parts[#parts + 1] = { "key", key } end
    end
    local meta = debug.getmetatable(value)
    if meta and handle.is_protected(value) then
      for _, name in ipairs(meta.__names or {}) do
        local ok, part = pcall(function() return value[name] end)
        if ok and part ~= nil then parts[#parts + 1] = { name, part } end
      end
    end
  elseif type(value) == "userdata" and debug.getmetatable(value) then
    for name in pairs(debug.getmetatable(value).methods or {}) do
      local ok, part = pcall(function() return value[name] end)
      if ok then parts[#parts + 1] = { name, part } end
    end
    for _, name in ipairs { "dtype", "shape", "name", "graph", "builder", "native", "state" } do
      local ok, part = pcall(function() return value[name] end)
      if ok and part ~= nil then parts[#parts + 1] = { name, part } end
    end
  end
  return parts
end

--- The kind of what a call raised, and its text.
function world.raised(problem)
  local kind = type(problem) == "table" and rawget(problem, "kind")
  local text = type(problem) == "table" and rawget(problem, "message") or problem
  return kind, tostring(type(text) == "table" and "a table" or text)
end

return world
