--- What recipes hold of the library's objects. Recipes are shared between strangers: none of them may reach what an
-- object is made of. The library works on its own objects (runs, corpora, layers, natives of the engine); a recipe gets
-- a handle of each, an empty table whose metatable alone knows the object. Functions for recipes translate at the
-- border: `import` what comes in, `export` what goes out.
--
--   handle   reads the fields and calls the methods that its class lists; nothing can be set
--   view     a table of named values, read-only: `run.arguments`
--   module   a table of functions for recipes, read-only: `het.nn`
--   opaque   a table that library and recipes share as it is: errors, unknown values
--
-- A kind is that of an object's metatable, which recipes never get: no table of theirs passes as a run or a layer.
local errors = require "het.errors"
local suggest = require "het.language.suggest"
local text = require "het.text"

local handle = {}

local metatable_of = debug.getmetatable   -- whatever `__metatable` says

local weak_keys = { __mode = "k" }
local classes = setmetatable({}, weak_keys)     -- by metatable of the library's objects
local native_classes = {}                       -- by class of the engine's objects
local opaque = setmetatable({}, weak_keys)      -- metatable -> kind
local protected = setmetatable({}, weak_keys)   -- metatables of handles, views and modules
local handles = setmetatable({}, { __mode = "kv" })   -- by object
local exported = setmetatable({}, { __mode = "kv" })  -- functions for recipes by the library's
local originals = setmetatable({}, weak_keys)         -- and the other way

-- Objects of the engine that recipes get as they are: every one of their methods is safe to call.
local plain_natives = { tensor = true, value = true, mesh = true, ["distributed tensor"] = true }

local import, export

local function class_of(object)
  if type(object) == "userdata" then
    local name = metatable_of(object) and getmetatable(object)
    return type(name) == "string" and native_classes[name] or nil
  end
  local meta = type(object) == "table" and metatable_of(object)
  return meta and classes[meta] or nil
end

local function metatable_of_handle(value)
  local meta = type(value) == "table" and metatable_of(value)
  return meta and protected[meta] and meta or nil
end

--- The object behind a handle, the table behind a view; any other value itself.
function handle.inner(value)
  local meta = metatable_of_handle(value)
  if meta and meta.inner ~= nil then return meta.inner end
  return value
end

--- Is it a handle, a view or a module: a read-only table?
function handle.is_protected(value)
  local meta = type(value) == "table" and metatable_of(value)
  return meta and (protected[meta] or opaque[meta]) and true or false
end

--- `pairs` for recipes: of a handle, a view or a module the names that it has, and what they give.
function handle.pairs(value)
  local meta = metatable_of_handle(value)
  if not meta then return pairs(value) end
  local at = 0
  return function()
    while at < #meta.__names do
      at = at + 1
      local field = value[meta.__names[at]]
      if field ~= nil then return meta.__names[at], field end
    end
  end
end

--- A function of Lua that writes tables whatever their metatables say (rawset, table.insert, ...), as recipes get it:
-- it refuses tables of the library.
function handle.guarded(name, fn)
  return function(...)
    for i = 1, select("#", ...) do
      local value = (select(i, ...))
      if handle.is_protected(value) then errors.usage("%s: %s is read-only", name, getmetatable(value)) end
    end
    return fn(...)
  end
end

--- The kind of an object of the library or of its handle, or nil.
function handle.kind(value)
  local class = class_of(handle.inner(value))
  if class then return class.kind end
  local meta = type(value) == "table" and metatable_of(value)
  return meta and opaque[meta] or nil
end

--- Tables with this metatable are shared with recipes as they are.
-- @tparam table metatable
-- @string kind what `getmetatable` gives recipes
function handle.share(metatable, kind)
  metatable.__metatable = kind
  opaque[metatable] = kind
  return metatable
end

-- Arguments of a function for recipes, and what it returns.
local function translated(translate, ...)
  local count = select("#", ...)
  if count == 0 then return end
  if count == 1 then return translate((...)) end
  local values = { ... }
  for i = 1, count do values[i] = translate(values[i]) end
  return unpack(values, 1, count)
end

--- Arguments, as the library works on them.
function handle.import_all(...) return translated(import, ...) end

--- Values, as recipes get them.
function handle.export_all(...) return translated(export, ...) end

--- A function of the library as recipes call it.
function handle.export_function(fn)
  if exported[fn] then return exported[fn] end
  local function outer(...) return translated(export, fn(translated(import, ...))) end
  exported[fn], originals[outer] = outer, fn
  return outer
end

--- The library's function behind one that recipes call; any other value itself.
function handle.original(fn) return type(fn) == "function" and originals[fn] or fn end

local function article(name) return name:match "^[aeiou]" and "an" or "a" end

local function refuse_to_set(name)
  return function(_, field)
    errors.usage("%s.%s cannot be set; what a recipe sees of %s %s is read-only", name, tostring(field), article(name),
      name)
  end
end

local function method_of(class, name, fn, how)
  local function outer(self, ...)
    local object = handle.inner(self)
    if class_of(object) ~= class then
      errors.usage("%s belongs to %s %s; call it with a colon: %s:%s", name, article(class.name), class.name,
        class.name, how)
    end
    return translated(export, fn(object, translated(import, ...)))
  end
  originals[outer] = fn
  return outer
end

