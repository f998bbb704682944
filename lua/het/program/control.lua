--- `hetrun status` and `hetrun attach`: look at a running job, and steer it.
local native = require "het.native"
local errors = require "het.errors"
local progress = require "het.train.progress"
local subcommand = require "het.program.subcommand"
local text = require "het.text"

local control = {}

local options = {
  { "pid", "N", "the run of this process of this machine, as a launcher (default: the newest run of this user; for a "
    .. "word of `attach` that steers it, the only one)" },
  { "run", "NAME", "the name of the run (het.train's `name`), where a store has several" },
}

-- By word: what it is, and seconds that its answer is waited for.
local commands = {
  { "status", "how the run is doing" },
  { "pause", "wait after the step under way" },
  { "resume", "go on" },
  { "snapshot", "take a snapshot now" },
  { "replan", "choose a plan again for the ranks that are there (of a run with --elastic)" },
  { "stop", "end the run as by Ctrl-C: it is saved" },
  { "leave", "leave this prompt; the run goes on (also quit, or Ctrl-D)" },
}
local longest_wait = 120   -- seconds for an answer; it comes after the step under way

local function say(format, ...)
  native.write("stdout", (select("#", ...) == 0 and format or format:format(...)) .. "\n")
end

-- --- which run

-- What a recipe says in het.train is on no command line.
local elsewhere = "where its recipe names a rendezvous, --rendezvous=etcd://HOST:PORT reaches it"

-- Processes of runs, in words.
local function processes(runs)
  local pids = {}
  for i, run in ipairs(runs) do pids[i] = ("%d"):format(run.pid) end
  return table.concat(pids, ", ")
end

-- `steers`: what is meant is done to it, so that it has to be clear which run that is.
local function connect(given, steers)
  native.let_interrupts_end()
  local rendezvous = native.settings.rendezvous
  local pid = given.pid and (tonumber(given.pid:match "^%d+$")
    or errors.usage("--pid=%s: the number of a process is needed", given.pid))
  if rendezvous and pid then errors.usage "--pid is of this machine, --rendezvous names a store; give one of them" end
  if rendezvous then
    local attached, name = native.attach { rendezvous = rendezvous, run = given.run,
      secret_file = native.settings.secret_file }
    return attached, name, rendezvous
  end
  local runs, found = native.local_runs(), nil
  if steers and not pid and runs[2] then
    errors.usage("%d runs of this user are on this machine, of processes %s; --pid=N says which one is meant", #runs,
      processes(runs))
  end
  for _, run in ipairs(runs) do
    if not found and (not pid or run.pid == pid) then found = run end
  end
  if not found then
    if pid and runs[1] then
      errors.usage("there is no run of process %d here; there are those of %s", pid, processes(runs))
    end
    errors.usage("no run of this user with several ranks is on this machine. A run that can be looked at is started "
      .. "with --workers N, or alone with --workers 1 --elastic 1; --rendezvous=HOST:PORT (or etcd://HOST:PORT) with "
      .. "the run's secret reaches one elsewhere")
  end
  local where = ("the run of process %d"):format(found.pid)
  local ok, attached, name = pcall(function()
    local attached, name = native.attach { pid = found.pid, run = given.run }
    attached:status()   -- whether the store answers
    return attached, name
  end)
  if not ok then
    local why, kind = errors.describe(attached)
    if kind ~= "peer" then error(attached, 0) end
    errors.raise("peer", "%s cannot be reached: %s; %s", where, why, elsewhere)
  end
  return attached, name, where
end

local function read(attached, name, where)
  local words = attached:status()
  if not words then
    errors.usage("%s has no status of a run '%s' yet: its ranks have not met, or the run has another name "
      .. "(--run=NAME)%s", where, name, native.settings.rendezvous and "" or "; " .. elsewhere)
  end
  return native.json_decode(words)
end

-- --- what it says

local function ago(seconds) return text.duration(math.max(0, seconds)) .. " ago" end

-- Seconds that a run has said nothing, where that is unusual; nil where it is not.
local function silence_of(status)
  local seconds = os.time() - status.at
  local usual = 3 * (text.finite(status.step_seconds) or 0) + 10
  return status.state == "training" and seconds > usual and seconds or nil
end

