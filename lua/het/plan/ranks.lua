--- The ranks of a run as the cluster that the planner plans for: their machines, devices and links, as measured.
local native = require "het.native"
local fault = require "het.train.fault"
local peak = require "het.profile.peak"
local together = require "het.train.together"

local ranks = {}

-- What a measurement on a separate thread finds, or nil where it fails. One that a loss cut off goes on, and is waited
-- for here again.
local function measured(run, name, begin)
  run.measurements = run.measurements or {}
  local measuring = run.measurements[name] or begin()
  run.measurements[name] = measuring
  while not measuring:done() or fault.is_held "measure" do together.wait(run) end
  run.measurements[name] = nil
  local ok, value = pcall(measuring.wait, measuring)
  return ok and value or nil
end

-- What this process computes with while no other does: rates of its matrix products in FLOP/s and of memory in bytes/s,
-- memory in bytes. Nil rates: not measured yet.
local function figures_of(run, device_name, measures)
  local device = native.device(device_name)
  local function rate_of(dtype)
    local known = peak.known(device_name, dtype, "product")
    if known or not measures then return known end
    local flops = measured(run, dtype, function() return peak.begin_product(device_name, dtype) end)
    return flops and peak.keep_product(device_name, dtype, flops)
  end
  local figures = { f32 = rate_of "f32", bf16 = rate_of "bf16", memory = device:available_bytes() }
  if measures then
    figures.memory_bandwidth = measured(run, "bandwidth", function() return device:measuring "bandwidth" end)
  end
  return figures
end

--- What this rank reports of itself: a table for native.json_encode. The first process of a machine measures what is
-- not known, which takes some seconds; with GPUs each process measures the GPU that it uses. In together.in_time the
-- others wait for it.
function ranks.describe(run)
  local device_name = run.device
  local is_gpu = peak.is_gpu(device_name)
  local measures = is_gpu or together.is_first_of_machine()
  local own = figures_of(run, peak.device_of(device_name), measures)
  own.host, own.zone, own.price = native.host(), native.settings.zone or "", native.settings.price
  own.kind = is_gpu and "cuda" or "cpu"
  own.model = peak.name_of(peak.device_of(device_name))
  own.threads, own.cores = native.threads(), native.cores()
  own.bandwidth = is_gpu and require("het.plan.cluster").gpu_bandwidth(native.gpus()) or nil
  return own
end

