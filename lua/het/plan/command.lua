--- `hetrun plan` and `hetrun simulate`: plans for a recipe on a cluster, found, explained and drawn.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local planning = require "het.plan.planning"
local subcommand = require "het.program.subcommand"
local text = require "het.text"

local commands = {}

local options = {
  { "cluster", "FILE", "a Lua file that returns het.cluster { ... } (default: this machine)" },
  { "devices", "N", "devices that this machine is divided into, evenly (default: 1)" },
  { "policy", "NAME", "autohet, megatron, whale, exhaustive, search, auto (default: auto) or hap, or a Lua file that "
    .. "returns a function(problem)", plan = true },
  { "microbatch", "N", "with --policy=hap: samples that all devices share at once (default: the batch, or as many as "
    .. "fit)", plan = true },
  { "gains", nil, "with --policy=hap: what each rule beyond HAP's published ones gains", plan = true },
  { "check", nil, "with --policy=hap: whether other solvers find a cheaper program, and GLPK's bound",
    plan = true },
  { "objective", "NAME", "time, cost (money of a step) or progress (with preemptions) (default: time)", plan = true },
  { "without", "LIST", "switch extensions off: " .. table.concat(planning.extensions(), ","), plan = true },
  { "profile", "FILE", "measured layer times and links, as `hetrun profile` writes them", path = "read" },
  { "old", "FILE", "the plan that ran until now, as --lua prints it, or a recipe with a plan: of plans that are nearly "
    .. "as good the one that moves least of its state is taken", plan = true },
  { "near", "SHARE", "with --old or --fallbacks: by how much of the step time a plan that moves less state may be "
    .. "slower (default: 2%)", plan = true },
  { "fallbacks", "N", "plan ahead for the N likeliest losses of a machine or a device", plan = true },
  { "lua", nil, "print only the plan, as a recipe writes it", plan = true },
  { "types", nil, "list the known device types, with their figures and sources; needs no recipe", plan = true },
  { "plan", "FILE", "the plan to simulate, as `hetrun plan --lua` prints it (default: the recipe's own); of several "
    .. "files, with commas between them, all are simulated and their order is judged", simulate = true },
  { "runtime", "WORDS", "how ranks wait for each other: overlapping, blocking, late-reduction or "
    .. "blocking,late-reduction (default: the recipe's)", simulate = true },
  { "html", "FILE", "draw the step, the memory and the cluster as one page", path = "write" },
  { "trace", "FILE", "write the step as a Chrome trace", path = "write" },
}

