--- The first wall around recipes: the globals that they see. Recipes are shared between strangers: by default one sees
-- `het` and Lua's safe libraries, nothing that starts programs, loads machine code or looks into the library. Files are
-- opened by lua/recipe_files.h's rules; the second wall is the kernel's (lua/confine.h). `--trust` lifts both.
local native = require "het.native"
local errors = require "het.errors"
local handle = require "het.sandbox.handle"

local sandbox = {}

-- The string metatable is shared with recipes, and through it these would be reached.
rawset(string, "dump", nil)
getmetatable("").__metatable = "string"

local function copy(library, names)
  local result = {}
  for name in names:gmatch "%S+" do result[name] = library[name] end
  return result
end

-- Text as `print` and io.write put it together.
local function joined(separator, ...)
  local parts = { ... }
  for i = 1, select("#", ...) do parts[i] = tostring(parts[i]) end
  return table.concat(parts, separator)
end

--- io.open, io.lines and io.write of a recipe.
local function restricted_io()
  return {
    open = function(path, mode)
      if type(path) ~= "string" or mode ~= nil and type(mode) ~= "string" then
        errors.usage('io.open takes a path and a mode, as in io.open("runs/mine/notes.txt", "w")')
      end
      return native.open_file(path, mode)
    end,
    lines = function(path)
      if type(path) ~= "string" then errors.usage "io.lines takes a path" end
      local file, problem = native.open_file(path)
      if not file then errors.usage("io.lines: %s", problem) end
      return file:lines(true)
    end,
    write = function(...) native.write("stdout", joined("", ...)) end,
  }
end

--- What a library has beyond what recipes see is named with the reason.
local function limited(name, library)
  return setmetatable(library, {
    __metatable = name,
    __index = function(_, key)
      error(("%s.%s is not for recipes; hetrun --trust lets a recipe use all of Lua"):format(name, tostring(key)), 2)
    end,
  })
end

