--- What the commands that take a recipe share: their own options among the recipe's, and their --help.
local native = require "het.native"
local errors = require "het.errors"

local subcommand = {}

--- Take a command's options out of the words of the command line; the recipe's stay in native.arguments.
-- @tparam table options list of { name, VALUE or nil, sentence, path = "read" or "write" of one that names a file }
-- @tparam {string,...} words the command's other words: `--name value` takes its value from them
-- @tparam[opt] boolean once one that is given again is the recipe's, which may have an option of that name
-- @treturn table what was given, by name: the value, or true
-- @treturn {string,...} a sentence for each mistake
function subcommand.take(options, words, once)
  local given, rest, problems, taken = {}, {}, {}, {}
  for i, word in ipairs(native.arguments or {}) do
    local name, value = word:match("^%-%-([^=]+)=(.*)$")
    if not name then name = word:match("^%-%-(.+)$") end
    local known
    for _, option in ipairs(options) do
      if option[1] == name then known = option end
    end
    if not known or once and given[name] then
      rest[#rest + 1] = word
    elseif known[2] and not value and words[tonumber(native.followers[i])] then
      taken[#taken + 1] = tonumber(native.followers[i])
      given[name] = words[taken[#taken]]
      table.insert(native.words, ("--%s=%s"):format(name, given[name]))   -- as if it was said so
    elseif known[2] and not value then
      problems[#problems + 1] = ("%s needs a value, such as --%s=%s"):format(word, name, known[2])
    else
      given[name] = value or true
    end
    if known and known.path and type(given[name]) == "string" then subcommand.name_path(given[name], known.path) end
  end
  for i = #taken, 1, -1 do table.remove(words, taken[i]) end
  native.arguments = rest
  native.command_options = {}   -- for what the recipe says of options that it does not know
  for i, option in ipairs(options) do native.command_options[i] = "--" .. option[1] end
  return given, problems
end

--- A command reads (or writes) this path, as the person said: the walls around the recipe leave it open.
-- @string path
-- @string how "read" or "write"
function subcommand.name_path(path, how)
  native.command_paths = native.command_paths or { read = {}, write = {} }
  table.insert(native.command_paths[how], path)
end

local function help(about)
  local usage = "hetrun %s RECIPE [--name=value ...] %s. Options of the recipe may follow too."
  local lines = { usage:format(about.command, about.sentence), "" }
  for _, option in ipairs(about.options) do
    lines[#lines + 1] = ("  %-20s %s"):format("--" .. option[1] .. (option[2] and "=" .. option[2] or ""), option[3])
  end
  lines[#lines + 1] = ("  %-20s %s"):format("--json", "make the last line one JSON object")
  native.write("stdout", table.concat(lines, "\n") .. "\n" .. (about.more or ""))
  return 0
end

--- The run of the recipe that the command's words name.
-- @tparam table about `command`, `sentence`, `example`, `options`; `more` help
-- @treturn ?table nil when only help was wanted
-- @treturn integer exit code
function subcommand.recipe(program, about, words)
  if native.settings.help then return nil, help(about) end
  if not words[1] then
    errors.usage("hetrun %s needs a recipe: hetrun %s %s", about.command, about.command, about.example)
  end
  if words[2] then
    errors.usage("hetrun %s: unexpected argument '%s'; options are --name=value", about.command, words[2])
  end
  native.recipe_for = about.command   -- what is not used may be wrong
  return program.load(words[1]), 0
end

return subcommand
