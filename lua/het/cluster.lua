--- `het.cluster`: what a plan may use, as data: nodes of devices, links, prices. A file that returns one describes a
-- cluster to `hetrun plan --cluster=FILE`; nothing here talks to a machine.
local native = require "het.native"
local define = require "het.define"
local errors = require "het.errors"
local mistakes = require "het.mistakes"
local suggest = require "het.suggest"

local cluster = {}

local Cluster = { kind = "cluster" }
Cluster.__index = Cluster
local Node = { kind = "node" }
Node.__index = Node
local Link = { kind = "link" }
Link.__index = Link
local DeviceType = { kind = "device_type" }
DeviceType.__index = DeviceType

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

-- Fields that are written for people ("100 Gbit/s") become numbers; `report` tells those that cannot.
local parsers = { bandwidth = native.parse_bandwidth, memory_bandwidth = native.parse_bandwidth,
  latency = native.parse_seconds, memory = native.parse_bytes, f32 = native.parse_rate, bf16 = native.parse_rate,
  f16 = native.parse_rate }

local function check_units(a, report)
  for name, parse in pairs(parsers) do
    if type(a[name]) == "string" then
      local ok, problem = pcall(parse, a[name])
      if not ok then report(name, ("%s: %s"):format(name, (errors.describe(problem)))) end
    end
  end
end

local function in_units(a)
  local result = {}
  for name, value in pairs(a) do
    local parse = parsers[name]
    result[name] = parse and type(value) == "string" and parse(value) or value
  end
  return result
end

cluster.device_type = define.constructor {
  name = "device_type",
  sentence = "A type of device that the library does not know, or one of its own figures.",
  example = 'het.device_type { name = "mine", f32 = "20 TFLOP/s", bf16 = "80 TFLOP/s", memory = "24 GiB",\n'
    .. '                  memory_bandwidth = "600 GB/s", bandwidth = "16 GB/s" }',
  fields = {
    { "name", "string", "by which nodes name it", required = true },
    { "f32", "string", "dense matrix products in f32", required = true },
    { "bf16", "string", "the same in bf16 (default: not supported)" },
    { "f16", "string", "the same in f16 (default: not supported)" },
    { "memory", "string", "of one device", required = true },
    { "memory_bandwidth", "string", "of its memory", required = true },
    { "bandwidth", "string", "between two of them in one node", default = "16 GB/s" },
    { "latency", "string", "of a message between them", default = "5 us" },
    { "efficiency", "number", "share of the peak that layers reach where nothing was measured", default = 0.5,
      above = 0, max = 1 },
  },
  check = check_units,
  build = function(a) return setmetatable(in_units(a), DeviceType) end,
}

cluster.node = define.constructor {
  name = "node",
  sentence = "A machine with devices of one type, or several that are alike.",
  example = 'het.node { name = "a", type = "A100-80", devices = 8, count = 2, price = 12.5 }',
  fields = {
    { "name", "string", "its devices are name:0, name:1, ...; of several, name1:0 and so on", required = true },
    { "type", "string", "of its devices, such as A100-80", required = true },
    { "devices", "integer", "in each machine", default = 1, min = 1, max = 1024 },
    { "count", "integer", "machines that are alike", default = 1, min = 1, max = 100000 },
    { "zone", "string", "for the links that het.link gives", default = "" },
    { "bandwidth", "string", "between its devices (default: as their type says)" },
    { "latency", "string", "of a message between its devices (default: as their type says)" },
    { "price", "number", "of one machine for an hour", default = 0, min = 0 },
    { "preemptions", "number", "of one machine in an hour, expected", default = 0, min = 0, max = 60 },
  },
  check = function(a, report)
    check_units(a, report)
    if (a.bandwidth == nil) ~= (a.latency == nil) then
      report(nil, "node: a link needs both bandwidth and latency; leave both out for the type's own")
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
    { "bandwidth", "string", "of one machine's interface", required = true },
    { "latency", "string", "of a message", required = true },
  },
  check = check_units,
  build = function(a) return setmetatable(in_units(a), Link) end,
}