local function keys_of(...)
  local names = {}
  for i = 1, select("#", ...) do
    for name in pairs((select(i, ...))) do
      if type(name) == "string" then names[#names + 1] = name end
    end
  end
  table.sort(names)
  return names
end

-- What a recipe may mean that reads a global which does not exist, as the end of the sentence.
local function instead_of(name, names)
  if name == "het" then return '; write `local het = require "het"`' end
  local het = require "het.public"
  if debug.getmetatable(het).__has(name) then return ("; did you mean het.%s?"):format(name) end
  local near = native.nearest(name, names)
  return near and ("; did you mean '%s'?"):format(near) or ""
end

--- Make reading or assigning an undeclared global an error that names the nearest declared one.
local function strict(environment, fallback)
  return setmetatable(environment, {
    __metatable = "recipe",
    __index = function(_, name)
      local value = fallback and fallback[name]
      if value ~= nil then return value end
      name = tostring(name)
      error(("'%s' is not declared%s"):format(name, instead_of(name, keys_of(environment, fallback or {}))), 2)
    end,
    __newindex = function(_, name)
      error(("'%s' is assigned without being declared; write `local %s = ...`"):format(tostring(name),
        tostring(name)), 2)
    end,
  })
end

--- `require` of a recipe: "het", and Lua files beside the recipe, each run once in the same environment.
-- @tparam[opt] function otherwise called for a name without such a file
local function recipe_require(environment, folder, trust, otherwise)
  local loaded = {}
  return function(name)
    if type(name) ~= "string" then error("require: a name is needed", 2) end
    if name == "het" then return require "het.public" end
    if loaded[name] ~= nil then return loaded[name] end
    if not name:match "^[%w_][%w_%.%-]*$" or name:find("..", 1, true) then
      if otherwise then return otherwise(name) end
      error(("require: '%s' is not the name of a file beside the recipe"):format(name), 2)
    end
    local path = (folder == "." and "" or folder .. "/") .. name:gsub("%.", "/") .. ".lua"
    if not native.is_module(path) then
      if otherwise then return otherwise(name) end
      error(("require: there is no '%s' (recipes can require \"het\" and Lua files in %s)"):format(name,
        native.resolve(folder)), 2)
    end
    local chunk, problem = sandbox.load(native.read_module(path), "@" .. path, environment, trust)
    if not chunk then error(problem, 0) end
    local value = chunk(name)
    loaded[name] = value == nil and true or value
    return loaded[name]
  end
end

--- Load source text (never bytecode) to run in `environment`. A stranger's code is not compiled to machine code: so
-- Ctrl-C reaches its loops, and the compiler is no way out.
function sandbox.load(text, name, environment, trust)
  local chunk, problem = load(text, name, "t", environment)
  if chunk and not trust then jit.off(chunk, true) end
  return chunk, problem
end

-- Of collectgarbage what does not switch it off.
local function collect(what, argument)
  what = what or "collect"
  if what ~= "collect" and what ~= "count" and what ~= "step" then
    error(("collectgarbage(%q) is not for recipes; \"collect\", \"count\" and \"step\" are"):format(tostring(what)), 2)
  end
  return collectgarbage(what, argument)
end

-- `math`, whose random numbers are not drawn in functions that are traced: they would be drawn once.
local function recipe_math()
  local library, random = copy(math, table.concat(keys_of(math), " ")), math.random
  library.random = function(...)
    local builder = package.loaded["het.nn.builder"]
    if builder and builder.traces then
      errors.usage("math.random in a forward or a loss is drawn once, when the model is built, and is the same in "
        .. "every step; nn.dropout, self.builder:uniform(x) and self.builder:normal(x) draw in every step, and a fixed "
        .. "choice is drawn outside of the function")
    end
    return random(...)
  end
  return library
end

--- The globals of a recipe.
-- @param trust   everything, bounded only by strictness
-- @param folder  the recipe's folder (default: the current one)
function sandbox.environment(trust, folder)
  folder = folder or "."
  trust = trust or native.walls() == "kernel"
  local environment
  if trust then
    environment = {}
    environment._G, environment.math = environment, recipe_math()
    environment.require = recipe_require(environment, folder, true, require)
    return strict(environment, _G)
  end
  environment = copy(_G, [[assert error ipairs next pairs pcall xpcall select tonumber tostring type unpack
    rawequal rawget rawset _VERSION]])
  environment._G = environment
  environment.collectgarbage = collect
  environment.print = function(...) native.write("stdout", joined("\t", ...) .. "\n") end
  -- An interrupt is raised in a hook, and where a hook raises no other fires until it is caught: a handler that loops
  -- would never end. It is not asked.
  environment.xpcall = function(f, handler, ...)
    if type(handler) ~= "function" then return xpcall(f, handler, ...) end
    return xpcall(f, function(problem)
      if select(2, errors.describe(problem)) == "interrupted" then return problem end
      return handler(problem)
    end, ...)
  end
  environment.math = recipe_math()
  environment.string = copy(string, table.concat(keys_of(string), " "))
  environment.table = copy(table, table.concat(keys_of(table), " "))
  environment.coroutine = copy(coroutine, "create resume running status wrap yield")
  environment.bit = copy(bit, table.concat(keys_of(bit), " "))
  -- These write tables, or read them, without asking their metatables.
  environment.pairs, environment.rawset = handle.pairs, handle.guarded("rawset", rawset)
  for _, name in ipairs { "insert", "remove", "sort", "move" } do
    environment.table[name] = handle.guarded("table." .. name, table[name])
  end
  environment.os = limited("os", copy(os, "clock date difftime time"))
  environment.io = limited("io", restricted_io())
  environment.getmetatable = function(value)
    if type(value) ~= "table" then return type(value) end
    return getmetatable(value)
  end
  environment.setmetatable = function(value, metatable)
    if type(value) ~= "table" then error("setmetatable: a table is needed", 2) end
    return setmetatable(value, metatable)
  end
  environment.load = function(text, name)
    if type(text) ~= "string" then error("load: text is needed", 2) end
    return sandbox.load(text, name or "=(load)", environment)
  end
  environment.require = recipe_require(environment, folder)
  environment.arg = { unpack(native.arguments or {}) }
  return strict(environment)
end

-- What people type by habit.
local habits = {
  exit = "Ctrl-D leaves", quit = "Ctrl-D leaves",
  help = "?name explains, as in ?nn.attention; ?het lists all names",
}

-- Parts of the library that stand at the prompt under their own names, as recipes and help texts write them.
local parts = { "nn", "optim", "data", "op" }

--- The environment of the prompt: like a recipe's, but new globals may be assigned, and `het` and its parts are there.
function sandbox.prompt_environment(trust)
  local environment = sandbox.environment(trust, ".")
  local strictness = debug.getmetatable(environment)
  strictness.__newindex = nil
  local undeclared = strictness.__index
  strictness.__index = function(session, name)
    if habits[name] then error(habits[name], 2) end
    return undeclared(session, name)
  end
  environment.het = require "het.public"
  for _, name in ipairs(parts) do environment[name] = environment.het[name] end
  return environment
end

return sandbox
