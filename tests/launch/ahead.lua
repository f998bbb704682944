-- Which changes of an elastic run are foreseen, and which plans serve for them: hetrun --trust ahead.lua
local ahead = require "het.train.ahead"
local cluster = require "het.plan.cluster"
local planning = require "het.plan.planning"
local ranks = require "het.plan.ranks"

local function check(is_right, what, ...)
  if not is_right then error(what:format(...), 2) end
end

local function rank_on(host, more)
  local own = { host = host, zone = "", kind = "cpu", model = "a processor", threads = 1, cores = 4, f32 = 1e11,
    bf16 = 2e11, memory = 2 ^ 34, memory_bandwidth = 2e10, name = host }
  for name, value in pairs(more or {}) do own[name] = value end
  return own
end

-- "a a b, joins: a a b c": the hosts of the members after each change.
local function foreseen(seen)
  local words = {}
  for i, change in ipairs(ahead.changes(seen)) do
    local hosts = {}
    for k, own in ipairs(change.members) do hosts[k] = own.host end
    words[i] = (change.joins and "joins: " or "") .. table.concat(hosts, " ")
  end
  return table.concat(words, ", ")
end

local function expect(seen, right)
  local found = foreseen(seen)
  check(found == right, "foreseen are '%s', not '%s'", found, right)
end

local three = { rank_on "a", rank_on "a", rank_on "b" }
-- Machines first, then single ranks of those with several. The first rank plans for the losses that it survives.
expect({ all = three, spares = {}, rank = 0, least = 1, most = 4 }, "a a, a b")
expect({ all = three, spares = {}, rank = 1, least = 1, most = 4 }, "a b")
expect({ all = three, spares = {}, rank = 2, least = 1, most = 4 }, "b")
-- Too few would be left.
expect({ all = three, spares = {}, rank = 2, least = 2, most = 4 }, "")
-- Who waits joins, as far as there is room, and takes the places of the lost.
local c, d = rank_on "c", rank_on "d"
expect({ all = three, spares = { c, d }, rank = 0, least = 1, most = 4 }, "joins: a a b c, a a c d, a b c d")
expect({ all = three, spares = { c }, rank = 0, least = 1, most = 3 }, "a a c, a b c")
-- Of one that said nothing of itself nothing is foreseen.
expect({ all = three, spares = { c, false }, rank = 0, least = 1, most = 4 }, "joins: a a b c")
expect({ all = three, spares = { false }, rank = 0, least = 1, most = 3 }, "")
-- One machine.
expect({ all = { rank_on "a", rank_on "a" }, spares = {}, rank = 0, least = 1, most = 2 }, "a")
expect({ all = { rank_on "a" }, spares = {}, rank = 0, least = 1, most = 1 }, "")

local link = { bandwidth = 1e8, latency = 1e-4 }
local function key(all, named, other_link)
  return ahead.key(cluster.with((ranks.cluster_of(all, other_link or link))), named)
end

-- Alike machines are one to a plan, whatever they are called and however fast their links were when they were measured;
-- another speed, zone or number of ranks is not.
check(key { rank_on "a", rank_on "b" } == key { rank_on "b", rank_on "c" }, "names count")
check(key({ rank_on "a", rank_on "b" }, true) ~= key({ rank_on "b", rank_on "c" }, true), "names do not count")
check(key({ rank_on "a" }, false, { bandwidth = 1, latency = 1 }) == key { rank_on "a" }, "links count")
check(key({ rank_on "a", rank_on "b" }, false, { bandwidth = 1e7, latency = 1e-4, of_host = { a = 1e9, b = 1e7 } })
  == key { rank_on "a", rank_on "b" }, "links of other machines count")
for what, other in pairs { speed = rank_on("b", { f32 = 5e10 }), zone = rank_on("b", { zone = "z" }),
  memory = rank_on("b", { memory = 2 ^ 30 }) } do
  check(key { rank_on "a", rank_on "b" } ~= key { rank_on "a", other }, "%s does not count", what)
end
check(key { rank_on "a", rank_on "b" } ~= key { rank_on "a", rank_on "a" }, "machines do not count")

-- The same plan on other machines.
local found = ahead.rename((planning.from_lua [[het.plan { microbatch = 2,
  het.pipeline { microbatches = 3, het.stage { "a:0", "b_2:1" } },
  het.pipeline { microbatches = 1, het.stage { "c:0" } } }]]), { a = "b", b = "c", b_2 = "a", c = "c" })
local devices = table.concat(require("het.plan").devices(found), " ")
check(devices == "b:0 a:1 c:0", "the devices are %s", devices)

-- The planner answers for ranks for which a plan is being made ahead: that one is done, and its thread ends.
do
  local here, ended = cluster.with((ranks.cluster_of({ rank_on "a" }, link))), 0
  local automatic = { automatic = { ahead = 4, fallbacks = 0 } }
  local own = { plans = {}, order = {}, queue = {}, wanted = {}, working = ahead.key(here, false) }
  own.plans[own.working] = { nodes = { "a" }, bandwidth = 1, is_done = function() return false end,
    under_way = function() return { give_up = function() ended = ended + 1 end } end }
  local run = { arguments = { plan = automatic }, cluster_here = here, ahead = own }
  ahead.keep(run, { plan = "found" })
  check(own.plans[own.working].answer and ended == 1, "what is planned twice goes on")
  ahead.stop(run)   -- which gives up what is under way
  check(ended == 2, "nothing is given up")
end

print "right"
os.exit(0)
