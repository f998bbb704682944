--- `het.options`: a recipe's own options, declared once with default and one line of doc; their types are those of
-- the defaults. `hetrun recipe.lua --help` prints them, `--name=value` sets them.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local mistakes = require "het.language.mistakes"
local suggest = require "het.language.suggest"
local text = require "het.text"

local options = {}

-- Options that the program itself takes from the command line.
local general = {
  { "help", "this text" },
  { "json", "make the last line one JSON object" },
  { "quiet", "print results and errors only" },
  { "metrics", "write one JSON object per report to this file" },
  { "threads", "CPU threads (default: every core)" },
  { "device", "where to run: cpu, cuda (cuda:1 for the second GPU) or reference (slow; the oracle of the tests); of "
    .. "several ranks in turn: cuda,cpu,cpu" },
  { "trace", "write a Chrome trace of one step over all ranks to this file" },
  { "trust", "let the recipe use all of Lua, any file and other programs" },
  { "allow-read", "a file or folder that the recipe may read" },
  { "allow-write", "a file or folder that the recipe may write" },
  { "limit-memory", "memory of the process, such as 8GiB (default: what is available; with --trust and on a GPU "
    .. "none)" },
  { "workers", "number of ranks on this machine, each a process" },
  { "elastic", "continue when ranks are lost or join; how many at least and at most: 2:6" },
  { "respawn", "with --elastic: start a rank again that was lost" },
  { "chaos", "with --workers and --elastic: ranks vanish and come again, as this seed draws it" },
  { "listen", "with --elastic: where ranks of other machines may join: 10.0.0.7:7777" },
  { "join", "join the run that listens there, with --workers ranks of this machine" },
  { "rendezvous", "where ranks on several machines meet: etcd://host:2379" },
  { "interface", "interface or address for the traffic between ranks" },
  { "secret-file", "file with the run's shared secret" },
  { "timeout", "how long to wait for other ranks, such as 90s" },
  { "warn-after", "after how long to name the ranks that are late, such as 10s" },
  { "resume", "go on with the run that is saved where the recipe saves" },
  { "overwrite", "replace the model that is saved where the recipe saves" },
  { "limit-time", "end as by Ctrl-C after this time, such as 10min" },
}

local declared      -- of the recipe that runs: the list of its options
local chosen = {}   -- and their values by name

-- Names in the order of the recipe's text: the order of a Lua table's fields is lost.
local function in_source_order(specs, recipe_text)
  local names = text.keys(specs)
  if not recipe_text then return names end
  local place = {}
  for _, name in ipairs(names) do
    place[name] = recipe_text:find("%f[%w_]" .. name:gsub("%W", "%%%0") .. "%s*=%s*{") or math.huge
  end
  table.sort(names, function(a, b)
    if place[a] ~= place[b] then return place[a] < place[b] end
    return a < b
  end)
  return names
end

local parsers = {
  number = function(word) return tonumber(word) end,
  boolean = function(word) return ({ ["true"] = true, yes = true, ["1"] = true, ["false"] = false, no = false,
                                     ["0"] = false })[word] end,
  string = function(word) return word end,
}