--- Machines in the order of their first ranks: each { host, zone, price, ranks = { rank, from 0 } }.
-- @tparam table all what each rank described, by rank
function ranks.machines_of(all)
  local machines, by_host = {}, {}
  for i, own in ipairs(all) do
    local machine = by_host[own.host]
    if not machine then
      machine = { host = own.host, zone = own.zone, price = 0, ranks = {} }
      by_host[own.host] = machine
      machines[#machines + 1] = machine
    end
    machine.price = math.max(machine.price, own.price or 0)
    table.insert(machine.ranks, i - 1)
  end
  return machines
end

-- What a process computes while all of its machine do, as a share of its rate alone.
local function share_of(all, machine)
  local threads, cores = 0, 1
  for _, rank in ipairs(machine.ranks) do
    threads, cores = threads + all[rank + 1].threads, math.max(cores, all[rank + 1].cores)
  end
  return math.min(1, cores / math.max(1, threads))
end

-- A machine's figures where one of its ranks has none: those of another on it, or of one of the same model.
local function known_of(all, own, field)
  for _, other in ipairs(all) do
    if other[field] and other.host == own.host and other.kind == own.kind then return other[field] end
  end
  for _, other in ipairs(all) do
    if other[field] and other.model == own.model then return other[field] end
  end
  return nil
end

local alike = 0.1   -- rates that differ by less are those of one type: a measurement is no more exact

local function is_alike(a, b)
  if a.kind ~= b.kind or a.name ~= b.name then return false end
  for _, field in ipairs { "f32", "bf16", "memory_bandwidth", "bandwidth" } do
    if math.abs(a[field] - b[field]) > alike * math.max(a[field], b[field]) then return false end
  end
  return true
end

-- The type of a rank's device among those of the cluster.
local function type_of(types, figures)
  for _, known in ipairs(types) do
    if is_alike(known, figures) then
      known.memory = math.min(known.memory, figures.memory)
      return known
    end
  end
  types[#types + 1] = figures
  return figures
end

-- A name that plans can write: letters, digits and _, each once.
local function name_of(host, taken)
  local name = host:gsub("[^%w_]", "_"):gsub("^[^%a]", "m%0")
  if name == "" then name = "machine" end
  local unique, n = name, 1
  while taken[unique] do
    n = n + 1
    unique = name .. "_" .. n
  end
  taken[unique] = true
  return unique
end

-- Rates that differ by a smaller factor are those of one kind of link: beside other traffic one is measured twice as
-- slow as it is.
local alike_links = 3

-- Machines by how fast their links are: the class of each host, "links 1" the fastest, and the links inside and between
-- classes; nil where they are alike. Hosts without a rate are as slow as the slowest.
local function link_classes(machines, link)
  local rates, order = link.of_host or {}, {}
  for i, machine in ipairs(machines) do
    order[i] = { host = machine.host, rate = rates[machine.host] or link.bandwidth }
  end
  table.sort(order, function(a, b)
    if a.rate ~= b.rate then return a.rate > b.rate end
    return a.host < b.host
  end)
  local class_of, classes = {}, {}
  for _, each in ipairs(order) do
    local last = classes[#classes]
    if not last or alike_links * each.rate < last.fastest then
      last = { name = ("links %d"):format(#classes + 1), fastest = each.rate }
      classes[#classes + 1] = last
    end
    last.rate, class_of[each.host] = each.rate, last.name
  end
  if #classes < 2 then return nil end
  local links = {}
  for i, a in ipairs(classes) do
    for j = i, #classes do
      links[#links + 1] = { from = a.name, to = classes[j].name, bandwidth = classes[j].rate, latency = link.latency }
    end
  end
  return class_of, links
end

--- The cluster of the ranks that reported these, and the names of their devices by rank. All ranks find the same.
-- @tparam table all what each rank described, by rank
-- @tparam table link between machines, of follow_links: { bandwidth = bytes/s of the slowest, latency = s, of_host = }
-- @treturn table for het.plan.cluster.with
-- @treturn table list of names, as "host:0"; of ranks that share one machine "here:0"
function ranks.cluster_of(all, link)
  local types, nodes, names, taken = {}, {}, {}, {}
  local machines = ranks.machines_of(all)
  local class_of, links = link_classes(machines, link)
  for _, machine in ipairs(machines) do
    local share, by_type = share_of(all, machine), {}
    for _, rank in ipairs(machine.ranks) do
      local own = all[rank + 1]
      local on_cpu = own.kind == "cpu"
      local rate, sharing = on_cpu and share or 1, on_cpu and #machine.ranks or 1   -- each GPU has one rank
      local type = type_of(types, require("het.plan.cluster").measured_type(own.kind, {
        f32 = rate * (known_of(all, own, "f32") or 1e10), bf16 = rate * (known_of(all, own, "bf16") or 0),
        memory = own.memory / sharing, memory_bandwidth = (known_of(all, own, "memory_bandwidth") or 1e10) / sharing,
        bandwidth = own.bandwidth, sharing = sharing }))
      local node = by_type[type]
      if not node then   -- devices of two types in one machine are two nodes of the planner's
        local host = #machines > 1 and machine.host or "here"
        node = { name = name_of(host, taken), type = type, devices = 0, price = 0,
          interfaces = #machines > 1 and 1 or nil,   -- what was measured is what all of a machine's ranks have
          zone = class_of and class_of[machine.host] or machine.zone, machine_zone = machine.zone }
        by_type[type] = node
        nodes[#nodes + 1] = node
      end
      names[rank + 1] = ("%s:%d"):format(node.name, node.devices)
      node.devices = node.devices + 1
      node.price = machine.price * node.devices / #machine.ranks   -- of two nodes in one machine each has its share
    end
  end
  local of_name = {}
  for _, type in ipairs(types) do   -- types of one name that differ are numbered
    local n = (of_name[type.name] or 0) + 1
    of_name[type.name] = n
    type.name = n > 1 and ("%s (%d)"):format(type.name, n) or type.name
  end
  for _, node in ipairs(nodes) do node.type = node.type.name end
  return { nodes = nodes, types = types, links = links, bandwidth = link.bandwidth, latency = link.latency,
    all_reduce = all[1].kind == "cpu" and "mesh" or "hierarchical" }, names
end

--- By rank of the plan, from 0, the rank of the run that has this device; nil where the plan leaves ranks out,
-- or names devices that are not theirs.
-- @tparam table devices names in the order of the plan (het.plan.devices)
-- @tparam table names of the ranks' devices, by rank
function ranks.order_of(devices, names)
  local rank_of, order = {}, {}
  for i, name in ipairs(names) do rank_of[name] = i - 1 end
  for i, device in ipairs(devices) do
    if not rank_of[device] then return nil end
    order[i] = rank_of[device]
  end
  return #order == #names and order or nil
end

local inside = { bandwidth = 4e9, latency = 50e-6 }   -- of a run on one machine

--- How fast machines reach each other: what ranks know of it, else it is measured. All ranks call it.
-- @tparam {string,...} hosts by rank
-- @tparam table known by rank: { bandwidth = of its host in bytes/s, latency = s }, false where it knows of none
function ranks.follow_links(run, hosts, known)
  local of_host, latency = {}, 0
  local function learn(host, bandwidth, theirs)
    of_host[host] = math.max(of_host[host] or 0, bandwidth)
    latency = math.max(latency, theirs)
  end
  for i, host in ipairs(hosts) do
    if known[i] then learn(host, known[i].bandwidth, known[i].latency) end
  end
  local is_known, is_one = true, true
  for _, host in ipairs(hosts) do
    is_known, is_one = is_known and of_host[host] ~= nil, is_one and host == hosts[1]
  end
  if is_one then
    run.link = inside
    return
  end
  if not is_known then
    local found = run.cluster:measure_links(hosts)
    of_host, latency = {}, 0
    for i, host in ipairs(hosts) do learn(host, found.bandwidth[i], found.latency) end
  end
  local slowest = math.huge
  for _, bandwidth in pairs(of_host) do slowest = math.min(slowest, bandwidth) end
  run.link = { bandwidth = slowest, latency = math.max(1e-6, latency), of_host = of_host }
end

--- What this rank tells the others of its machine's link, for follow_links; nil where nothing was measured.
function ranks.own_link(run)
  local bandwidth = run.link and run.link.of_host and run.link.of_host[native.host()]
  return bandwidth and { bandwidth = bandwidth, latency = run.link.latency }
end

-- What all ranks reported, and the link between their machines.
local function look(run)
  run.description = together.in_time(run, function() return run.description or ranks.describe(run) end)
  local all, hosts, known = {}, {}, {}
  local own = { description = run.description, link = ranks.own_link(run) }
  for i, words in ipairs(run.cluster:all_gather(native.json_encode(own))) do
    local theirs = native.json_decode(words)
    all[i], known[i] = theirs.description, theirs.link or false
    hosts[i] = all[i].host
  end
  for _, field in ipairs { "f32", "bf16", "memory_bandwidth" } do   -- who measured may be lost later
    for _, each in ipairs(all) do each[field] = each[field] or known_of(all, each, field) end
    run.description[field] = run.description[field] or known_of(all, run.description, field)
  end
  run.described = all
  ranks.follow_links(run, hosts, known)
  return all, run.link
end

--- The cluster of a run's ranks, for the planner. All ranks call it, and find the same.
function ranks.cluster(run)
  local found
  found, run.device_names = ranks.cluster_of(look(run))
  return require("het.plan.cluster").with(found)
end

--- From here on the ranks compute what a plan has for their devices. All ranks call it. Returns whether the plan has a
-- part for each of them: if not, nothing has changed.
-- @tparam table devices names in the order of the plan (het.plan.devices); nil: the plan's ranks are the run's
function ranks.arrange(run, devices)
  local order = devices and ranks.order_of(devices, run.device_names)
  if devices and not order then return false end
  if not run.cluster then return true end
  order = order or {}
  for place = 1, run.cluster:size() do
    order[place] = order[place] or place - 1
    if order[place] == run.cluster:rank() then run.place = place - 1 end
  end
  run.cluster:arrange(order)
  return true
end

--- Sets the plan's `unlike_devices` where the run's devices differ in type, so that copies of parameters stay equal: of
-- layers and tables that several of them have. All ranks call it.
function ranks.follow_types(run)
  if not run.cluster or not run.plan or run.plan.unlike_devices then return end
  for _, type in ipairs(run.cluster:all_gather(peak.name_of(run.device))) do
    run.plan.unlike_devices = run.plan.unlike_devices or type ~= peak.name_of(run.device)
  end
end

return ranks