local function print_status(status)
  local now = os.time()
  local row = "%-10s %s"
  local recipe = status.recipe and (" (%s)"):format(status.recipe) or ""
  say(row, "run", ("%s%s, %s; begun %s, last heard of %s"):format(status.run, recipe, status.state,
    ago(now - (status.started or now)), ago(now - status.at)))
  if silence_of(status) then
    say(row, "", "it may wait for as many ranks as it needs, or move its state: all below is of then")
  end
  local rate = text.finite(status.step_seconds) and status.tokens_per_step and ("; %s %s/s, %s left"):format(
    text.count(status.tokens_per_step / status.step_seconds), status.unit,
    text.duration((status.steps - status.step) * status.step_seconds)) or ""
  say(row, "step", ("%d of %d%s"):format(status.step, status.steps, rate))
  local losses = {}
  for _, name in ipairs { "loss", "validation", "best" } do
    local loss = text.finite(status[name])
    if loss then losses[#losses + 1] = ("%s%.4f"):format(name == "loss" and "" or name .. " ", loss) end
  end
  if losses[1] then say(row, "loss", table.concat(losses, ", ")) end
  if status.generation then say(row, "generation", ("%d"):format(status.generation)) end
  if (status.changes or 0) > 0 then
    say(row, "lost", ("%s repeated in %s of ranks%s"):format(text.plural(status.steps_repeated, "step"),
      text.plural(status.changes, "change"),
      status.paid and (", %s of money"):format(text.money(status.money_lost or 0)) or ""))
  end
  if status.paid then
    say(row, "money", ("%s paid, %s an hour"):format(text.money(status.paid), text.money(status.hourly)))
  end
  for i, rank in ipairs(status.ranks) do
    say(row, i == 1 and "ranks" or "", ("%d  %s  %s  process %d  for %s"):format(rank.rank, rank.host, rank.device,
      rank.pid, text.duration(now - rank.since)))
  end
  for i, spare in ipairs(status.spares or {}) do
    say(row, i == 1 and "spares" or "", ("%s  %s  waits to join"):format(spare.host, spare.device or ""))
  end
  if status.ahead then
    say(row, "ahead", ("%d of %d plans for changes that are foreseen are made"):format(status.ahead.planned,
      status.ahead.foreseen))
  end
  local shots = status.snapshots or {}
  local tiers = {}
  local function add(taken, place)
    if not taken then return end
    local on = taken.hosts and " of " .. text.plural(taken.hosts, "host") or ""
    local behind = (taken.behind_bytes or 0) > 0 and (", replicas %s behind"):format(text.bytes(taken.behind_bytes))
      or ""
    tiers[#tiers + 1] = ("step %d in %s%s, %s%s"):format(taken.step, place, on, ago(now - taken.at), behind)
  end
  add(shots.memory, "memory")
  add(shots.disk, shots.folder)
  add(shots.in_store, shots.store)
  say(row, "snapshots", tiers[1] and table.concat(tiers, "; ") or "none yet")
  for rank, keepers in ipairs((shots.memory or {}).keepers or {}) do
    local places = {}
    for i, keeper in ipairs(keepers) do places[i] = ("rank %d (%s)"):format(keeper, status.ranks[keeper + 1].host) end
    if places[1] then say(row, "", ("copy of what rank %d has: %s"):format(rank - 1, table.concat(places, ", "))) end
  end
  if status.recovery then say(row, "recovery", progress.pause_words(status.recovery)) end
  if status.plan then say(row, "plan", (status.plan:gsub("\n", "\n" .. (" "):rep(11)))) end
  for i, event in ipairs(status.timeline) do
    say(row, i == 1 and "changes" or "", ("%s  after step %d  %s"):format(os.date("%H:%M:%S", event.at), event.step,
      event.event))
  end
end

local function show(status)
  if native.settings.json then say("%s", native.json_encode(status)) else print_status(status) end
end

-- --- commands

local function answer_in(status, id)
  for _, answer in ipairs(status.answers) do
    if answer.id == id then return answer end
  end
end

-- The answer to a command.
local function obeyed(attached, name, where, word)
  local started, id, said = native.clock(), nil, false
  local begun = read(attached, name, where).started
  local text_of = ("%s %d"):format(word, begun)   -- good for this run alone
  while native.clock() - started < longest_wait do
    local status = read(attached, name, where)
    local answer = id and answer_in(status, id)
    if answer then return answer end
    if status.state == "ended" or status.started ~= begun then
      if id then attached:withdraw(id, text_of) end
      errors.usage("run '%s' has ended", name)
    end
    id = id or attached:send(text_of)
    if not said and not native.settings.json and native.clock() - started > 5 then
      said = true
      local silence = silence_of(status)
      native.write("stderr", ("waiting for the run to answer, for %d s at most%s\n"):format(longest_wait, silence
        and (": it has said nothing for %s, as when it waits for ranks"):format(text.duration(silence)) or ""))
    end
    native.sleep(0.05)
  end
  if id then attached:withdraw(id, text_of) end
  errors.raise("peer", "%s", id and ("the run has not answered within %d s: a step takes longer, or its ranks are gone")
    :format(longest_wait) or "another command waits in the run")
end

-- Whether it went well.
local function run_word(attached, name, where, word)
  if word == "status" then
    show(read(attached, name, where))
    return true
  end
  local answer = obeyed(attached, name, where, word)
  if native.settings.json then
    say("%s", native.json_encode { ok = answer.ok, text = answer.text })
  elseif answer.ok then
    say("%s", answer.text)
  else
    native.write("stderr", answer.text .. "\n")
  end
  return answer.ok
end

local function check_word(word)
  local names = {}
  for i, command in ipairs(commands) do
    if command[1] == word then return end
    names[i] = command[1]
  end
  local near = native.nearest(word, names)
  errors.usage("there is no command '%s'%s", word, near and ("; did you mean '%s'?"):format(near)
    or "; there are " .. table.concat(names, ", "))
end

local function prompt(attached, name, where)
  local terminal = native.is_terminal "stdin"
  if terminal and not native.settings.quiet then
    local names = {}
    for i, command in ipairs(commands) do names[i] = command[1] end
    say("attached to %s; %s", where, table.concat(names, ", "))
  end
  local code = 0
  while true do
    if terminal then native.write("stdout", "attach> ") end
    local line = io.read "*l"
    local word = line and line:match "^%s*(.-)%s*$"
    if not line or word == "leave" or word == "quit" or word == "exit" then break end
    if word == "help" or word == "?" then
      for _, command in ipairs(commands) do say("  %-10s %s", command[1], command[2]) end
    elseif word ~= "" then
      local ok, problem = pcall(function()
        check_word(word)
        return run_word(attached, name, where, word)
      end)
      if not ok then
        local why, kind = errors.describe(problem)
        if kind == "peer" then errors.raise("peer", "the run has ended, or its store is gone: %s", why) end
        if kind ~= "usage" then error(problem, 0) end
        native.write("stderr", why .. "\n")
      end
      if (not ok or problem == false) and code == 0 then code = 2 end
    end
  end
  return terminal and 0 or code
end

-- --- the commands of the program

local function help(usage, lines)
  native.write("stdout", usage .. "\n\n")
  for _, line in ipairs(lines) do say("  %-20s %s", line[1], line[2]) end
  for _, option in ipairs(options) do say("  %-20s %s", ("--%s=%s"):format(option[1], option[2]), option[3]) end
  say("  %-20s %s", "--rendezvous=PLACE", "the store of the run instead: HOST:PORT, or etcd://HOST:PORT")
  say("  %-20s %s", "--secret-file=FILE", "with --rendezvous: the run's secret (default: HETRUN_SECRET)")
  say("  %-20s %s", "--json", "print JSON")
  return 0
end

local function given_options(command, words)
  local given, problems = subcommand.take(options, words)
  if problems[1] then errors.usage("hetrun %s: %s", command, problems[1]) end
  if (native.arguments or {})[1] then
    errors.usage("hetrun %s has no option %s; hetrun %s --help lists them", command, native.arguments[1], command)
  end
  return given
end

--- `hetrun status`: returns the exit code.
function control.status(...)
  if native.settings.help then
    return help("hetrun status: how a running job is doing: its ranks, plan, step, losses, changes and snapshots.", {})
  end
  local words = { ... }
  local given = given_options("status", words)
  if words[1] then errors.usage("hetrun status takes options alone, not '%s'", words[1]) end
  local attached, name, where = connect(given)
  show(read(attached, name, where))
  return 0
end

--- `hetrun attach [WORD]`: returns the exit code.
function control.attach(word, ...)
  if native.settings.help then
    return help("hetrun attach [WORD]: a prompt that steers a running job, or one of its words at once.", commands)
  end
  local words = { word, ... }
  local given = given_options("attach", words)
  word = words[1]
  if words[2] then errors.usage("hetrun attach takes one word, not '%s' too", words[2]) end
  if word then check_word(word) end
  local attached, name, where = connect(given, word and word ~= "status" and word ~= "leave")
  if not word then return prompt(attached, name, where) end
  if word == "leave" then return 0 end
  return run_word(attached, name, where, word) and 0 or 2
end

return control
