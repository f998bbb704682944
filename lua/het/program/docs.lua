--- What is known of each public name, as text for `?name`, as pages, and as stubs for editors: all from the
-- definitions (het.language.define).
local native = require "het.native"
local define = require "het.language.define"
local text = require "het.text"

local docs = {}

-- How a name is called.
local function signature(definition)
  if definition.signature then return definition.signature end
  if definition.is_object then return definition.name end
  local names = {}
  for i, field in ipairs(definition.fields or {}) do
    if i <= (definition.positional or 0) then names[i] = field[1] end
  end
  if #names > 0 then return ("het.%s(%s)"):format(definition.name, table.concat(names, ", ")) end
  if definition.list then return ("het.%s { %s, ... }"):format(definition.name, definition.list[1]) end
  if #(definition.fields or {}) == 0 then return ("het.%s()"):format(definition.name) end
  return ("het.%s { ... }"):format(definition.name)
end

-- "whole number, 1 or more, default 4"
local function terms(field)
  local words = { (define.type_name(field[2]):gsub("^an? ", "")) }
  if field.choices then
    local names = {}
    for i, choice in ipairs(field.choices) do names[i] = tostring(choice) end
    words[1] = "one of " .. table.concat(names, ", ")
  end
  if field.unit then words[#words + 1] = "such as " .. field.unit.such_as end
  for _, limit in ipairs(define.limits(field)) do words[#words + 1] = limit end
  if field.required then words[#words + 1] = "required" end
  if field.default ~= nil and type(field.default) ~= "table" then
    words[#words + 1] = "default " .. text.value(field.default)
  end
  return table.concat(words, ", ")
end

local function field_lines(fields, indent, lines)
  for _, field in ipairs(fields) do
    lines[#lines + 1] = ("%s%s  (%s)"):format(indent, field[1], terms(field))
    lines[#lines + 1] = text.wrap(field[3] or "", 100, indent .. "    ")
    if field.fields then field_lines(field.fields, indent .. "    ", lines) end
  end
  return lines
end

-- A module's names: "nn" has nn.linear, nn.gpt, ...
local function names_in(module)
  local names = {}
  for _, name in ipairs(define.names()) do
    if name:sub(1, #module + 1) == module .. "." then names[#names + 1] = name end
  end
  return names
end

-- A name and its sentence beside it, below it where the name is long.
local function summary(name, definition)
  local indent = (" "):rep(23)
  local sentence = text.wrap(definition.sentence, 100, indent)
  if #name >= #indent then return name .. "\n" .. sentence end
  return name .. (" "):rep(#indent - #name) .. sentence:sub(#indent + 1)
end

-- The text of a definition.
local function text_of(definition)
  local lines = { signature(definition), text.wrap(definition.sentence, 100) }
  if #(definition.fields or {}) > 0 then
    lines[#lines + 1] = ""
    field_lines(definition.fields, "  ", lines)
  end
  if definition.example then
    lines[#lines + 1] = ""
    lines[#lines + 1] = "  " .. definition.example
  end
  if definition.is_object then
    lines[#lines + 1] = ""
    for _, member in ipairs(definition.members) do lines[#lines + 1] = summary(signature(member), member) end
  end
  return table.concat(lines, "\n")
end

-- "; did you mean 'nn.linear'?": a name that is nearly what was asked for, with or without its module.
-- Two letters are near to everything.
local function nearly(wanted)
  local candidates, of_short = {}, {}
  for _, name in ipairs(define.names()) do
    local short = name:match("[^.]+$")
    candidates[#candidates + 1], candidates[#candidates + 2] = name, short
    if not of_short[short] or of_short[short]:match "^op%." then of_short[short] = name end
  end
  local near = #wanted > 2 and native.nearest(wanted, candidates)
  return near and ("; did you mean '%s'?"):format(of_short[near] or near) or "; ?het lists all names"
end

-- The text of what a module has; of all that there is but operators and methods when it is "".
local function list(module)
  local names = module == "" and define.names() or names_in(module)
  if #names == 0 then return nil end
  local lines = {}
  for _, each in ipairs(names) do
    local definition = define.lookup(each)
    local listed = not each:match("^op%.") and not definition.of
    if module ~= "" or listed then lines[#lines + 1] = summary(each, definition) end
  end
  if module == "" then lines[#lines + 1] = summary("op", { sentence = "every operator; ?op lists them" }) end
  return table.concat(lines, "\n")
end

-- Of a value: what such values are, or a member of them. Nil when there is no help for it.
local function of_value(value, member)
  local object = define.object_of(value)
  if object and member then
    local definition = define.lookup(object.name .. "." .. member)
    return definition and text_of(definition)
  end
  local definition = object or type(value) == "function" and define.lookup(value)
  return definition and text_of(definition)
end

-- Of a name that constructors have as a field: what it takes, and in which; nil: none has it.
local function of_fields(wanted)
  local order, owners = {}, {}
  for _, name in ipairs(define.names()) do
    for _, field in ipairs(define.lookup(name).fields or {}) do
      if field[1] == wanted then
        local lines = table.concat(field_lines({ field }, "", {}), "\n")
        if not owners[lines] then order[#order + 1], owners[lines] = lines, {} end
        table.insert(owners[lines], name)
      end
    end
  end
  for i, lines in ipairs(order) do
    order[i] = lines .. "\n" .. text.wrap("in " .. table.concat(owners[lines], ", "), 100, "    ")
  end
  return order[1] and table.concat(order, "\n")
end

--- The text of `?name`.
-- @param name "nn.attention", also "het.nn.attention"; "nn" lists what is in it; "run" and "run.start" explain an
-- object and its method; or a constructor or an object itself
-- @tparam[opt] function find function(path): the value of a session's name, or nil
function docs.help(name, find)
  require("het").load_all()
  if name ~= nil and type(name) ~= "string" then
    return of_value(name) or ("no help for this %s"):format(define.kind_of(name))
  end
  local wanted = (name or ""):gsub("^het[%.:]?", "")
  if find and wanted ~= "" then
    local owner, member = wanted:match("^(.*)[%.:]([%w_]+)$")
    local value = find(wanted)
    local found = owner and find(owner) ~= nil and of_value(find(owner), member) or value ~= nil and of_value(value)
    if found then return found end
    if value ~= nil and not define.lookup(wanted) and not list(wanted) then
      return ("%s is a %s"):format(wanted, define.kind_of(value))
    end
  end
  local definition = define.lookup(wanted)
  if definition then return text_of(definition) end
  return list(wanted) or of_fields(wanted) or ("no help for '%s'%s"):format(wanted, nearly(wanted))
end

-- The page that a definition stands on: that of its module or its object.
local function module_of(name)
  local definition = define.lookup(name)
  return name:match("^([%w_]+)%.") or definition and definition.is_object and name or "het"
end

local function title_of(module)
  if module == "het" then return "het" end
  local definition = define.lookup(module)
  return definition and definition.is_object and module or "het." .. module
end

local function escape(words) return (words:gsub("|", "\\|"):gsub("\n", " ")) end

local function table_rows(fields, prefix, lines)
  for _, field in ipairs(fields) do
    lines[#lines + 1] = ("| `%s%s` | %s | %s |"):format(prefix, field[1], escape(terms(field)), escape(field[3] or ""))
    if field.fields then table_rows(field.fields, prefix .. field[1] .. ".", lines) end
  end
end

local function section(definition, lines)
  if definition.is_object and not definition.signature then   -- the page's title names it; its members follow
    lines[#lines + 1] = definition.sentence .. "\n"
    return
  end
  lines[#lines + 1] = ("## %s\n\n`%s`\n\n%s\n"):format(definition.name, signature(definition), definition.sentence)
  if #(definition.fields or {}) > 0 then
    lines[#lines + 1] = "| field | what it takes | what it is |\n|---|---|---|"
    table_rows(definition.fields, "", lines)
    lines[#lines + 1] = ""
  end
  if definition.example then lines[#lines + 1] = ("```lua\n%s\n```\n"):format(definition.example) end
end

-- Types of fields in the notation of LuaLS.
local stub_types = { record = "table", layer = "table|function", any = "any", list = "table" }

local function stub_type(type_of_field)
  local names = {}
  for name in type_of_field:gmatch("[^|]+") do
    names[#names + 1] = stub_types[name] or (({ integer = 1, number = 1, boolean = 1, string = 1, table = 1,
      ["function"] = 1, userdata = 1 })[name] and name) or "table"
  end
  return table.concat(names, "|")
end

-- What editors see of a member: a method, or a field.
local function member_stub(definition, lines)
  local object, short = definition.of.name, definition.name:match("[^.]+$")
  lines[#lines + 1] = ("--- %s\n--- %s"):format(definition.sentence, definition.signature)
  if definition.signature:find(":", 1, true) then
    lines[#lines + 1] = ("function %s:%s(...) end\n"):format(object, short)
  else
    lines[#lines + 1] = ("%s.%s = nil\n"):format(object, short)
  end
end

local function stub(definition, lines)
  if definition.is_object then
    local name = definition.name
    lines[#lines + 1] = ("--- %s\n---@class %s\nlocal %s = {}\n"):format(definition.sentence, name, name)
    if definition.signature then   -- its constructor
      lines[#lines + 1] = ("--- %s\n---@return %s\nfunction het.%s(...) end\n"):format(definition.signature, name, name)
    end
    return
  end
  if definition.of then return member_stub(definition, lines) end
  if (definition.signature or ""):find(":", 1, true) then return end   -- a method that stands with its object
  local module, short = module_of(definition.name), definition.name:match("[^.]+$")
  local path = module == "het" and "het." .. short or ("het.%s.%s"):format(module, short)
  lines[#lines + 1] = "--- " .. definition.sentence
  if definition.signature or not definition.fields then
    if definition.signature then lines[#lines + 1] = "--- " .. definition.signature end
    lines[#lines + 1] = ("function %s(...) end\n"):format(path)
    return
  end
  local fields = {}
  for _, field in ipairs(definition.fields) do
    fields[#fields + 1] = ("%s%s: %s"):format(field[1], field.required and "" or "?", stub_type(field[2]))
  end
  lines[#lines + 1] = ("---@param fields { %s }"):format(table.concat(fields, ", "))
  local object = define.object_named(definition.kind)
  lines[#lines + 1] = ("---@return %s\nfunction %s(fields, ...) end\n"):format(object and object.name or "table", path)
end

--- `hetrun docs FOLDER`: a page for each module, and het.lua with stubs for editors. Returns the exit code.
function docs.write(folder)
  require("het").load_all()
  if native.settings.help then
    native.write("stdout", "hetrun docs FOLDER writes the documentation of the Lua library: a page for each module, an "
      .. "index,\nand het.lua, stubs for editors that know LuaLS. It has no options.\n")
    return 0
  end
  if not folder then
    native.fail("usage", "hetrun docs needs the folder to write to: hetrun docs FOLDER")
  end
  native.make_folder(folder)
  local pages, order, stubs = {}, {}, { "---@meta\n\nhet = {}\n" }
  for _, name in ipairs(define.names()) do
    local module = module_of(name)
    if not pages[module] then
      pages[module] = { ("# %s\n"):format(title_of(module)) }
      order[#order + 1] = module
      if title_of(module) ~= module then stubs[#stubs + 1] = ("het.%s = {}\n"):format(module) end
    end
    section(define.lookup(name), pages[module])
    stub(define.lookup(name), stubs)
  end
  local index = { "# The Lua library\n" }
  for _, module in ipairs(order) do
    native.write_text(("%s/%s.md"):format(folder, module), table.concat(pages[module], "\n"))
    index[#index + 1] = ("- [%s](%s.md)"):format(title_of(module), module)
  end
  native.write_text(folder .. "/README.md", table.concat(index, "\n") .. "\n")
  stubs[#stubs + 1] = "return het"
  native.write_text(folder .. "/het.lua", table.concat(stubs, "\n") .. "\n")
  native.write("stdout", ("%d names in %d pages and het.lua (editor stubs) in %s\n"):format(#define.names(), #order,
    folder))
  return 0
end

return docs
