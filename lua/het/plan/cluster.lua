--- `het.cluster`: what a plan may use, as data: nodes of devices, links, prices. A file that returns one describes a
-- cluster to `hetrun plan --cluster=FILE`; nothing here talks to a machine.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local handle = require "het.sandbox.handle"
local suggest = require "het.language.suggest"

local cluster = {}

local Cluster = {}
Cluster.__index = Cluster
local Node = {}
Node.__index = Node
local Link = {}
Link.__index = Link
local DeviceType = {}
DeviceType.__index = DeviceType

handle.class({ kind = "cluster",
  fields = { "nodes", "links", "types", "bandwidth", "latency", "all_reduce" } }, Cluster)
handle.class({ kind = "node", fields = { "name", "type", "devices", "count", "zone", "bandwidth", "latency",
  "interfaces", "price", "preemptions" } }, Node)
handle.class({ kind = "link", fields = { "from", "to", "bandwidth", "latency", "assumed" },
  show = function(self) return ("link from %s to %s"):format(self.from, self.to) end }, Link)
handle.class({ kind = "device_type", name = "type of device", fields = { "name", "f32", "bf16", "f16", "memory",
  "memory_bandwidth", "bandwidth", "latency", "efficiency", "launch" },
  show = function(self) return "type of device " .. self.name end }, DeviceType)

Node.__tostring = function(self)
  return ("%s%d x %d %s"):format(self.count > 1 and "" or self.name .. ": ", self.count, self.devices, self.type)
end

Cluster.__tostring = function(self)
  local parts = {}
  for _, node in ipairs(self.nodes) do
    parts[#parts + 1] = ("%s %s%d %s"):format(node.name, node.count > 1 and node.count .. " x " or "", node.devices,
      node.type)
  end
  return "cluster of " .. table.concat(parts, ", ")
end

-- Fields that are written for people ("100 Gbit/s"): how they become numbers.
local units = {
  bandwidth = { parse = native.parse_bandwidth, such_as = '"25 GB/s" or "100 Gbit/s"' },
  latency = { parse = native.parse_seconds, such_as = '"5 us"', zero = true },
  memory = { parse = native.parse_bytes, such_as = '"24 GiB"' },
  f32 = { parse = native.parse_rate, such_as = '"20 TFLOP/s"' },
  bf16 = { parse = native.parse_rate, such_as = '"80 TFLOP/s"', zero = true },
}
units.memory_bandwidth, units.f16, units.launch = units.bandwidth, units.bf16, units.latency

local function in_units(a)
  local result = {}
  for name, value in pairs(a) do
    local unit = units[name]
    result[name] = unit and type(value) == "string" and unit.parse(value) or value
  end
  return result
end

cluster.device_type = define.constructor {
  name = "device_type",
  sentence = "A type of device that the library does not know, or a known one with other figures.",
  example = 'het.device_type { name = "mine", f32 = "20 TFLOP/s", bf16 = "80 TFLOP/s", memory = "24 GiB",\n'
    .. '                  memory_bandwidth = "600 GB/s", bandwidth = "16 GB/s" }',
  fields = {
    { "name", "string", "by which nodes name it", required = true },
    { "f32", "string", "dense matrix products in f32", required = true, unit = units.f32 },
    { "bf16", "string", "the same in bf16 (default: not supported)", unit = units.bf16 },
    { "f16", "string", "the same in f16 (default: not supported)", unit = units.bf16 },
    { "memory", "string", "of one device", required = true, unit = units.memory },
    { "memory_bandwidth", "string", "of its memory", required = true, unit = units.bandwidth },
    { "bandwidth", "string", "between two of them in one node", default = "16 GB/s", unit = units.bandwidth },
    { "latency", "string", "of a message between them", default = "5 us", unit = units.latency },
    { "efficiency", "number", "share of the peak that layers reach where nothing was measured", default = 0.5,
      above = 0, max = 1 },
    { "launch", "string", "what each pass of a layer takes beside, to launch its kernels; 0 of processors and of paced "
      .. "devices", default = "20 us", unit = units.launch },
  },
  build = function(a) return setmetatable(in_units(a), DeviceType) end,
}

