--- Errors of the library: the same tables that the engine raises, `{kind, message, context}`.
-- The kind says who has to act, and is the exit code of `hetrun`: the person (usage), the machine (environment),
-- another process (peer), or hetrun itself (bug).
local errors = {}

--- Exit codes by kind. 130 is that of a run stopped by Ctrl-C; "ended": the others have ended the run without this
-- process.
errors.exit_codes = { usage = 2, environment = 71, peer = 75, bug = 70, interrupted = 130, ended = 0 }

-- Recipes catch errors with pcall: their metatable stays the library's, and so does their kind, which is kept here. The
-- engine adds those that it raises.
local function message_of(problem)
  local message = rawget(problem, "message")   -- which a recipe may have changed
  return type(message) == "string" and message or "an error without a message"
end
local Error = { __tostring = message_of, __metatable = "error" }
local registry = debug.getregistry()
local kinds = registry["het.error.kinds"] or setmetatable({}, { __mode = "k" })
registry["het.error.kinds"] = kinds

--- An error of a kind, not yet raised.
function errors.new(kind, message)
  local raised = setmetatable({ kind = kind, message = message, sentence = message, context = {} }, Error)
  kinds[raised] = kind
  return raised
end

--- Raise an error of a kind.
-- @string kind one of the keys of `exit_codes`
-- @string format as of string.format
function errors.raise(kind, format, ...)
  error(errors.new(kind, select("#", ...) > 0 and format:format(...) or format), 0)
end

--- Raise an error that the person can fix.
function errors.usage(format, ...) errors.raise("usage", format, ...) end

--- Print a warning, unless the program is to be quiet.
-- @string format as of string.format
function errors.warn(format, ...)
  local native = require "het.native"
  if not native.settings.quiet then native.write("stderr", format:format(...) .. "\n") end
end

--- Was it raised by the library or the engine? A recipe may raise any table.
function errors.is_own(problem) return type(problem) == "table" and kinds[problem] ~= nil end

-- Of a tensor; methods in other libraries.
local fields = { shape = true, dtype = true }

-- What hints about tensors are about, by what their metatables say. Other userdata, such as JSON's null or an open
-- file, is none of it.
local tensors = { tensor = true, value = true, ["distributed tensor"] = true }

-- How the places of the library's code begin.
local library = debug.getinfo(1, "S").short_src:match "^(.*)errors"

local without_tensors   -- the last message that was found to be about none: who catches it later sees no stack of it

-- Whether a tensor or a value of a model stands where an error of Lua was raised: in the function that its message
-- names by line, or in what that called. Where it was caught since then, whether that is code of a recipe, which gets
-- no other userdata.
local function meets_tensor(message)
  if message == without_tensors then return false end
  local place, found, level = message:match "^([^\n]-:%d+): ", false, 2
  local function look(value)
    found = found or type(value) == "userdata" and tensors[getmetatable(value)] or false
  end
  while true do
    local info = debug.getinfo(level, "Slf")
    if not info then return not place or place:sub(1, #library) ~= library end
    for getter, of in pairs { [debug.getlocal] = level, [debug.getupvalue] = info.func } do
      local i = 1
      while true do
        local name, value = getter(of, i)
        if not name then break end
        look(value)
        i = i + 1
      end
    end
    if ("%s:%d"):format(info.short_src, info.currentline) == place then
      if not found then without_tensors = message end
      return found
    end
    level = level + 1
  end
end

-- What may have been meant by code with tensors that raised this error of Lua; nil for other errors.
local function hint_about_tensors(message)
  if message:find "attempt to compare .*userdata" then
    return "; tensors and values of a model are compared by operators: op.where(op.greater(x, y), x, y)"
  end
  if message:find "attempt to perform arithmetic on .*userdata" then
    return "; tensors and values of a model have + - * / and ^; op has others, such as op.clamp"
  end
  if message:find "attempt to concatenate .*userdata" then return "; tostring(x) is the text of a tensor" end
  if message:find "attempt to get length of .*userdata" then return "; x.shape[1] is the number of rows of x" end
  if message:find "number expected, got userdata" then
    return "; functions of `math` take numbers, and op.maximum, op.sqrt and others tensors and values of a model"
  end
end

-- What may have been meant by code that raised this error of Lua.
local function hint_for(message)
  local about_tensors = hint_about_tensors(message)
  if about_tensors then return meets_tensor(message) and about_tensors or "" end
  local name = message:match "attempt to call %a+ '(%a+)' %(a %a+ value%)"
  return fields[name] and ("; a tensor's %s is a field: x.%s, without parentheses"):format(name, name) or ""
end

--- Text of an error of Lua, with what may have been meant, once.
function errors.hinted(message)
  -- `return math.max(x, 0)` leaves the function before it calls: Lua names who called that.
  message = message:gsub("^[^:]*het[%./]nn[%./]layer[^:]*:%d+: (bad argument #%d+) to 'forward'",
    "what `forward` of a layer returns: %1")
  local hint = hint_for(message)
  return message:sub(-#hint) == hint and message or message .. hint
end

--- What went wrong, as text and as a kind, whatever was raised.
-- @param problem an error table, or the text of an error of Lua
-- @treturn string the message
-- @treturn string the kind
function errors.describe(problem)
  if type(problem) == "table" and (kinds[problem] or rawget(problem, "kind")) then
    return message_of(problem), kinds[problem] or "usage"
  end
  if problem == "not enough memory" then   -- as LuaJIT says it, without a place
    return "there is not enough memory for the tables and texts of the Lua code", "environment"
  end
  local ok, message = pcall(tostring, problem)   -- which may be a function of a recipe's
  return ok and type(message) == "string" and message or "an error without a message", "usage"
end

--- Steps that are all tried, whatever is wrong with those before, so that all mistakes come out at once.
-- @treturn function try(step, ...): what the step returns; nothing when it raises a mistake, which is kept
-- @treturn function raise(): raises what was kept, if anything was
function errors.collector()
  local kept = {}
  local function result(ok, first, ...)
    if ok then return first, ... end
    local _, kind = errors.describe(first)
    if kind ~= "usage" then error(first, 0) end
    kept[#kept + 1] = first
  end
  local function try(step, ...) return result(pcall(step, ...)) end
  local function raise()
    if #kept == 1 then error(kept[1], 0) end
    local lines = {}
    for i, problem in ipairs(kept) do lines[i] = errors.describe(problem) end
    if #kept > 1 then errors.usage("%s", table.concat(lines, "\n")) end
  end
  return try, raise
end

return errors
