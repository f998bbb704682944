-- The cluster that the ranks of a run are to the planner: hetrun --trust ranks.lua
local native = require "het.native"
local cluster = require "het.plan.cluster"
local ranks = require "het.plan.ranks"

local function check(is_right, what, ...)
  if not is_right then error(what:format(...), 2) end
end

local function rank_on(host, more)
  local own = { host = host, zone = "", kind = "cpu", model = "a processor", threads = 2, cores = 4, f32 = 1e11,
    bf16 = 2e11, memory = 2 ^ 34, memory_bandwidth = 2e10 }
  for name, value in pairs(more or {}) do own[name] = value end
  return own
end

local link = { bandwidth = 1e8, latency = 1e-4 }

-- Two ranks share one machine, a slower and smaller one is alone: the order is that of the ranks.
local slow = rank_on("host-b.example", { f32 = 4e10, bf16 = 8e10, model = "another", memory = 2 ^ 32 })
local found, names = ranks.cluster_of({ rank_on "host-a", slow, rank_on "host-a" }, link)
check(table.concat(names, " ") == "host_a:0 host_b_example:0 host_a:1", "names are %s", table.concat(names, " "))
check(#found.nodes == 2 and found.nodes[1].devices == 2 and found.nodes[2].devices == 1, "nodes of other sizes")
local types = {}
for _, type in ipairs(found.types) do types[type.name] = type end
check(types["cpu/2"] and types["cpu/2"].f32 == 1e11 and types["cpu/2"].memory == 2 ^ 33, "the two that share a machine")
check(types.cpu and types.cpu.f32 == 4e10 and types.cpu.memory == 2 ^ 32, "the one that is alone")
check(found.bandwidth == 1e8 and found.latency == 1e-4, "another link")
check(found.nodes[1].interfaces == 1, "each rank of a machine has its link alone")

-- Four of two threads have half of their rate on four cores. Measurements that differ by little are of one type.
local four = {}
for i = 1, 4 do four[i] = rank_on("host", { f32 = 1e11 * (1 + 0.01 * i) }) end
found = ranks.cluster_of(four, link)
check(#found.types == 1 and math.abs(found.types[1].f32 - 0.5e11) < 0.03e11, "%d types, %g", #found.types,
  found.types[1].f32)

-- Who has measured nothing is like the others of the machine, or of the processor.
local nothing = { f32 = false, bf16 = false, memory_bandwidth = false }
for _, host in ipairs { "host", "elsewhere" } do
  found = ranks.cluster_of({ rank_on("host", { f32 = 7e10 }), rank_on(host, nothing) }, link)
  check(#found.types == 1 and found.types[1].f32 == 7e10, "%d types, %g", #found.types, found.types[1].f32)
end

-- Hosts whose names are written alike stay apart.
names = select(2, ranks.cluster_of({ rank_on "a-b", rank_on "a.b", rank_on "7" }, link))
check(table.concat(names, " ") == "a_b:0 a_b_2:0 m7:0", "names are %s", table.concat(names, " "))

-- Machines with other links are in other classes of them; a few per cent are none. Who is not known is as slow as the
-- slowest.
local uneven = { bandwidth = 1e8, latency = 1e-4, of_host = { a = 1e9, b = 1e8, c = 0.9e9 } }
local four_hosts = { rank_on "a", rank_on "b", rank_on "c", rank_on "d" }
found = ranks.cluster_of(four_hosts, uneven)
local zones = {}
for i, node in ipairs(found.nodes) do zones[i] = node.zone end
check(table.concat(zones, ", ") == "links 1, links 2, links 1, links 2", "zones are %s", table.concat(zones, ", "))
local between = {}
for _, each in ipairs(found.links) do between[each.from .. " to " .. each.to] = each.bandwidth end
check(between["links 1 to links 1"] == 0.9e9 and between["links 1 to links 2"] == 1e8
  and between["links 2 to links 2"] == 1e8, "other links")
local problems = native.cluster_problems(cluster.with(found))
check(#problems == 0, "%s", problems[1])
check(ranks.cluster_of(four_hosts, link).links == nil, "classes of links that are alike")

-- What one rank of a machine knows of its link counts for all of it; where a machine is new, all are measured.
local measured
local run = { cluster = { measure_links = function(_, hosts)
  measured = table.concat(hosts, " ")
  return { bandwidth = { 4e8, 4e8, 1e8 }, latency = 2e-4 }
end } }
ranks.follow_links(run, { "a", "a", "b" }, { false, { bandwidth = 1e9, latency = 1e-4 }, false })
check(measured == "a a b", "measured is %s", tostring(measured))
check(run.link.bandwidth == 1e8 and run.link.latency == 2e-4 and run.link.of_host.a == 4e8, "another measurement")
measured = nil
ranks.follow_links(run, { "a", "a", "b" }, { false, { bandwidth = 1e9, latency = 1e-4 },
  { bandwidth = 2e9, latency = 3e-4 } })
check(not measured and run.link.bandwidth == 1e9 and run.link.latency == 3e-4, "what is known was measured again")
ranks.follow_links(run, { "a", "a" }, { false, false })
check(not measured and run.link.bandwidth == 4e9 and not run.link.of_host, "one machine has a link")

-- A plan's devices in any order; one that leaves ranks out is none for them.
local order = ranks.order_of({ "c:0", "a:0", "b:0" }, { "a:0", "b:0", "c:0" })
check(order[1] == 2 and order[2] == 0 and order[3] == 1, "another order")
check(ranks.order_of({ "c:0", "a:0" }, { "a:0", "b:0", "c:0" }) == nil, "a rank is left out")
check(ranks.order_of({ "x:0", "a:0", "b:0" }, { "a:0", "b:0", "c:0" }) == nil, "a device that is not there")

print "right"
os.exit(0)
