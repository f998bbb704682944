--- `hetrun simulate --profiles DIR --model-info FILE --plans DIR`: plans that were really run, predicted from the
-- profile of their own machines and set beside what was measured.
local native = require "het.native"
local errors = require "het.errors"
local suggest = require "het.language.suggest"
local text = require "het.text"

local measured = {}

local options = {
  { "profiles", "DIR", "measured layer times: MODEL/TYPE.json or MODEL/TYPE/profile.json, or these of one model; or a "
    .. "file {MODEL: {TYPE: times}}", needed = true },
  { "other-profiles", "DIR", "a second profile of the same machines; its predictions are shown beside" },
  { "model-info", "FILE", "parameters and activation sizes by layer, JSON", needed = true },
  { "plans", "DIR", "the plans, JSON, with what was measured of their runs", needed = true },
  { "model", "NAME", "of all plans (default: as they say, or the one with as many layers)" },
  { "bandwidth", "RATE", "between machines, such as 25 GB/s (default: as published for the GPU types)" },
  { "latency", "TIME", "between machines, with --bandwidth (default: 0 s)" },
  { "interfaces", "N", "to the network, of each machine, shared evenly by its GPUs (default: 1)" },
}

--- What `hetrun simulate --help` says of measured plans.
function measured.help()
  local lines = { "",
    "hetrun simulate --profiles DIR --model-info FILE --plans DIR predicts plans that were really run:", "" }
  for _, option in ipairs(options) do
    lines[#lines + 1] = ("  %-20s %s"):format(("--%s=%s"):format(option[1], option[2]), option[3])
  end
  return table.concat(lines, "\n") .. "\n"
end

--- Whether the command line asks for measured plans.
-- @tparam {string} words what follows the command and begins with --
function measured.asked(words)
  for _, word in ipairs(words) do
    local name = word:match "^%-%-([^=]+)"
    if name == "profiles" or name == "plans" or name == "model-info" then return true end
  end
  return false
end

-- Options as --name=value or --name value; all mistakes at once. `values`: the words without --.
local function take_options(words, values)
  local given, problems, next_value = {}, {}, 1
  local function problem(format, ...) problems[#problems + 1] = format:format(...) end
  local names = {}
  for _, option in ipairs(options) do names[#names + 1] = option[1] end
  for _, word in ipairs(words) do
    local name, value = word:match "^%-%-([^=]+)=(.*)$"
    name = name or word:match "^%-%-(.+)$"
    local known
    for _, option in ipairs(options) do known = known or option[1] == name and option end
    if not known then
      problem("there is no option --%s%s", name, suggest.sentence(name, names))
    else
      if not value then value, next_value = values[next_value], next_value + 1 end
      if not value or value == "" then
        problem("--%s needs a value: --%s=%s", name, name, known[2])
      elseif given[name] then
        problem("--%s is given twice", name)
      end
      given[name] = value or ""
    end
  end
  for i = next_value, #values do problem("unexpected argument '%s'; options are --name=value", values[i]) end
  for _, option in ipairs(options) do
    if option.needed and not given[option[1]] then
      problem("--%s=%s is missing: %s", option[1], option[2], option[3])
    end
  end
  for name, parse in pairs { bandwidth = native.parse_bandwidth, latency = native.parse_seconds } do
    if given[name] and given[name] ~= "" then
      local good, value = pcall(parse, given[name])
      if good and (value > 0 or name == "latency" and value == 0) then
        given[name] = value
      else
        problem("--%s: %s", name, good and given[name] .. " is not above 0" or errors.describe(value))
      end
    end
  end
  if given.latency and not given.bandwidth then problem("--latency goes with --bandwidth") end
  if given.interfaces and given.interfaces ~= "" then
    local count = tonumber(given.interfaces)
    if count and count >= 1 and count <= 64 and count == math.floor(count) then
      given.interfaces = count
    else
      problem("--interfaces=%s is not a whole number from 1 to 64", given.interfaces)
    end
  end
  if #problems > 0 then errors.usage("hetrun simulate:\n  %s", table.concat(problems, "\n  ")) end
  return given
end

-- What was not measured is native.null.
local function shown(format, scale)
  return function(value) return type(value) == "number" and format:format(value * scale) or "-" end
end
local seconds, gigabytes, percent = shown("%.3f s", 1), shown("%.1f GB", 1e-9), shown("%+.1f %%", 100)

local function lines_of(rows, right_from)
  local widths, lines = {}, {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, text.width(cell)) end
  end
  for _, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local fill = (" "):rep(widths[i] - text.width(cell))
      cells[i] = i >= right_from and fill .. cell or cell .. fill
    end
    lines[#lines + 1] = (table.concat(cells, "  "):gsub("%s+$", ""))
  end
  return lines
end

local function summary_line(what, spread)
  if spread.plans == 0 then return ("%s: nothing to compare"):format(what) end
  return ("%s: %d of %d within %.0f %%, median %.1f %%, worst %s"):format(what, spread.within, spread.plans,
    100 * spread.asked, 100 * spread.median, percent(spread.worst))
end

--- The answer of native.simulate_measured as a table for people.
function measured.text(answer)
  local rows = { { "plan", "GPUs", "micro-batch", "predicted", "other links", "measured", "error", "memory", "measured",
    "error", "" } }
  local second
  for _, plan in ipairs(answer.plans) do second = second or type(plan.other_seconds) == "number" end
  if second then table.insert(rows[1], 8, "second profile") end
  local below, notes, doubts, seen = {}, {}, {}, {}
  for _, plan in ipairs(answer.plans) do
    if plan.predicted_seconds then
      rows[#rows + 1] = { plan.plan, tostring(plan.gpus), ("%d x %d"):format(plan.microbatches, plan.microbatch),
        seconds(plan.predicted_seconds),
        ("%.3f to %.3f s"):format(plan.link_spread.least, plan.link_spread.most), seconds(plan.measured_seconds),
        percent(plan.error), gigabytes(plan.predicted_memory_bytes), gigabytes(plan.measured_memory_bytes),
        percent(plan.memory_error),
        (plan.contradicts and "*" or "") .. (#plan.suspicious > 0 and "?" or "") }
      if second then
        table.insert(rows[#rows], 8, seconds(plan.other_seconds) .. (plan.other_contradicts and " *" or ""))
      end
      for _, doubt in ipairs(plan.suspicious) do
        doubts[#doubts + 1] = text.wrap(("? %s: %s"):format(plan.plan, doubt), 118, "  ")
      end
      if plan.contradicts then
        below[#below + 1] = text.wrap(("* %s: %s"):format(plan.plan, plan.reason), 118, "  ")
      end
      for _, note in ipairs(plan.notes) do
        if not seen[note] then notes[#notes + 1] = "  " .. note end
        seen[note] = true
      end
    end
  end
  local lines = #rows > 1 and lines_of(rows, 2) or {}
  if #below > 0 then
    lines[#lines + 1] = "\nThe profile contradicts these runs; they are left out of what follows:"
    for _, line in ipairs(below) do lines[#lines + 1] = line end
  end
  if #doubts > 0 then
    lines[#lines + 1] = "\nSuspicious measured values:"
    table.move(doubts, 1, #doubts, #lines + 1, lines)
  end
  if #answer.skipped > 0 then
    lines[#lines + 1] = "\nSkipped:"
    for _, line in ipairs(answer.skipped) do lines[#lines + 1] = "  " .. line end
  end
  if #notes > 0 then
    lines[#lines + 1] = "\nAssumed:"
    for _, line in ipairs(notes) do lines[#lines + 1] = line end
  end
  if answer.summary.simulated > 0 then
    lines[#lines + 1] = "\n" .. summary_line("seconds", answer.summary.seconds)
    lines[#lines + 1] = summary_line("memory of the fullest GPU", answer.summary.memory)
  end
  for _, warning in ipairs(answer.warnings) do lines[#lines + 1] = text.wrap("warning: " .. warning, 118, "  ") end
  return table.concat(lines, "\n") .. "\n"
end

-- Every problem once, whatever it spoils.
local function problems_of(answer)
  local all, seen = {}, {}
  local function add(list)
    for _, problem in ipairs(list) do
      if not seen[problem] then all[#all + 1] = problem end
      seen[problem] = true
    end
  end
  add(answer.problems)
  for _, plan in ipairs(answer.plans) do add(plan.problems) end
  return all
end

--- The command; returns the exit code: 2 when a file has mistakes, whatever could be predicted beside it.
-- @tparam {string} values the words without --
function measured.simulate(values)
  if native.settings.help then
    native.write("stdout", measured.help():gsub("^\n", ""))
    return 0
  end
  local given = take_options(native.arguments or {}, values)
  local answer, encoded = native.simulate_measured { profiles = given.profiles,
    other_profiles = given["other-profiles"],
    model_info = given["model-info"],
    plans = given.plans, model = given.model, bandwidth = given.bandwidth, latency = given.latency,
    interfaces = given.interfaces }
  local problems = problems_of(answer)
  local json = native.settings.json
  if not native.settings.quiet or not json then native.write(json and "stderr" or "stdout", measured.text(answer)) end
  if #problems > 0 then
    native.write("stderr", ("%s:\n  %s\n"):format(#problems == 1 and "a problem" or #problems .. " problems",
      table.concat(problems, "\n  ")))
  end
  if json then native.write("stdout", encoded .. "\n") end
  return #problems > 0 and errors.exit_codes.usage or 0
end

return measured