-- The options of `plan` or of `simulate`.
local function options_of(command)
  local own = {}
  for _, option in ipairs(options) do
    if not option.plan and not option.simulate or option[command] then own[#own + 1] = option end
  end
  return own
end

-- The cluster that a file describes.
local function cluster_in(program, path)
  local value = program.value(path)
  local kind = define.kind_of(value)
  if kind == "run" then
    errors.usage("%s is a recipe (it returns het.train); a cluster file ends with `return het.cluster { ... }`", path)
  end
  if kind ~= "cluster" then
    errors.usage("%s returns %s; a cluster file ends with `return het.cluster { ... }`", path, text.value(value))
  end
  return value
end

-- The names of --without, or nil.
local function without_of(list, policy)
  if not list then return nil end
  local names = {}
  for name in list:gmatch "[^,]+" do names[#names + 1] = name end
  local problems = planning.without_problems(names, policy)
  for i, problem in ipairs(problems) do problems[i] = ("--without=%s: %s"):format(list, problem) end
  if problems[1] then errors.usage("%s", table.concat(problems, "\n")) end
  return names
end

-- true, or it raises.
local function check_choice(name, value, choices)
  if text.contains(choices, value) then return true end
  local near = native.nearest(value, choices)
  errors.usage("--%s=%s is not one of %s%s", name, value, table.concat(choices, ", "),
    near and ("; did you mean '%s'?"):format(near) or "")
end

-- "2%" or 0.02 as a share.
local function share_of(name, value)
  if not value then return nil end
  local percent = value:match "^%s*([%d%.]+)%s*%%%s*$"
  local share = percent and tonumber(percent) and tonumber(percent) / 100 or tonumber(value)
  if not share or not (share >= 0 and share <= 1) then
    errors.usage("--%s=%s is no share between 0 and 1, such as 2%% or 0.02", name, value)
  end
  return share
end

local function count_of(name, value)
  if not value then return nil end
  local count = tonumber(value)
  if not count or count < 1 or count ~= math.floor(count) then
    errors.usage("--%s=%s is not a whole number above 0, such as --%s=2", name, value, name)
  end
  return count
end

-- The plan in a file, as --old and --plan name it.
local function plan_in(program, path, option)
  if not path then return nil end
  local value = program.expression(path)
  if define.kind_of(value) == "run" then value = value.arguments.plan end
  if define.kind_of(value) == "table" then value = value.plan end   -- with fallbacks
  if define.kind_of(value) ~= "plan" or value.automatic then
    errors.usage("%s holds no plan: a file of --%s holds what `hetrun plan --lua` prints, or a recipe whose `plan` is "
      .. "a het.plan { ... }", path, option)
  end
  return value
end

-- A profile that cannot be used is an error before this machine's speed is measured; one of another model only where
-- the recipe states some.
local function check_profile(run, given)
  if not given.profile then return end
  if not run then
    native.profile(given.profile)
    return
  end
  local graph, tokens = run:graph_of_sample()
  native.profile(given.profile, graph, { name = planning.name_of(run), tokens = tokens })
end

-- What the objective lacks of a cluster that could be read, or of this machine.
local function check_prices(cluster, given)
  if given.objective ~= "cost" then return end
  if not given.cluster then
    errors.usage("the objective is cost, and the price of this machine is unknown; describe it in a file of "
      .. "--cluster, with `price =`")
  end
  local problem = cluster and native.price_problem(cluster, given.objective)
  if problem then errors.usage("%s", problem) end
end

-- A process for each pipeline; in it each group of devices, or rank, has two threads, the second for what is on its
-- links.
local function write_trace(path, answer)
  local events, named = {}, {}
  local function name(what, pid, tid, words)
    local key = ("%s %d %d"):format(what, pid, tid)
    if named[key] then return end
    named[key] = true
    events[#events + 1] = { name = what, ph = "M", cat = "__metadata", pid = pid, tid = tid, args = { name = words } }
  end
  for _, event in ipairs(answer.events) do
    local wire = planning.on_wire[event.kind]
    local group = event.rank or planning.group_of(answer.plan, event)
    local tid = group * 2 + (wire and 1 or 0)
    local who = event.rank and ("rank %d"):format(event.rank)
      or table.concat(answer.plan.pipelines[event.pipeline].stages[group].devices, ", ")
    name("process_name", event.pipeline, 0, ("pipeline %d"):format(event.pipeline))
    name("thread_name", event.pipeline, tid, ("%s: %s"):format(who, wire and "communication" or "computation"))
    events[#events + 1] = { name = event.name or ("%s %d"):format(event.kind, event.item), ph = "X",
      pid = event.pipeline, tid = tid, ts = event.start * 1e6, dur = (event["end"] - event.start) * 1e6,
      cat = event.kind }
  end
  native.json_write(path, { traceEvents = events, displayTimeUnit = "ms" })
end

-- Types of devices that a profile lacks, and how to measure them.
local function tell_unmeasured(report)
  for _, source in ipairs(report.sources) do
    if source.layers_measured + source.layers_interpolated + source.layers_extrapolated + source.layers_calibrated == 0
    then
      local ranks = source.type:match "^cpu/(%d+)$"
      native.write("stderr", ("the profile holds nothing of %s: `hetrun %sprofile`%s adds it\n"):format(source.type,
        ranks and ("--workers %s "):format(ranks) or "",
        ranks and "" or (" with --type=%s on such a machine"):format(source.type)))
    end
  end
end

-- What is printed and written of an answer. `drawn`: what the page and the trace show.
local function report(answer, given, title, drawn)
  if given.profile and not native.settings.quiet then tell_unmeasured(answer.report) end
  if given.html then
    native.write_text(given.html, require("het.plan.page").html(title, drawn))
    if not native.settings.quiet then native.write("stderr", ("drawn: %s\n"):format(given.html)) end
  end
  if given.trace then
    write_trace(given.trace, drawn)
    if not native.settings.quiet then native.write("stderr", ("trace: %s\n"):format(given.trace)) end
  end
  if given.lua then
    native.write("stdout", planning.to_lua(answer) .. "\n")
  elseif not native.settings.quiet or not native.settings.json then
    native.write(native.settings.json and "stderr" or "stdout", planning.text_of(answer))
    if not native.settings.json then
      native.write("stdout", "\n" .. answer.lua .. "\n")
      if answer.cheaper then
        native.write("stdout", ("\n-- %s%s\n"):format(answer.cheaper.text, answer.cheaper.lua))
      end
    end
  end
  if native.settings.json then
    answer.events, answer.text, answer.fallbacks_text = nil, nil, nil
    answer.step_seconds = planning.step_seconds(answer) or answer.report.step_seconds   -- of one that does not fit, too
    native.write("stdout", native.json_encode(answer) .. "\n")
  end
end

local function is_file(policy) return policy ~= nil and policy:match "%.lua$" ~= nil end

-- The function that a file of --policy returns.
local function policy_in(program, path)
  local value = program.callback(path)
  if type(value) ~= "function" then
    errors.usage("%s returns %s; a policy file ends with `return function(problem) ... end`", path, text.value(value))
  end
  return value
end

-- The options of a command, each checked by itself with `try`.
local function take_options(command, try, words)
  local given, problems = subcommand.take(options_of(command), words)
  if native.settings.trace and native.settings.trace ~= "" then given.trace = native.settings.trace end
  for _, problem in ipairs(problems) do try(errors.usage, "%s", problem) end
  if given.cluster and given.devices then
    try(errors.usage, "--devices is for this machine; the file of --cluster says what it has")
  end
  given.devices = try(count_of, "devices", given.devices)
  if command ~= "plan" then return given end
  local known = not given.policy or is_file(given.policy)
    or try(check_choice, "policy", given.policy, planning.policies())
  if given.objective then try(check_choice, "objective", given.objective, { "time", "cost", "progress" }) end
  given.microbatch = try(count_of, "microbatch", given.microbatch)
  if given.microbatch and given.policy ~= "hap" then
    try(errors.usage, "--microbatch is for --policy=hap; the other policies choose it")
  end
  if given.gains and given.policy ~= "hap" then
    try(errors.usage, "--gains is for --policy=hap; other policies have no such rules")
  end
  if given.check and given.policy ~= "hap" then
    try(errors.usage, "--check is for --policy=hap; the search of other policies has no second solver")
  end
  if given.policy == "hap" then
    for _, option in ipairs { "old", "near", "fallbacks", "profile" } do
      if given[option] then try(errors.usage, "--policy=hap does not take --%s", option) end
    end
    if given.objective and given.objective ~= "time" then
      try(errors.usage, "--policy=hap finds what takes the least time; it knows no other objective")
    end
  end
  given.near, given.fallbacks = try(share_of, "near", given.near), try(count_of, "fallbacks", given.fallbacks)
  if is_file(given.policy) then
    for _, option in ipairs { "fallbacks", "without" } do
      if given[option] then
        try(errors.usage, "--%s is for the planner's policies; --policy=%s is a file", option, given.policy)
      end
    end
  else
    given.without = try(without_of, given.without, known and given.policy or "auto")
  end
  return given
end

local function recipe_of(program, command, sentence, words)
  return subcommand.recipe(program, { command = command, sentence = sentence, options = options_of(command),
    example = "recipes/gpt_text.lua --cluster=FILE",
    more = command == "simulate" and require("het.plan.measured").help() or nil }, words)
end

-- The plan to simulate: of a file, or the recipe's own.
local function plan_of(program, run, path, file)
  local plan = file and plan_in(program, file, "plan") or run.arguments.plan
  if not plan or plan.automatic then
    errors.usage("%s has no `plan` to simulate%s; `hetrun plan` finds one, and --plan=FILE takes one", path,
      plan and " but one that the planner finds (het.plan.auto or het.plan.hap)" or "")
  end
  return require("het.plan").resolve(plan, run.arguments.batch)
end

-- What a command is given: options, recipe, cluster, profile; all that is wrong with them is raised at once.
-- @treturn ?table the run; nil when only help was wanted
-- @treturn table the cluster, or the exit code
-- @treturn table the options
local function take(program, command, sentence, words)
  local try, raise = errors.collector()
  local given = take_options(command, try, words)
  local run, code = try(recipe_of, program, command, sentence, words)
  if native.settings.help then
    raise()
    return nil, code
  end
  given.old = try(plan_in, program, given.old, "old")
  if is_file(given.policy) then given.policy = try(policy_in, program, given.policy) end
  local cluster = given.cluster and try(cluster_in, program, given.cluster)
  try(check_profile, run, given)
  try(check_prices, cluster, given)
  if run and command == "simulate" then
    local files = {}
    for file in (given.plan or ""):gmatch "[^,]+" do files[#files + 1] = file end
    if files[2] then
      given.plans = {}
      for i, file in ipairs(files) do
        given.plans[i] = { name = file, plan = try(plan_of, program, run, words[1], file) }
      end
    else
      given.plan = try(plan_of, program, run, words[1], given.plan)
    end
  end
  raise()
  return run, cluster or require("het.plan.cluster").here(given.devices or 1), given
end

-- `hetrun plan --types` takes nothing else.
local function check_alone(words)
  local others = {}
  for _, list in ipairs { words, native.arguments or {} } do
    for _, word in ipairs(list) do
      if word ~= "--types" then others[#others + 1] = word end
    end
  end
  if others[1] then
    errors.usage("hetrun plan --types lists the known device types and takes nothing else; leave out %s",
      table.concat(others, ", "))
  end
end

local patience = 10   -- seconds between two words about a planning that takes long

--- `hetrun plan RECIPE`; returns the exit code.
function commands.plan(program, ...)
  if text.contains(native.arguments or {}, "--types") and not native.settings.help then
    check_alone { ... }
    return require("het.plan.types").run()
  end
  local run, cluster, given = take(program, "plan", "finds the best plan for a cluster and explains it", { ... })
  if not run then return cluster end
  given.cheaper = not given.old and not given.fallbacks and not given.lua
  local wait, is_done = planning.begin(run, cluster, given)
  local began = native.clock()
  local said = began
  while not is_done(patience) do
    local now = native.clock()
    if now - said >= patience and not native.settings.quiet then
      said = now
      native.write("stderr", ("planning for %.0f s: %s\n"):format(now - began, given.phase or "plans are simulated"))
    end
  end
  local answer = wait()
  if not answer.feasible then
    if native.settings.json then
      native.write("stdout", native.json_encode { feasible = false, problems = answer.problems } .. "\n")
    end
    errors.usage("no plan fits:\n  %s", table.concat(answer.problems, "\n  "))
  end
  -- A plan with sharding programs is drawn from these.
  local drawn = answer
  if (given.html or given.trace) and (answer.origin == "hap" or answer.pipelines_lua) then
    drawn = planning.simulated_programs(run, cluster, (planning.from_lua(answer.lua)), given)
    drawn.program_text = answer.origin == "hap" and answer.text or nil
  end
  report(answer, given, "plan of " .. ((...)), drawn)
  return 0
end

-- Whether layers of a plan are cut by names, which layer times know nothing of.
local function has_sharding(plan)
  if plan.sharding then return true end
  for _, pipeline in ipairs(plan.pipelines) do
    for _, stage in ipairs(pipeline.stages) do
      if stage.sharding then return true end
    end
  end
  return false
end

-- A step of one plan; what is remarkable of it goes to standard error, after `name` where there are several.
local function simulated(run, cluster, given, plan, name)
  local answer
  if has_sharding(plan) then
    for _, option in ipairs { "profile", "runtime" } do
      if given[option] then errors.usage("hetrun simulate does not take --%s for a plan with `sharding`", option) end
    end
    answer = planning.simulated_programs(run, cluster, plan, given)
  else
    local graph, request = planning.request_of(run, cluster, given)
    request.plan = plan
    request.runtime = given.runtime or run.arguments.runtime
    answer = native.simulate(graph, request)
  end
  local function say(format, ...) native.write("stderr", (name and name .. ": " or "") .. format:format(...)) end
  if answer.over_bytes then
    local fullest
    for _, device in ipairs(answer.report.devices) do
      if not fullest or device.free_bytes < fullest.free_bytes then fullest = device end
    end
    say("it does not fit: %s lacks %s\n", fullest.device, text.bytes(answer.over_bytes))
  end
  if plan.sequence and not has_sharding(plan) then
    say("sequence = true is simulated as without: it sends as many bytes and needs less memory than is said\n")
  end
  return answer
end

-- Several plans: a line of each, and whether their order depends on link speeds.
local function simulate_all(run, cluster, given)
  for _, option in ipairs { "html", "trace" } do
    if given[option] then errors.usage("--%s draws one plan; --plan names %d", option, #given.plans) end
  end
  local plans, ranked, lines, wide = {}, {}, {}, #"plan"
  for i, each in ipairs(given.plans) do
    local answer = simulated(run, cluster, given, each.plan, each.name)
    plans[i] = { name = each.name, step_seconds = answer.report.step_seconds, link_spread = answer.link_spread,
      over_bytes = answer.over_bytes or 0, lua = answer.lua, report = answer.report }
    if not answer.over_bytes then
      ranked[#ranked + 1] = { name = each.name, seconds = answer.report.step_seconds, cases = answer.link_spread.cases }
    end
    wide = math.max(wide, text.width(each.name))
  end
  local function line(name, ...)
    lines[#lines + 1] = ("%s%s  %12s  %s"):format(name, (" "):rep(wide - text.width(name)), ...)
  end
  line("plan", "a step", "with other links")
  for _, plan in ipairs(plans) do
    line(plan.name, native.show_seconds(plan.step_seconds), ("%s to %s%s"):format(
      native.show_seconds(plan.link_spread.least), native.show_seconds(plan.link_spread.most),
      plan.over_bytes > 0 and "; does not fit" or ""))
  end
  local ranking = #ranked > 0 and native.rank_plans(ranked, planning.name_of(run), run.arguments.batch) or {}
  lines[#lines + 1] = ranking.fastest and ("fastest: %s"):format(ranking.fastest) or "none of them fits"
  if ranking.warning then lines[#lines + 1] = text.wrap("warning: " .. ranking.warning, 118, "  ") end
  local json = native.settings.json
  if not native.settings.quiet or not json then
    native.write(json and "stderr" or "stdout", table.concat(lines, "\n") .. "\n")
  end
  if json then native.write("stdout", native.json_encode { plans = plans, ranking = ranking } .. "\n") end
  return 0
end

--- `hetrun simulate RECIPE`, or of plans that were run; returns the exit code.
function commands.simulate(program, ...)
  local measured = require "het.plan.measured"
  if measured.asked(native.arguments or {}) then return measured.simulate { ... } end
  local run, cluster, given = take(program, "simulate", "simulates a step of the recipe's own plan", { ... })
  if not run then return cluster end
  if given.plans then return simulate_all(run, cluster, given) end
  local answer = simulated(run, cluster, given, given.plan)
  given.lua = nil
  report(answer, given, "simulation of " .. ((...)), answer)
  return 0
end

return commands