cluster.node = define.constructor {
  name = "node",
  sentence = "A machine with devices of one type, or several that are alike.",
  example = 'het.node { name = "a", type = "A100-80", devices = 8, count = 2, price = 12.5 }',
  fields = {
    { "name", "string", "its devices are name:0, name:1, ...; of several, name1:0 and so on", required = true },
    { "type", "string", "of its devices: the name of a het.device_type, or one of "
      .. table.concat(native.device_types(), ", "), required = true },
    { "devices", "integer", "in each machine", default = 1, min = 1, max = 1024 },
    { "count", "integer", "machines that are alike", default = 1, min = 1, max = 100000 },
    { "zone", "string", "for the links that het.link gives", default = "" },
    { "bandwidth", "string", "between its devices (default: as their type says)", unit = units.bandwidth },
    { "latency", "string", "of a message between its devices (default: as their type says)", unit = units.latency },
    { "interfaces", "integer", "of one machine to the network, each with the bandwidth of its links and shared evenly "
      .. "by its devices (default: 1; with all_reduce = \"mesh\" one for each device)", min = 1, max = 64 },
    { "price", "number", "of one machine for an hour", default = 0, min = 0 },
    { "preemptions", "number", "of one machine in an hour, expected", default = 0, min = 0, max = 60 },
  },
  check = function(a, report)
    if (a.bandwidth == nil) ~= (a.latency == nil) then
      report(nil, "node: a link needs both bandwidth and latency; leave both out for those of the type")
    end
  end,
  build = function(a) return setmetatable(in_units(a), Node) end,
}

cluster.link = define.constructor {
  name = "link",
  sentence = "How fast machines of one zone reach those of another, or each other.",
  example = 'het.link { from = "rack1", to = "rack2", bandwidth = "25 Gbit/s", latency = "40 us" }',
  fields = {
    { "from", "string", "zone", required = true },
    { "to", "string", "zone; the same for links inside one", required = true },
    { "bandwidth", "string", "of one network interface of a machine", required = true, unit = units.bandwidth },
    { "latency", "string", "of a message", required = true, unit = units.latency },
  },
  build = function(a) return setmetatable(in_units(a), Link) end,
}

-- Between machines of one zone where nothing is stated; plans say that it was assumed.
local assumed = { bandwidth = native.parse_bandwidth "10 Gbit/s", latency = native.parse_seconds "50 us" }

-- Stand-ins without mistakes for fields that have some: what is right beside them is still checked.
local stand_ins = {
  node = { devices = 1, count = 1, price = 0, preemptions = 0 },
  link = { bandwidth = assumed.bandwidth, latency = assumed.latency },
  device_type = { f32 = 1e12, memory = 2 ^ 34, memory_bandwidth = 1e11, bandwidth = 1e10, latency = 1e-5,
    efficiency = 0.5, launch = 20e-6 },
}

