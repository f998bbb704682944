--- Where in a recipe something was said. `return het.train{...}` is a tail call, so the recipe's own frame may be
-- gone, and a frame knows the line of a call but not those of its fields: both are found in the source text.
local errors = require "het.errors"

local source = {}

local recipe   -- { path, text, chunk }: the recipe being run

--- Remember the recipe that runs from now on.
-- @string path as shown in messages
-- @string text its source
-- @string[opt] chunk the chunk's name as `debug.getinfo` gives it; default "@" .. path
-- @treturn table what was remembered before, for `restore`
function source.set(path, text, chunk)
  local before = recipe
  recipe = { path = path, text = text, chunk = chunk or "@" .. path }
  return before
end

--- Remember again what was before a `set`.
function source.restore(before) recipe = before end

--- The path of the recipe that runs, or nil.
function source.path() return recipe and recipe.path end

--- Forget it.
function source.clear() recipe = nil end

--- Line of the recipe that is now calling into the library, or nil when its frame is gone.
-- @tparam[opt] function boundary only calls inside of this one count
-- @tparam[opt] function outer and of this one
function source.current_line(boundary, outer)
  if not recipe then return nil end
  local level = 2
  while true do
    local info = debug.getinfo(level, "Slf")
    if not info or boundary and (info.func == boundary or info.func == outer) then return nil end
    if info.source == recipe.chunk and info.currentline > 0 then return info.currentline end
    level = level + 1
  end
end

--- "recipe.lua:7" of that line, or nil.
function source.place(boundary, outer)
  local line = source.current_line(boundary, outer)
  return line and ("%s:%d"):format(recipe.path, line)
end

local function file_of(info) return info.source:match "^@(.*)$" or info.short_src end

--- "recipe.lua:3": where a function begins; nil for one of Lua's library.
function source.place_of(fn)
  local info = debug.getinfo(fn, "S")
  if info.what == "C" then return nil end
  return ("%s:%d"):format(file_of(info), info.linedefined)
end

-- The line that is now calling into the library from a function or from what that calls, of the file in which the
-- function stands; nil when none is.
local function place_within(fn, boundary)
  local file, level = file_of(debug.getinfo(fn, "S")), 2
  while true do
    local info = debug.getinfo(level, "Slf")
    if not info or info.func == boundary then return nil end
    if file_of(info) == file and info.currentline > 0 then return ("%s:%d"):format(file, info.currentline) end
    level = level + 1
  end
end

-- The next token at or after `at`: its kind ("name", "string", "comment", "space", "other"), text and end.
local function token(text, at)
  local long = text:match("^%-%-%[(=*)%[", at)
  if long then
    local _, stop = text:find("]" .. long .. "]", at, true)
    return "comment", nil, stop or #text
  end
  if text:find("^%-%-", at) then return "comment", nil, (text:find("\n", at, true) or #text + 1) - 1 end
  long = text:match("^%[(=*)%[", at)
  if long then
    local _, stop = text:find("]" .. long .. "]", at, true)
    return "string", nil, stop or #text
  end
  local quote = text:match("^[\"']", at)
  if quote then
    local i = at + 1
    while i <= #text and text:sub(i, i) ~= quote and text:sub(i, i) ~= "\n" do
      i = i + (text:sub(i, i) == "\\" and 2 or 1)
    end
    return "string", text:sub(at + 1, i - 1), i
  end
  local name = text:match("^[%a_][%w_]*", at)
  if name then return "name", name, at + #name - 1 end
  local space = text:match("^%s+", at)
  if space then return "space", nil, at + #space - 1 end
  return "other", text:sub(at, at), at
end

local function line_of(text, at)
  local _, breaks = text:sub(1, at - 1):gsub("\n", "")
  return breaks + 1
end

local function start_of_line(text, line)
  local at = 1
  for _ = 2, line do at = (text:find("\n", at, true) or #text) + 1 end
  return at
end

-- All calls `name {` or `name (`, where name is the dotted text or ends with it: positions after the name.
local function calls_of(text, name, from)
  local last = name:match("[^.]+$")
  local found, at, word = {}, from, nil
  while at <= #text do
    local kind, value, stop = token(text, at)
    if kind == "name" then
      word = value
    elseif kind == "string" or (kind == "other" and (value == "{" or value == "(")) then
      if word == last then found[#found + 1] = at end
      word = nil
    elseif kind == "other" then
      word = nil
    end
    at = stop + 1
  end
  return found
end

-- Line of `field =` directly inside the table that opens at or soon after `at`.
local function field_line(text, at, field)
  local depth, word, word_at = 0, nil, nil
  while at <= #text do
    local kind, value, stop = token(text, at)
    if kind == "name" then
      word, word_at = value, at
    elseif kind == "other" then
      if value == "=" and depth == 1 and word == field and text:sub(at + 1, at + 1) ~= "=" then
        return line_of(text, word_at)
      end
      if value == "{" then depth = depth + 1 end
      if value == "}" then
        depth = depth - 1
        if depth == 0 then return nil end
      end
      word = nil
    elseif kind == "string" then
      word = nil
    end
    at = stop + 1
  end
end

--- Where a function of a recipe returns the result of a call, which leaves no frame of the function: its only `return`,
-- or where it begins.
function source.place_of_return(fn)
  local info = debug.getinfo(fn, "S")
  if info.what == "C" then return nil end
  local line, count = info.linedefined, 0
  if recipe and info.source == recipe.chunk then
    local words, at = recipe.text, start_of_line(recipe.text, info.linedefined)
    local stop = start_of_line(words, info.lastlinedefined + 1)
    while at < stop do
      local kind, value, last = token(words, at)
      if kind == "name" and value == "return" then line, count = line_of(words, at), count + 1 end
      at = last + 1
    end
  end
  return ("%s:%d"):format(file_of(info), count == 1 and line or info.linedefined)
end

--- Call a function of the recipe: a mistake that the library finds in what it does begins with the line.
-- @treturn boolean whether it returned, and what it did; else the problem
function source.call(fn, ...)
  local function handler(problem)
    if type(problem) == "string" then return errors.hinted(problem) end
    local message, kind = errors.describe(problem)
    if not errors.is_own(problem) or kind ~= "usage" or problem.has_places then return problem end
    local place = place_within(fn, source.call) or source.place_of_return(fn)
    if not place then return problem end
    local placed = errors.new(kind, ("%s: %s"):format(place, message))
    placed.has_places = true
    return placed
  end
  return xpcall(fn, handler, ...)
end

--- Where a field of a constructor's call stands: "recipe.lua:7", or nil outside of recipes.
-- @string constructor its public name: "nn.attention"
-- @string[opt] field its field; of a record inside, the path: "evaluate.every"
function source.locate(constructor, field)
  if not recipe then return nil end
  local text, line = recipe.text, source.current_line()
  local calls = calls_of(text, constructor, line and start_of_line(text, line) or 1)
  local at = line and calls[1] or calls[#calls]
  if at and line and line_of(text, at) ~= line then at = nil end   -- called by another name
  local found = line or (at and line_of(text, at)) or 1
  if field then
    local from = at or (line and text:find("{", start_of_line(text, line), true))
    for name in field:gmatch("[^.]+") do
      local within = from and field_line(text, from, name)
      if not within then break end
      found = within
      local start = start_of_line(text, within)
      local _, equals = text:find("%f[%w_]" .. name .. "%s*=", start)
      from = equals and equals + 1
    end
  end
  return ("%s:%d"):format(recipe.path, found), found
end

return source