--- Declare a class of objects: what recipes may do with them.
-- @tparam table class `kind`; `name`, what such an object is called (default: the kind); `fields`, a list of names, or
-- by name a function(object); `methods`, by name { function(object, ...), how it is called behind the colon }; `call`,
-- function(object, ...); `show`, function(object)
-- @param ... metatables of such objects, or the names of classes of the engine
function handle.class(class, ...)
  class.name = class.name or class.kind
  local fields, names = {}, {}
  for key, value in pairs(class.fields or {}) do
    local name = type(key) == "number" and value or key
    fields[name] = type(value) == "function" and value or function(object) return object[name] end
    names[#names + 1] = name
  end
  class.outer_methods = {}
  for name, given in pairs(class.methods or {}) do
    class.outer_methods[name] = method_of(class, name, given[1], given[2] or name .. "()")
    names[#names + 1] = name
  end
  table.sort(names)
  class.names = names
  class.read = function(self, name)
    local method = class.outer_methods[name]
    if method then return method end
    local field = fields[name]
    if field then return handle.viewed(field(metatable_of(self).inner), class.name .. "." .. name) end
    errors.usage("%s %s has no '%s'%s", article(class.name), class.name, tostring(name),
      suggest.sentence(tostring(name), names))
  end
  class.refuse = refuse_to_set(class.name)
  class.to_text = function(self)
    local object = metatable_of(self).inner
    if class.show then return class.show(object) end
    return tostring(object)
  end
  if class.call then
    class.outer_call = function(self, ...)
      return translated(export, class.call(metatable_of(self).inner, translated(import, ...)))
    end
  end
  for i = 1, select("#", ...) do
    local of = select(i, ...)
    if type(of) == "string" then native_classes[of] = class else classes[of] = class end
  end
end

--- The handle of an object of the library: one and the same as long as a recipe holds it.
function handle.of(object)
  if handles[object] then return handles[object] end
  local class = class_of(object)
  if not class then errors.raise("bug", "a recipe would get a %s of no class", type(object)) end
  -- Each handle has a separate metatable: a table from handles to objects would keep objects alive for good whose
  -- callbacks hold their handle.
  local meta = {
    inner = object, methods = class.outer_methods, __names = class.names, __index = class.read,
    __newindex = class.refuse, __tostring = class.to_text, __call = class.outer_call, __metatable = class.kind,
  }
  protected[meta] = true
  local made = setmetatable({}, meta)
  handles[object] = made
  return made
end

-- A table without metatable as another: keys as they are.
local function copied(given, translate, seen)
  seen = seen or {}
  if seen[given] then return seen[given] end
  local result = {}
  seen[given] = result
  for key, value in next, given do result[key] = translate(value, seen) end
  return result
end

--- A value of a recipe as the library works on it: objects for handles, copies of tables, so that what was checked
-- stays as it was. A table with a metatable of the recipe's own stays as it is, for the checks to refuse; inside
-- another table only its plain fields count.
function import(value, seen)
  if type(value) ~= "table" then return value end
  local meta = metatable_of(value)
  if meta then
    if opaque[meta] then return value end
    if protected[meta] then
      if meta.inner == nil or class_of(meta.inner) then return meta.inner or value end
      return copied(meta.inner, function(inner) return inner end)
    end
    if not seen then return value end
  end
  return copied(value, import, seen)
end
handle.import = import

--- A value of the library as recipes get it: handles of objects, copies of tables.
function export(value, seen)
  local kind = type(value)
  if kind == "userdata" then
    local meta = metatable_of(value)
    if not meta then return nil end   -- JSON's null
    if plain_natives[getmetatable(value)] then return value end
    return handle.of(value)
  end
  if kind == "cdata" or kind == "thread" then errors.raise("bug", "a recipe would get a %s", kind) end
  if kind ~= "table" then return value end
  local meta = metatable_of(value)
  if not meta then return copied(value, export, seen) end
  if protected[meta] or opaque[meta] then return value end
  return handle.of(value)
end
handle.export = export

--- A table of named values as a view, named for messages; anything else as `export` has it.
function handle.viewed(value, name)
  local named = type(value) == "table" and not metatable_of(value) and value[1] == nil and next(value) ~= nil
  if not named then return export(value) end
  local meta = {
    inner = value, __metatable = "view", __names = text.keys(value),
    __index = function(_, key) return handle.viewed(rawget(value, key), ("%s.%s"):format(name, tostring(key))) end,
    __newindex = function(_, key) errors.usage("%s.%s cannot be set; %s is read-only", name, tostring(key), name) end,
    __tostring = function()
      local parts = {}
      for _, key in ipairs(text.keys(value)) do
        parts[#parts + 1] = ("%s = %s"):format(tostring(key), text.value(value[key]))
      end
      return "{" .. table.concat(parts, ", ") .. "}"
    end,
  }
  protected[meta] = true
  return setmetatable({}, meta)
end

--- A table of functions as recipes get it.
-- @string path how recipes call it: "het.nn"
-- @tparam table module the library's, whose missing names are errors
-- @tparam table how `names`, all that it offers; `get`, function(name): a value for recipes in place of the module's;
-- `missing`, function(name) that raises what else is asked for; `call`, what the table does when it is called
function handle.module(path, module, how)
  local offered = {}
  for _, name in ipairs(how.names) do offered[name] = true end
  local function read(_, name)
    if not offered[name] then
      if how.missing then how.missing(name) end
      errors.usage("%s has no '%s'%s", path, tostring(name),
        suggest.sentence(tostring(name), how.names, "?" .. path))
    end
    if how.get then
      local value = how.get(name)
      if value ~= nil then return value end
    end
    local value = module[name]
    return type(value) == "function" and handle.export_function(value) or export(value)
  end
  local meta = {
    __metatable = path, __names = how.names, __index = read, __call = how.call,
    __has = function(name) return offered[name] or false end,
    __newindex = function(_, name)
      errors.usage("%s.%s cannot be set; %s is read-only", path, tostring(name), path)
    end,
    __tostring = function() return path end,
  }
  protected[meta] = true
  return setmetatable({}, meta)
end

return handle
