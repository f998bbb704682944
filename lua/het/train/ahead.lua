--- Plans made ahead, beside the steps of a run with --elastic: for the machines and ranks that may be lost, and for
-- others that wait to join. A change that comes as foreseen finds its plan there. Each rank plans for the changes after
-- which it would be the first one, for that one decides; so the loss of the first rank is foreseen too.
--
-- A run has `ahead`: `plans` by ahead.key of a cluster, and their keys in `order`, the oldest first; `queue`, the
-- clusters to plan for; `working`, the key of the planning under way; `wanted`, the keys of the changes that are
-- foreseen, and of them `joining`, where others wait to join, since `since`.
local native = require "het.native"
local errors = require "het.errors"
local plan = require "het.plan"
local planning = require "het.plan.planning"
local ranks = require "het.plan.ranks"
local text = require "het.text"

local ahead = {}

local most_plans = 64          -- that are kept
local seconds_between = 0.25   -- two looks for who waits to join
local most_seconds = 20        -- that others wait to join until there is a plan
-- Links between machines that differ by less than this factor are one to a plan: beside other traffic one measures
-- several times slower than alone.
local alike = 10

-- What the planner is asked for; nil where no planner of hetrun's is.
local function automatic_of(a)
  local automatic = (a.plan and a.plan.automatic and a.plan or plan.auto {}).automatic
  return (automatic.ahead or 0) > 0 and type(automatic.policy) ~= "function" and automatic or nil
end

local function exact(value) return type(value) == "number" and ("%.17g"):format(value) or tostring(value) end