local function command_line()
  local given, mistaken = {}, {}
  for _, word in ipairs(native.arguments or {}) do
    local name, value = word:match("^%-%-([^=]+)=(.*)$")
    if not name then name, value = word:match("^%-%-(.+)$"), true end
    if name then given[#given + 1] = { name = name:gsub("%-", "_"), value = value, said = "--" .. name }
    else mistaken[#mistaken + 1] = word end
  end
  return given, mistaken
end

local function mistake(sentence) mistakes.record("options", nil, sentence) end

-- One option as a field of define: type from its default, range and choices as given.
local function field_of(name, spec)
  local default = spec[1]
  local kind = type(default)
  if kind == "number" then kind = (default == math.floor(default) and not spec.fraction) and "integer" or "number" end
  return { name, kind, spec[2] or "", default = default, min = spec.min, max = spec.max, above = spec.above,
           below = spec.below, choices = spec.choices, path = spec.path }
end

local function parse(field, given)
  if given.value == true and field[2] ~= "boolean" then
    return nil, ("%s needs a value, such as %s=%s"):format(given.said, given.said,
      field.default == "" and "TEXT" or tostring(field.default))
  end
  local value = given.value
  if value ~= true then
    local parser = parsers[field[2] == "integer" and "number" or field[2]]
    value = parser(given.value)
  end
  if value == nil then
    return nil, ("%s=%s is not %s; the default is %s"):format(given.said, given.value,
      define.type_name(field[2]), tostring(field.default))
  end
  local problem = define.value_problem(field, value)
  if problem then
    if field.min and type(value) == "number" and value < field.min or
       field.max and type(value) == "number" and value > field.max then
      problem = problem .. ("; the default is %s"):format(tostring(field.default))
    end
    return nil, ("%s=%s%s"):format(given.said, tostring(given.value), problem)
  end
  return value
end

-- Why `path =` of an option is wrong; nil when it is not.
local function path_problem(name, spec)
  if spec.path == nil then return nil end
  if spec.path ~= "read" and spec.path ~= "write" then
    return ("het.options.%s: path = %s is neither \"read\" nor \"write\""):format(name, text.value(spec.path))
  end
  return type(spec[1]) ~= "string" and ("het.options.%s: path = is for options that are strings"):format(name) or nil
end

-- The person named this path on the command line, so the recipe may read it, or write it.
local function grant(name, path)
  local ok, problem = pcall(native.grant_option, name, path == "write")
  if not ok then mistake((errors.describe(problem))) end
end

-- What would work instead of an option that there is not.
local function instead_of(option, by_name, names, all)
  local switch = option.name:match("^no_(.+)$")
  if switch and by_name[switch] and by_name[switch][2] == "boolean" then
    return ("did you mean --%s=false?"):format(switch)
  end
  local near = native.nearest("--" .. option.name, all)
  return near and ("did you mean %s?"):format(near) or "it has " .. table.concat(names, ", ")
end

--- Declare the options of a recipe; returns their values by name.
-- @tparam table specs `name = { default, "doc", min =, max =, above =, below =, choices =, fraction =, path = }`; a
-- number is whole when its default is, unless `fraction` is true. path = "read" or "write": a text that names a file or
-- folder, which the recipe may read, or write, when the command line names it
-- @string[opt] recipe_text source of the recipe, for the order of the options
function options.declare(specs, recipe_text)
  if type(specs) ~= "table" then
    errors.usage('het.options takes a table: { steps = { 2000, "optimizer steps" } }')
  end
  local fields, by_name, values, names = {}, {}, {}, {}
  local before = mistakes.count()
  for _, name in ipairs(in_source_order(specs, recipe_text)) do
    local spec = specs[name]
    if type(name) ~= "string" or type(spec) ~= "table" or spec[1] == nil or not parsers[type(spec[1])] then
      mistakes.record("options", type(name) == "string" and name or nil,
        ("het.options.%s: an option is { default, \"what it is\" }, with a number, a string or a boolean as default")
        :format(tostring(name)))
    elseif path_problem(name, spec) then
      mistakes.record("options", name, path_problem(name, spec))
    else
      local field = field_of(name, spec)
      fields[#fields + 1], by_name[name], values[name] = field, field, spec[1]
      names[#names + 1] = "--" .. name
    end
  end
  declared, chosen = fields, values
  if mistakes.count() > before then mistakes.raise() end   -- what follows would be about options that are not known
  local given, mistaken = command_line()
  for _, word in ipairs(mistaken) do mistake(("'%s' is not an option; options are --name=value"):format(word)) end
  for _, option in ipairs(given) do
    local field = by_name[option.name]
    if not field then
      local all = { unpack(names) }
      for _, known in ipairs(general) do all[#all + 1] = "--" .. known[1] end
      for _, known in pairs(native.command_options or {}) do all[#all + 1] = known end
      mistake(("this recipe has no option %s; %s"):format(option.said, instead_of(option, by_name, names, all)))
    else
      local value, problem = parse(field, option)
      if value == nil then mistake(problem) else values[option.name] = value end
      if value and field.path then grant(option.name, field.path) end
    end
  end
  if native.settings and native.settings.help then options.exit_with_help(recipe_text) end
  -- What follows would be wrong for the defaults, which the person did not want.
  if mistakes.count() > before then mistakes.raise() end
  return setmetatable({}, {
    kind = "options",
    __index = function(_, name)
      if values[name] == nil then
        errors.usage("het.options declares no '%s'%s", tostring(name), suggest.sentence(tostring(name),
          text.keys(values)))
      end
      return values[name]
    end,
    __newindex = function(_, name) errors.usage("option '%s' is set on the command line, not in the recipe", name) end,
  })
end

--- Mistakes of the command line when the recipe declares no options at all.
function options.check_undeclared()
  if declared then return end
  for _, word in ipairs(native.arguments or {}) do
    mistake(("this recipe has no options (het.options declares some); it was given %s"):format(word))
  end
end

-- The comment at the head of a recipe.
local function head_comment(recipe_text)
  local lines = {}
  for line in (recipe_text or ""):gmatch("([^\n]*)\n") do
    local words = line:match("^%-%-+%s?(.*)$")
    if not words then break end
    lines[#lines + 1] = words
  end
  return table.concat(lines, "\n")
end

--- The text of `hetrun recipe.lua --help`.
function options.help_text(path, recipe_text)
  local lines = { ("hetrun %s [--name=value ...]"):format(path or "recipe.lua"), "" }
  local head = head_comment(recipe_text)
  if head ~= "" then lines[#lines + 1] = head .. "\n" end
  local function row(name, doc, ...)
    local terms = { ... }
    local said = terms[1] and " (" .. table.concat(terms, ", ") .. ")" or ""
    lines[#lines + 1] = ("  --%-20s %s%s"):format(name, doc, said)
  end
  if declared and #declared > 0 then
    lines[#lines + 1] = "Options of this recipe:"
    for _, field in ipairs(declared) do
      local doc = field[3]
      if field.path then doc = ("%s (the recipe %ss it)"):format(doc, field.path) end
      if field.choices then doc = doc .. ": " .. table.concat(field.choices, ", ") end
      row(field[1] .. "=" .. field[2]:upper(), doc, "default: " .. text.value(field.default),
        unpack(define.limits(field)))
    end
    lines[#lines + 1] = ""
  end
  lines[#lines + 1] = "General options:"
  for _, option in ipairs(general) do row(option[1], option[2]) end
  return table.concat(lines, "\n") .. "\n"
end

-- What stops a recipe after its help was asked for; het.run_recipe's caller takes it for success.
options.help_wanted = errors.new("help", "help")

--- Stop the recipe here: its options are known, and only they were asked for.
function options.exit_with_help() error(options.help_wanted, 0) end

--- The values of the recipe's options by name.
function options.values() return chosen end

--- Forget the options of the last recipe.
function options.reset() declared, chosen = nil, {} end

return options