local make = define.constructor {
  name = "cluster",
  sentence = "The machines that a plan may use.",
  example = 'het.cluster { bandwidth = "100 Gbit/s", latency = "10 us",\n'
    .. '              het.node { name = "a", type = "A100-80", devices = 8 },\n'
    .. '              het.node { name = "b", type = "RTX-3090", devices = 4, count = 3 } }',
  list = { "node|link|device_type", "machines, links and types" },
  fields = {
    { "bandwidth", "string", "between machines where no het.link says otherwise", default = "10 Gbit/s" },
    { "latency", "string", "of a message between machines", default = "50 us" },
  },
  check = function(a, report)
    check_units(a, report)
    for i = 1, #a do
      if define.is_unknown(a[i]) or define.kind_of(a[i]) == "node" then return end
    end
    report(nil, "cluster needs at least one het.node { ... }: the machines that a plan may use")
  end,
  build = function(a)
    local units = in_units(a)
    local self = setmetatable({ bandwidth = units.bandwidth, latency = units.latency, nodes = {}, links = {},
      types = {} }, Cluster)
    local lists = { node = self.nodes, link = self.links, device_type = self.types }
    for i = 1, #a do
      local list = lists[define.kind_of(a[i])]
      list[#list + 1] = a[i]
    end
    local known = native.device_types()
    for _, type in ipairs(self.types) do known[#known + 1] = type.name end
    local problems = {}
    for _, node in ipairs(self.nodes) do
      local found = false
      for _, name in ipairs(known) do found = found or name == node.type end
      if not found then
        problems[#problems + 1] = ("node %s: no device type is called '%s'%s"):format(node.name, node.type,
          suggest.sentence(node.type, known))
      end
    end
    if #problems == 0 then problems = native.cluster_problems(self) end
    for _, problem in ipairs(problems) do mistakes.record("cluster", nil, problem) end
    return #problems == 0 and self or define.unknown
  end,
}

-- One node "here" whose devices are of one type with these figures.
local function here_with(count, figures)
  local self = setmetatable({ bandwidth = 4e9, latency = 50e-6, links = {}, nodes = {}, types = {} }, Cluster)
  self.types[1] = setmetatable(figures, DeviceType)
  self.nodes[1] = setmetatable({ name = "here", type = figures.name, devices = count, count = 1, zone = "", price = 0,
    preemptions = 0 }, Node)
  return self
end

-- Each of `count` devices as one was measured. Their type is "cuda", as profiles call it.
local function gpus_here(count, name)
  local peak = require "het.peak"
  local device = native.device(name)
  local nvlinks, peers = math.huge, true
  for _, link in ipairs(native.gpu_report().links or {}) do
    if link.from < count and link.to < count then
      nvlinks, peers = math.min(nvlinks, link.nvlinks), peers and link.peers
    end
  end
  -- Data sheets' figures until a profile has measured them: 25 GB/s a link, PCIe 4, or twice through the host.
  local bandwidth = nvlinks > 0 and nvlinks < math.huge and 25e9 * nvlinks or peers and 25e9 or 12e9
  return here_with(count, { name = "cuda", f32 = peak.measure(name, "f32"), bf16 = peak.measure(name, "bf16"), f16 = 0,
    memory = device:available_bytes(), memory_bandwidth = device:bandwidth(), bandwidth = bandwidth, latency = 10e-6,
    efficiency = 0.7 })
end

--- This machine as it was measured, on the device that --device names. `count` processes share the processor evenly:
-- their type is "cpu", of several "cpu/2" and so on, since what was measured on the whole machine is not what a share
-- of it does. Of GPUs each has its own.
function cluster.here(count)
  local device_name = native.settings and native.settings.device or "cpu"
  local peak = require "het.peak"
  if peak.is_gpu(device_name) then return gpus_here(count or math.max(1, native.gpus()), device_name) end
  count = count or 1
  local device = native.device "cpu"
  local f32 = peak.measure("cpu", "f32") / count
  local ok, bf16 = pcall(peak.measure, "cpu", "bf16")
  return here_with(count, { name = count == 1 and "cpu" or "cpu/" .. count, f32 = f32, bf16 = ok and bf16 / count or 0,
    f16 = 0, memory = device:available_bytes() / count, memory_bandwidth = device:bandwidth() / count,
    bandwidth = 4e9, latency = 50e-6, efficiency = 0.8 })
end

cluster.new = setmetatable({ here = cluster.here }, { __call = function(_, ...) return make(...) end })
return cluster