-- Zones without a stated link between their hosts.
local function unstated_zones(self)
  local hosts, order, linked = {}, {}, {}
  for _, link in ipairs(self.links) do
    if link.from == link.to then linked[link.from] = true end
  end
  for _, node in ipairs(self.nodes) do
    if not hosts[node.zone] then order[#order + 1] = node.zone end
    hosts[node.zone] = (hosts[node.zone] or 0) + node.count
  end
  local zones = {}
  for _, zone in ipairs(order) do
    if hosts[zone] > 1 and not linked[zone] then zones[#zones + 1] = zone end
  end
  return zones
end

-- What is known of a cluster, as the planner takes it: fields that are mistaken have stand-ins. What cannot be judged
-- without those stands beside it: `zones` (whether the zones of all nodes and links are known) and `types` (the names
-- of the types).
local function known_cluster(a, given)
  local self = setmetatable({ nodes = {}, links = {}, types = {} }, Cluster)
  local lists = { node = self.nodes, link = self.links, device_type = self.types }
  local known = { zones = true, types = true }
  for i = 1, #a do
    local kind, item = define.kind_of(a[i]), a[i]
    if define.is_unknown(item) then
      kind, item = define.remains(item)
      if lists[kind] then
        item = in_units(item)
        for name, value in pairs(stand_ins[kind]) do
          if item[name] == nil then item[name] = value end
        end
        if kind == "link" and not (item.from and item.to) then kind, known.zones = nil, false end
        if kind == "device_type" and not item.name then kind, known.types = nil, false end
        if kind == "node" and not item.zone then item.zone, known.zones = "", false end
        if kind == "node" and not item.name then item.name = ("node %d"):format(i) end
      else
        known.zones, known.types = false, false   -- it may be anything
      end
    end
    if lists[kind] then table.insert(lists[kind], item) end
  end
  local fields = in_units(a)
  self.all_reduce = fields.all_reduce
  if given.bandwidth ~= nil then
    self.bandwidth = fields.bandwidth or assumed.bandwidth
    self.latency = fields.latency or assumed.latency
  else
    for _, zone in ipairs(unstated_zones(self)) do
      self.links[#self.links + 1] = setmetatable({ from = zone, to = zone, bandwidth = assumed.bandwidth,
        latency = fields.latency or assumed.latency, assumed = true }, Link)
    end
  end
  return self, known
end

-- Mistakes of the types that nodes name; these get a known type, so that it is reported once.
local function check_types(self, report)
  local names = native.device_types()
  for _, type in ipairs(self.types) do names[#names + 1] = type.name end
  local known = {}
  for _, name in ipairs(names) do known[name] = true end
  for i, node in ipairs(self.nodes) do
    if not known[node.type] then
      if node.type then
        report(nil, ("node %s: no device type is called '%s'%s"):format(node.name, node.type,
          suggest.sentence(node.type, names, "?node")))
      end
      self.nodes[i] = setmetatable({ type = names[1] }, { __index = node })
    end
  end
end

local make = define.constructor {
  name = "cluster",
  sentence = "The machines that a plan may use.",
  example = 'het.cluster { bandwidth = "100 Gbit/s", latency = "10 us",\n'
    .. '              het.node { name = "a", type = "A100-80", devices = 8 },\n'
    .. '              het.node { name = "b", type = "RTX-3090", devices = 4, count = 3 } }',
  list = { "node|link|device_type", "machines, links and types" },
  fields = {
    { "bandwidth", "string", "between machines where no het.link says otherwise (default: none between zones; inside a "
      .. "zone 10 Gbit/s, and plans say that it was assumed)", unit = units.bandwidth },
    { "latency", "string", "of a message between machines (default: 50 us)", unit = units.latency },
    { "all_reduce", "string", "how sums travel: \"hierarchical\" (by NCCL's rings and trees, which leave a machine "
      .. "once) or \"mesh\" (each device to each other, as processors and slowed-down devices do)",
      default = "hierarchical",
      choices = { "hierarchical", "mesh" } },
  },
  check_known = function(a, report, given)
    local self, known = known_cluster(a, given)
    if #self.nodes == 0 and known.zones then
      report(nil, "cluster needs at least one het.node { ... }: the machines that a plan may use")
      return
    end
    if known.types then check_types(self, report) end
    if not known.zones then self.links, self.bandwidth, self.latency = {}, assumed.bandwidth, assumed.latency end
    if #self.nodes == 0 or not known.types then return end
    for _, problem in ipairs(native.cluster_problems(self)) do report(nil, problem) end
  end,
  build = function(a) return (known_cluster(a, a)) end,
}

-- One node "here" whose devices are of one type with these figures.
local function here_with(count, figures)
  return cluster.with { bandwidth = 4e9, latency = 50e-6, all_reduce = figures.name ~= "cuda" and "mesh" or nil,
    types = { figures }, nodes = { { name = "here", type = figures.name, devices = count, zone = "" } } }
end

--- A cluster of what is known, without checks: `nodes`, `types` and perhaps `links` with numbers as fields,
-- `bandwidth`, `latency`, `all_reduce`.
function cluster.with(known)
  local self = setmetatable({ bandwidth = known.bandwidth, latency = known.latency, all_reduce = known.all_reduce,
    links = {}, nodes = {}, types = {} }, Cluster)
  for i, type in ipairs(known.types) do self.types[i] = setmetatable(type, DeviceType) end
  for i, link in ipairs(known.links or {}) do self.links[i] = setmetatable(link, Link) end
  for i, node in ipairs(known.nodes) do
    node.count, node.price, node.preemptions = 1, node.price or 0, 0
    self.nodes[i] = setmetatable(node, Node)
  end
  return self
end

--- A type of device of this kind: what was measured, and the rest as data sheets and experience have it.
-- @string kind "cpu" or "cuda", as profiles call the types
-- @tparam table measured `f32`, `bf16` (FLOP/s), `memory`, `memory_bandwidth`; of GPUs `bandwidth` between two of a
-- machine; of a processor `sharing`: the processes that each have this share of it
function cluster.measured_type(kind, measured)
  local on_cpu, sharing = kind == "cpu", measured.sharing
  return { kind = kind, name = on_cpu and sharing > 1 and "cpu/" .. sharing or kind, f32 = measured.f32,
    bf16 = measured.bf16, f16 = 0, memory = measured.memory, memory_bandwidth = measured.memory_bandwidth,
    bandwidth = on_cpu and 4e9 or measured.bandwidth, latency = on_cpu and 50e-6 or 10e-6,
    efficiency = on_cpu and 0.8 or 0.7, launch = on_cpu and 0 or nil }
end

--- Bytes/s between two of the first `count` GPUs of this machine: data sheets' figures until a profile has measured
-- them.
function cluster.gpu_bandwidth(count)
  local nvlinks, peers = math.huge, true
  for _, link in ipairs(native.gpu_report().links or {}) do
    if link.from < count and link.to < count then
      nvlinks, peers = math.min(nvlinks, link.nvlinks), peers and link.peers
    end
  end
  -- 25 GB/s a link, PCIe 4, or twice through the host.
  return nvlinks > 0 and nvlinks < math.huge and 25e9 * nvlinks or peers and 25e9 or 12e9
end

-- Each of `count` devices as one was measured.
local function gpus_here(count, name)
  local peak = require "het.profile.peak"
  local device = native.device(name)
  return here_with(count, cluster.measured_type("cuda", { f32 = peak.measure(name, "f32"),
    bf16 = peak.measure(name, "bf16"), memory = device:available_bytes(), memory_bandwidth = device:bandwidth(),
    bandwidth = cluster.gpu_bandwidth(count) }))
end

local most_here = 4096

--- This machine as it was measured, on the device that --device names. `count` processes share the processor evenly:
-- their type is "cpu", of several "cpu/2" and so on, since what was measured on the whole machine is not what a share
-- of it does. Of GPUs each has its own.
function cluster.here(count)
  if count ~= nil and (define.expect("het.cluster.here", count, "integer") < 1 or count > most_here) then
    errors.usage("het.cluster.here: %.14g devices share this machine; 1 to %d work", count, most_here)
  end
  local device_name = native.settings and native.settings.device or "cpu"
  local peak = require "het.profile.peak"
  if peak.is_gpu(device_name) then return gpus_here(count or math.max(1, native.gpus()), device_name) end
  count = count or 1
  local device = native.device "cpu"
  local f32 = peak.measure("cpu", "f32", "product") / count
  local ok, bf16 = pcall(peak.measure, "cpu", "bf16", "product")
  return here_with(count, cluster.measured_type("cpu", { f32 = f32, bf16 = ok and bf16 / count or 0,
    memory = device:available_bytes() / count, memory_bandwidth = device:bandwidth() / count, sharing = count }))
end

define.document({
  name = "cluster.here", signature = "het.cluster.here([count])",
  sentence = "This machine as a cluster, measured: one device of the kind that --device names, or `count` that share "
    .. "it evenly; of GPUs each has its own.", example = "plan = het.plan.auto { cluster = het.cluster.here(4) }",
}, cluster.here)
cluster.new = setmetatable({ here = cluster.here }, { __call = function(_, ...) return make(...) end })
return cluster
