--- `hetrun solve FILE`: a choice of one strategy per node for an assignment problem in the form of google/iopddl, what
-- it costs, and a proven lower bound.
local native = require "het.native"
local errors = require "het.errors"
local suggest = require "het.language.suggest"
local text = require "het.text"

local command = {}

local options = {
  { "seconds", "S", "end within this time, reading included (default: 60)", number = true },
  { "seed", "N", "another course of the search (default: 1)", number = true },
  { "out", "FILE", "write the choice to this file, as the contest's programs print it: [1, 0, 2, ...]" },
}

local function say(format, ...)
  native.write("stdout", (select("#", ...) == 0 and format or format:format(...)) .. "\n")
end

local function help()
  say "hetrun solve FILE [--name=value ...] chooses a strategy for each node, so that the sum of the costs of nodes and"
  say "edges is small and the usage at no time exceeds the limit; it prints the cost and a lower bound that is proven."
  say "FILE is an instance of the ASPLOS 2025 contest on intra-operator parallelism (google/iopddl), JSON."
  say ""
  for _, option in ipairs(options) do
    say("  %-20s %s", ("--%s=%s"):format(option[1], option[2]), option[3])
  end
  say("  %-20s %s", "--threads=N", "search on so many threads (default: one for each core, at most 8)")
  say("  %-20s %s", "--json", "print one JSON object instead, with the choice as `solution`")
  say ""
  say "The last line is the choice, unless --out or --json has it. Ctrl-C and SIGTERM end the search early: the best"
  say "choice so far is printed."
  return 0
end

-- Options as --name=value or --name value; all mistakes at once. `values`: the words without --; the first that an
-- option does not take is the file.
local function take_options(words, values)
  local given, problems, waiting, names = {}, {}, {}, {}
  local function problem(format, ...) problems[#problems + 1] = format:format(...) end
  for _, option in ipairs(options) do names[#names + 1] = option[1] end
  for _, name in ipairs { "threads", "json", "quiet" } do names[#names + 1] = name end
  for _, word in ipairs(words) do
    local name, value = word:match "^%-%-([^=]+)=(.*)$"
    name = name or word:match "^%-%-(.+)$"
    local known
    for _, option in ipairs(options) do known = known or option[1] == name and option end
    if not known then
      problem("there is no option --%s%s", name, suggest.sentence(name, names))
    elseif given[name] or waiting[name] then
      problem("--%s is given twice", name)
    elseif value then
      given[name] = value
    else
      waiting[#waiting + 1], waiting[name] = known, true
    end
  end
  -- Numbers first: `--seconds 60 FILE` and `FILE --seconds 60` mean the same.
  local function take(is_wanted)
    for i, value in ipairs(values) do
      if is_wanted(value, i) then return table.remove(values, i) end
    end
  end
  for _, option in ipairs(waiting) do
    if option.number then given[option[1]] = take(function(value) return tonumber(value) end) or "" end
  end
  local file = table.remove(values, 1)
  for _, option in ipairs(waiting) do
    if not option.number then given[option[1]] = take(function() return true end) or "" end
  end
  for _, option in ipairs(options) do
    if given[option[1]] == "" then
      problem("--%s needs a value: --%s=%s", option[1], option[1], option[2])
      given[option[1]] = nil
    end
  end
  for _, value in ipairs(values) do problem("unexpected argument '%s'; options are --name=value", value) end
  if not file then problem "the file of the instance is missing: hetrun solve FILE" end
  return given, file, problems
end

--- Run the words of the command line; returns the exit code.
function command.run(...)
  if native.settings.help then return help() end
  local given, file, problems = take_options(native.arguments or {}, { ... })
  local seconds, seed = tonumber(given.seconds or 60), tonumber(given.seed or 1)
  if not (seconds and seconds > 0 and seconds <= 1e6) then
    problems[#problems + 1] = ("--seconds=%s is not a time in seconds, such as --seconds=60"):format(given.seconds)
  end
  if not (seed and seed >= 0 and seed <= 2 ^ 53 and seed % 1 == 0) then
    problems[#problems + 1] = ("--seed=%s is not a whole number, such as --seed=7"):format(given.seed)
  end
  if #problems > 0 then errors.usage("hetrun solve:\n  %s", table.concat(problems, "\n  ")) end

  local found, encoded, choice = native.solve_assignment { path = file, seconds = seconds, seed = seed }
  if given.out and found.feasible then native.write_text(given.out, choice .. "\n") end
  if native.settings.json then
    say("%s", encoded)
  elseif found.feasible then
    if not native.settings.quiet then
      say("%-10s %s: %d nodes, %d edges", "instance", found.name, found.nodes, found.edges)
      say("%-10s %d variables, %d times that can exceed the limit", "reduced to", found.variables, found.rows)
    end
    say("%-10s %s", "cost", found.cost)
    say("%-10s %s", "bound", found.bound or "none yet")
    local gap = found.bound and ("%.4f %%"):format(100 * found.gap) or "unknown"
    say("%-10s %s", "gap", found.optimal and "0 %, proven optimal" or gap)
    say("%-10s %s at time %d, limit %s", "peak usage", found.peak_usage, found.peak_time, found.usage_limit or "none")
    if not found.usage_limit then
      say("%-10s the file has no usage_limit: a choice may use any amount", "note")
    end
    if found.not_allowed > 0 then
      say("%-10s it has %s of 10^18, which means not allowed: no choice that was found fits without", "note",
        text.plural(found.not_allowed, "cost"))
    end
    say("%-10s %.2f s%s", "time", found.seconds, found.interrupted and ", interrupted" or "")
    if not given.out then say("%s", choice) end
  end
  if not found.feasible then errors.usage("%s: %s", file, found.why_not) end
  return found.interrupted and errors.exit_codes.interrupted or 0
end

return command