--- What has the planner find one plan for two clusters, but for the names of their machines and the links between
-- these: as text.
-- @bool[opt] named the names count too
function ahead.key(cluster, named)
  local parts = { tostring(cluster.all_reduce) }
  local function add(fields, hidden)
    for _, field in ipairs(text.keys(fields)) do
      if not hidden[field] then parts[#parts + 1] = ("%s=%s"):format(field, exact(fields[field])) end
    end
    parts[#parts + 1] = ";"
  end
  for _, type in ipairs(cluster.types) do add(type, {}) end
  -- `zone` may be a class of links, whose rates change: ahead.take compares these.
  for _, node in ipairs(cluster.nodes) do add(node, { name = not named, zone = true }) end
  return table.concat(parts, " ")
end

--- The next changes that are foreseen: a list of { members =, joins = }, with the descriptions of those that the run
-- has then, by rank. Others join; a machine is lost; one rank of several on a machine is. Of losses those after which
-- `rank` is the first one that is left. Those that wait take the places of the lost.
-- @tparam table seen `all`: the members, by rank; `spares`: who waits, in order, false for who did not describe itself;
-- `rank`: from 0; `least`, `most`: members of the run
function ahead.changes(seen)
  local found = {}
  local function add(lost)
    local next_ones, first = {}, nil
    for i, own in ipairs(seen.all) do
      if not lost[i] then
        first = first or i
        next_ones[#next_ones + 1] = own
      end
    end
    local left = #next_ones
    for _, spare in ipairs(seen.spares) do
      if #next_ones >= seen.most then break end
      if not spare then return end
      next_ones[#next_ones + 1] = spare
    end
    local changes = next(lost) ~= nil or #next_ones > left
    if changes and first == seen.rank + 1 and #next_ones >= seen.least then
      found[#found + 1] = { members = next_ones, joins = next(lost) == nil }
    end
  end
  add {}
  local machines = ranks.machines_of(seen.all)
  for _, machine in ipairs(#machines > 1 and machines or {}) do
    local lost = {}
    for _, rank in ipairs(machine.ranks) do lost[rank + 1] = true end
    add(lost)
  end
  for _, machine in ipairs(machines) do
    for _, rank in ipairs(#machine.ranks > 1 and machine.ranks or {}) do add { [rank + 1] = true } end
  end
  return found
end

--- Whether the planner may be asked for a plan after a change: then the ranks are measured before one comes.
function ahead.wants(run)
  local a, roster = run.arguments, run.cluster:roster()
  if not automatic_of(a) then return false end
  for count = roster.least, roster.most do
    if not plan.given_for(a, count) then return true end
  end
  return false
end

local function state_of(run)
  run.ahead = run.ahead or { plans = {}, order = {}, queue = {}, wanted = {} }
  return run.ahead
end

-- Keeps a planning, or what it has found.
local function keep(own, key, entry)
  if not own.plans[key] then own.order[#own.order + 1] = key end
  own.plans[key] = entry
  while #own.order > most_plans and own.order[1] ~= own.working do
    own.plans[table.remove(own.order, 1)] = nil
  end
end

local function forget(own, key)
  own.plans[key] = nil
  for i, other in ipairs(own.order) do
    if other == key then table.remove(own.order, i) break end
  end
end

local function nodes_of(cluster)
  local names = {}
  for i, node in ipairs(cluster.nodes) do names[i] = node.name end
  return names
end

--- Keep what the planner has found for the ranks that are here: the same may come again.
function ahead.keep(run, answer)
  local automatic, cluster = automatic_of(run.arguments), run.cluster_here
  if not automatic then return end
  local key, own = ahead.key(cluster, automatic.fallbacks > 0), state_of(run)
  if own.working ~= key then
    return keep(own, key, { answer = answer, nodes = nodes_of(cluster), bandwidth = cluster.bandwidth })
  end
  local entry = own.plans[key]   -- which is planned for at this moment
  entry.answer = answer
  local thread = entry.under_way()
  if thread then thread:give_up() end
end

-- Ends the planning under way.
local function give_up(own)
  local entry = own.plans[own.working]
  local thread = entry.under_way()
  if thread then
    thread:give_up()
    entry.given_up = true
  end
end

-- What the members that wait to join said of themselves.
local function spares_of(run)
  local spares, ids = {}, {}
  for i, spare in ipairs(run.member:spares()) do
    local ok, about = pcall(native.json_decode, spare.about)
    spares[i], ids[i] = ok and type(about) == "table" and about.description or false, spare.id
  end
  return spares, table.concat(ids, " ")
end

-- Decides what to plan for; what is planned already is not planned again.
local function foresee(run)
  local own, a = run.ahead, run.arguments
  local automatic, roster = automatic_of(a), run.cluster:roster()
  local spares, ids = spares_of(run)
  own.spares = ids
  local joined_before = own.joining
  own.queue, own.wanted, own.joining = {}, {}, nil
  local known = {}
  local machines = #ranks.machines_of(run.described)
  for _, change in ipairs(ahead.changes { all = run.described, spares = spares, rank = run.cluster:rank(),
    least = roster.least, most = roster.most }) do
    if #own.wanted >= automatic.ahead then break end
    -- How fast one machine reaches the first other one is not known before that is there.
    local has_links = machines > 1 or #ranks.machines_of(change.members) == 1
    if has_links and not plan.given_for(a, #change.members) then
      local cluster = require("het.plan.cluster").with((ranks.cluster_of(change.members, run.link)))
      local key = ahead.key(cluster, automatic.fallbacks > 0)
      if change.joins then own.joining = key end
      if not known[key] then
        known[key] = true
        table.insert(own.wanted, key)
        local entry = own.plans[key]
        if not entry or entry.given_up then table.insert(own.queue, { key = key, cluster = cluster }) end
      end
    end
  end
  own.since = #spares > 0 and (own.joining == joined_before and own.since or native.clock()) or nil
  if own.working and not known[own.working] then give_up(own) end
end

-- Whether the planner is done with a plan: then the entry has its `answer`, or has `failed`.
local function is_done(entry)
  if entry.answer or entry.failed then return true end
  local ok, answer = pcall(function() return entry.is_done(0) and entry.wait() or false end)
  if ok and not answer then return false end
  if not ok and select(2, errors.describe(answer)) == "interrupted" then error(answer, 0) end
  entry.answer, entry.failed = ok and answer or nil, not ok
  return true
end

-- Begins with the next plan when the one before is done.
local function work(run)
  local own = run.ahead
  local entry = own.working and own.plans[own.working]
  if entry and not is_done(entry) then return end
  if entry and entry.given_up then
    entry.given_up = nil
    if entry.failed then forget(own, own.working) end
  end
  own.working = nil
  local next_one = table.remove(own.queue, 1)
  if not next_one then return end
  local wanted = setmetatable({ quick = true, gentle = true }, { __index = automatic_of(run.arguments) })
  local entry_of_next = { nodes = nodes_of(next_one.cluster), bandwidth = next_one.cluster.bandwidth }
  entry_of_next.wait, entry_of_next.is_done, entry_of_next.under_way = planning.begin(run, next_one.cluster, wanted)
  own.working = next_one.key
  keep(own, next_one.key, entry_of_next)
end

-- Whether this rank can foresee what the planner will be asked.
local function foresees(run)
  return run.member and run.described and ahead.wants(run)
    -- A recipe's own on_change may not ask it: the first rank has seen it do so.
    and (not run.arguments.on_change or run.found ~= nil)
end

--- A session has begun. All ranks call it.
function ahead.begin(run)
  if not foresees(run) then return ahead.stop(run) end
  state_of(run)
  foresee(run)
end

--- After a step: go on with the plans.
function ahead.go_on(run)
  local own = run.ahead
  if not own then return end
  local now = native.clock()
  if now - (own.looked or 0) >= seconds_between then
    own.looked = now
    if select(2, spares_of(run)) ~= own.spares then foresee(run) end
  end
  work(run)
end

--- Whether those who wait to join find a plan, or have waited for one long enough. On the first rank.
-- @tparam ?number seconds_left of the run, where they are known: without long to go nothing is waited for
function ahead.is_ready(run, seconds_left)
  local own = run.ahead
  if not own or not seconds_left or seconds_left < most_seconds then return true end
  own.looked = 0
  ahead.go_on(run)
  local entry = own.joining and own.plans[own.joining]
  return not own.joining or entry and is_done(entry) or native.clock() - own.since > most_seconds
end

--- How many times as fast steps are predicted to be with those that wait to join; nil where the planner has not planned
-- for both.
function ahead.speedup_by_joining(run)
  local own, automatic, cluster = run.ahead, automatic_of(run.arguments), run.cluster_here
  local joining = own and own.plans[own.joining or false]
  local here = joining and cluster and automatic and own.plans[ahead.key(cluster, automatic.fallbacks > 0)]
  if not here or not is_done(joining) then return nil end
  local now, later = planning.step_seconds(here.answer), planning.step_seconds(joining.answer)
  return now and later and now / later
end

--- The plan for the ranks that are here, where it was made ahead or is on its way; nil: there is none.
-- @treturn table functions `is_done` and `wait`, as planning.begin returns them; `was_done`, whether it was there at
-- once; `renamed`, the names of machines now by those in the plan, nil where they are the same
function ahead.take(run)
  local own, automatic, cluster = run.ahead, automatic_of(run.arguments), run.cluster_here
  if not own or not automatic then return nil end
  local entry = own.plans[ahead.key(cluster, automatic.fallbacks > 0)]
  if not entry or entry.failed or entry.given_up then return nil end
  local is_near = entry.bandwidth < alike * cluster.bandwidth and cluster.bandwidth < alike * entry.bandwidth
  if #cluster.nodes > 1 and not is_near then return nil end
  local thread = entry.under_way and entry.under_way()
  if thread then thread:hurry() end
  local renamed
  for i, name in ipairs(nodes_of(cluster)) do
    if name ~= entry.nodes[i] then
      renamed = renamed or {}
      renamed[entry.nodes[i]] = name
    end
  end
  local was_done = is_done(entry)
  if entry.failed then return nil end
  return { renamed = renamed, was_done = was_done,
    is_done = function() return entry.answer ~= nil or entry.is_done() end,
    wait = function() return entry.answer or entry.wait() end }
end

--- The plan `found` with other names of machines.
function ahead.rename(found, renamed)
  for _, pipeline in ipairs(found.pipelines) do
    for _, stage in ipairs(pipeline.stages) do
      for i, device in ipairs(stage.devices) do
        local name, index = device:match "^(.*):(%d+)$"
        stage.devices[i] = renamed[name] and renamed[name] .. ":" .. index or device
      end
    end
  end
  return found
end

--- How many changes are foreseen on this rank, and how many of them have their plans; nil where none is foreseen.
function ahead.counts(run)
  local own = run.ahead
  if not own or #own.wanted == 0 then return nil end
  local ready = 0
  for _, key in ipairs(own.wanted) do
    local entry = own.plans[key]
    if entry and is_done(entry) then ready = ready + 1 end
  end
  return #own.wanted, ready
end

--- No plan is needed any more: the run ends, or nothing can be foreseen.
function ahead.stop(run)
  if run.ahead and run.ahead.working then give_up(run.ahead) end
  run.ahead = nil
end

return ahead
