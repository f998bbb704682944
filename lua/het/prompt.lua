--- The interactive prompt: lines run in an environment of their own, `?name` and completion look into it. Reading the
-- lines is prompt.cpp's.
local native = require "het.native"
local errors = require "het.errors"
local sandbox = require "het.sandbox"

local prompt = {}

-- The prompt's own environment, made by prompt.begin.
local environment

--- Begin a session. Recipes' mistakes are raised where they are made.
-- @bool trust no walls, and all of Lua
function prompt.begin(trust)
  require("het.language.mistakes").set_immediate(true)
  environment = sandbox.prompt_environment(trust)
end

local function show(value)
  if type(value) == "string" then return (("%q"):format(value):gsub("\\\n", "\\n")) end
  if type(value) ~= "table" or getmetatable(value) then return tostring(value) end
  local parts, count = {}, #value
  for i = 1, math.min(count, 20) do parts[i] = show(value[i]) end
  if count > 20 then parts[#parts + 1] = ("... (%d in all)"):format(count) end
  local names = {}
  for name in pairs(value) do
    if type(name) == "string" then names[#names + 1] = name end
  end
  table.sort(names)
  for i = 1, math.min(#names, 20) do
    local field = value[names[i]]
    parts[#parts + 1] = names[i] .. " = " .. (type(field) == "table" and "{...}" or show(field))
  end
  if #names > 20 then parts[#parts + 1] = ("... (%d names in all)"):format(#names) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

--- Run a compiled line of the prompt and print what it gives.
function prompt.evaluate(chunk)
  jit.off(chunk, true)
  setfenv(chunk, environment)
  local results = { n = 0 }
  local function collect(...)
    results.n = select("#", ...)
    for i = 1, results.n do results[i] = (select(i, ...)) end
  end
  local ok, problem = xpcall(function() collect(chunk()) end, native.undisturbed(function(value)
    if type(value) ~= "string" then return value end
    value = errors.hinted((value:gsub("^[%w_/%.]*het[%./]prompt[%w_%.]*:%d+: ", "")))   -- where this calls the chunk
    -- The lines of the library are of no use at the prompt: keep those of the user's own chunk.
    local trace = {}
    for line in debug.traceback("", 2):gmatch "[^\n]+" do
      if line:match "^%s+prompt:" and not line:match "in function <prompt:0>" then trace[#trace + 1] = line end
    end
    return #trace > 1 and value .. "\n" .. table.concat(trace, "\n") or value
  end))
  if not ok then error(problem, 0) end
  local shown = {}
  for i = 1, results.n do
    local value = results[i]
    -- Text of several lines is there to be read.
    shown[i] = type(value) == "string" and value:find("\n", 1, true) and value or show(value)
  end
  if results.n > 0 then native.write("stdout", table.concat(shown, "\t") .. "\n") end
end

-- The value of a path of names, such as run.plan or x:to; nil when there is none.
local function resolve(path)
  local value = environment
  for name in path:gmatch "[%w_]+" do
    if type(value) ~= "table" and type(value) ~= "userdata" then return nil end
    local ok, field = pcall(function() return value[name] end)
    value = ok and field or nil
    if value == nil then return nil end
  end
  return value
end

--- `?name`: print its documentation. The session's own values go before names of the library.
function prompt.explain(name)
  local het = require "het"
  native.write("stdout", het.help(name:match "^%s*(.-)%s*$", resolve) .. "\n")
end

-- Where the last `{` of `text` that is not closed stands, nil where there is none or a string is not closed; and where
-- the quote of that string stands.
local function open_brace(text)
  local open, quote, began, at = {}, nil, nil, 1
  while at <= #text do
    local character = text:sub(at, at)
    if quote then
      if character == "\\" then at = at + 1 elseif character == quote then quote = nil end
    elseif character == '"' or character == "'" then
      quote, began = character, at
    elseif character == "{" or character == "(" then
      open[#open + 1] = { character, at }
    elseif character == "}" or character == ")" then
      open[#open] = nil
    end
    at = at + 1
  end
  if quote then return nil, began end
  local last = open[#open]
  return last and last[1] == "{" and last[2] or nil
end

-- Files and folders whose path could go on after `path`.
local function files_like(path)
  local folder, stem = path:match "^(.*/)([^/]*)$"
  stem = stem or path
  local found = {}
  for _, name in ipairs(native.folder_names(folder or ".")) do
    local hidden = name:sub(1, 1) == "." and stem == ""
    if not hidden and name:sub(1, #stem) == stem then found[#found + 1] = (folder or "") .. name end
  end
  table.sort(found)
  return found
end

local field_before

-- The fields of what an open brace behind `before` begins: a constructor's call, or a record among its fields.
local function fields_of(before)
  local define = require "het.language.define"
  local path = before:match "([%a_][%w_%.]*)%s*%(?%s*$"
  local value = path and resolve(path)
  local definition = type(value) == "function" and define.lookup(value) or path and define.lookup(path)
  if definition and type(definition.fields) == "table" then return definition.fields end
  local field = field_before(before)
  return field and field.fields
end

-- The field of a constructor that `before` ends with, as in "nn.mlp { activation = ".
function field_before(before)
  local name, outer = before:match "([%a_][%w_]*)%s*=%s*$", open_brace(before)
  for _, field in ipairs(name and outer and fields_of(before:sub(1, outer - 1)) or {}) do
    if field[1] == name then return field end
  end
end

-- What a field may be, of what begins with `begun`; nil where it may be any text.
local function choices_like(field, begun)
  if not field or not field.choices then return nil end
  local found = {}
  for _, choice in ipairs(field.choices) do
    if type(choice) == "string" and choice:sub(1, #begun) == begun then found[#found + 1] = choice end
  end
  table.sort(found)
  return found
end

--- Names that could complete the end of `text`: globals, fields after a dot or in a constructor, methods after a colon,
-- in a string that is not closed what the field may be, or files.
-- @treturn {string,...} names, each from the beginning of the word
-- @treturn string the word that is there
function prompt.completions(text)
  local _, quote = open_brace(text)
  if quote then
    local begun = text:sub(quote + 1)
    return choices_like(field_before(text:sub(1, quote - 1)), begun) or files_like(begun), begun
  end
  local path, separator, word = text:match "([%w_][%w_%.]*)([%.:])([%w_]*)$"
  local names, seen = {}, {}
  local brace = text:match "[{,]%s*[%w_]*$" and open_brace(text)
  local fields = brace and fields_of(text:sub(1, brace - 1))
  local function add_name(name)
    -- What is no name cannot be typed after a dot; keys of tables may be anything.
    if type(name) == "string" and name:match "^[%a_][%w_]*$" and name:sub(1, #word) == word and not seen[name]
      and not name:match "^__" then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  if path then
    local value = resolve(path)
    local object = require("het.language.define").object_of(value)
    for _, member in ipairs(object and object.members or {}) do
      local name = member.name:match "[^.]+$"
      if separator == "." or type(value[name]) == "function" then add_name(name) end
    end
    if type(value) == "table" and not object then   -- an object lists its members itself
      local metatable = debug.getmetatable(value)
      local hidden = metatable and metatable.__hidden or {}
      for name in pairs(value) do
        if not hidden[name] then add_name(name) end
      end
      if metatable and type(metatable.__index) == "table" then
        for name in pairs(metatable.__index) do add_name(name) end
      end
      for _, name in ipairs(metatable and metatable.__names or {}) do add_name(name) end
    elseif type(value) == "userdata" then
      local metatable = debug.getmetatable(value)
      for name in pairs(metatable and metatable.methods or {}) do add_name(name) end
    end
    if separator == ":" and type(value) == "string" then
      for name in pairs(string) do add_name(name) end
    end
  elseif fields then
    word = text:match "[%w_]*$"
    for _, field in ipairs(fields) do add_name(field[1]) end
  elseif not text:match "[%)%]}\"'][%.:][%w_]*$" then   -- of what a call gives nothing is known before it is made
    word = text:match "[%w_]*$"
    for name in pairs(environment) do add_name(name) end
    for name in ("and break do else elseif end false for function if in local nil not or repeat return then true until "
      .. "while"):gmatch "%a+" do
      if word ~= "" then add_name(name) end
    end
  end
  table.sort(names)
  return names, word or ""
end

return prompt
