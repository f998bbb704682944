--- `hetrun profile`: what each kind of layer of a recipe takes on this machine's device, and messages between ranks,
-- measured and kept in a file that plans read.
local native = require "het.native"
local errors = require "het.errors"
local graphs = require "het.train.graphs"
local subcommand = require "het.program.subcommand"
local text = require "het.text"

local profiling = {}

local format = 2   -- of the file; planner/profile/profile.cpp reads it
local message_bytes, rounds = { 64, 1024, 16384, 262144, 4194304, 16777216 }, 7
local greatest_default = 16   -- samples of a micro-batch, beside the recipe's own

local about = {
  command = "profile", example = "recipes/gpt_text.lua",
  sentence = "measures its kinds of layers on this machine, and links, and keeps them in a file",
  options = {
    { "out", "FILE", "where to (default: the recipe's name with .profile.json); what it holds is measured once" },
    { "microbatches", "LIST", "samples of a micro-batch (default: powers of two that divide the batch, and the "
      .. "recipe's own)" },
    { "kinds", "LIST", "kinds of layers, by the names that the table has (default: all); plans scale what data sheets "
      .. "say of a type's other kinds by what was measured of these" },
    { "tensor", "LIST", "tensor-parallel degrees (default: all that the model admits, up to 8)" },
    { "type", "NAME", "what clusters call the device (default: cpu; of N ranks on one machine cpu/N; of a GPU cuda)" },
    { "runs", "N", "runs of each point; their median counts (default: 5 to 50, for half a second)" },
    { "again", nil, "measure what the file holds again" },
  },
}

-- Whole numbers of "1,2,4", each once, in order; nil stays nil.
local function numbers_of(name, list)
  if not list then return nil end
  local numbers, seen = {}, {}
  for word in (list .. ","):gmatch "([^,]*)," do
    local number = tonumber(word)
    if not number or number < 1 or number ~= math.floor(number) then
      errors.usage("--%s=%s: '%s' is not a whole number above 0; --%s=1,2,4 would work", name, list, word, name)
    end
    if not seen[number] then numbers[#numbers + 1] = number end
    seen[number] = true
  end
  table.sort(numbers)
  return numbers
end

-- The kinds that "blocks,head" names, or all; others than the model has are refused.
local function kinds_of(list, model)
  local all, chosen, seen = {}, {}, {}
  for i, kind in ipairs(model.kinds) do all[i] = kind.name end
  if not list then return all end
  for word in (list .. ","):gmatch "([^,]*)," do
    if not text.contains(all, word) then
      errors.usage("--kinds=%s: the model has no layer kind '%s'; it has %s", list, word, table.concat(all, ", "))
    end
    if not seen[word] then chosen[#chosen + 1] = word end
    seen[word] = true
  end
  return chosen
end

local function own_microbatch(arguments)
  local plan = arguments.plan
  if plan and not plan.automatic then return require("het.plan").resolve(plan, arguments.batch).microbatch end
  return arguments.microbatch or arguments.batch
end

local function default_microbatches(arguments)
  local sizes, own = {}, own_microbatch(arguments)
  local size = 1
  while size <= greatest_default and arguments.batch % size == 0 do
    if size ~= own then sizes[#sizes + 1] = size end
    size = 2 * size
  end
  sizes[#sizes + 1] = own
  table.sort(sizes)
  return sizes
end

local function check_degrees(wanted, admitted)
  for _, degree in ipairs(wanted) do
    local found = false
    for _, each in ipairs(admitted) do found = found or each == degree end
    if not found then
      errors.usage("--tensor=%d: the model's layers cannot be shared out so; it admits %s", degree,
        table.concat(admitted, ", "))
    end
  end
end

-- The inputs of a micro-batch: samples of the recipe's own data.
local function inputs_of(run, size, context)
  local a = run.arguments
  local sampler = a.data:sampler { context = context, batch = size, microbatch = size, seed = a.seed, first = 0,
    count = size, split = "train", start = 0 }
  local batch = sampler:next()
  local inputs = {
    labels = batch.labels[1], starts = batch.starts and batch.starts[1],
    scale = native.tensor({ 1 / math.max(1, batch.count) }, "f32"), lr = native.tensor({ 1e-6 }, "f32", {}),
    step = native.tensor({ 1 }, "i64", {}), positions = native.arange(context, "i32"),
    counter = native.tensor({ 1, 0 }, "i64"),
  }
  for name, tensor in pairs(graphs.named_inputs(batch.inputs[1])) do inputs[name] = tensor end
  return inputs
end

-- The ranks that measure together, when there are several; each says where it is.
local function join(run, given)
  local a, settings = run.arguments, native.settings
  local device = settings.device ~= "" and settings.device or "cpu"
  local cluster = native.join {
    rendezvous = settings.rendezvous or a.rendezvous, interface = settings.interface, run = a.name .. " profile",
    secret_file = settings.secret_file, timeout = settings.timeout, warn_after = settings.warn_after,
    recipe = "profile " .. tostring(run), data = tostring(a.data),
    device = device, memory = native.device(device):available_bytes(),
  }
  local host = native.host_name()
  local hosts = cluster and cluster:all_gather(host) or { host }
  local here = 0
  for _, each in ipairs(hosts) do here = here + (each == host and 1 or 0) end
  local peak = require "het.profile.peak"
  local gpu, name = peak.is_gpu(device), peak.name_of(device)
  local type = given.type or gpu and "cuda" or (here > 1 and ("%s/%d"):format(device, here) or device)
  local types = cluster and cluster:all_gather(type) or { type }
  local names = cluster and cluster:all_gather(name) or { name }
  for i = 2, #types do
    for j = 1, i - 1 do
      if types[i] == types[j] and names[i] ~= names[j] then
        errors.usage("ranks %d and %d have different devices, %s and %s, under one name, %s; give each machine another "
          .. "with --type=NAME", j - 1, i - 1, names[j], names[i], types[i])
      end
    end
  end
  return {
    cluster = cluster, gpu = gpu, rank = cluster and cluster:rank() or 0, hosts = hosts, device = native.device(device),
    type = type, types = types, name = name, names = names,
    sharing = gpu and 1 or here * native.threads() / native.cores(),   -- threads that compute at once over cores
  }
end

-- Rank 0's text, on all ranks.
local function broadcast(place, own)
  return place.cluster and place.cluster:all_gather(place.rank == 0 and own or "")[1] or own
end

-- Whether any rank says so.
local function any(place, own)
  if place.cluster then return place.cluster:any(own) end
  return own
end

-- Whether a profile has the links between all the hosts that take part.
local function has_links(profile, place)
  local function has(index, from, to)
    for _, link in ipairs(profile.links) do
      if link.type == place.types[index] and link.from == from and link.to == to then return true end
    end
    return false
  end
  if #place.hosts == 1 then return has(1, place.hosts[1], place.hosts[1]) end
  for from = 1, #place.hosts - 1 do
    for to = from + 1, #place.hosts do
      local a, b = place.hosts[from], place.hosts[to]
      if not has(from, a, b) and not has(to, b, a) then return false end
    end
  end
  return true
end

-- Messages inside each host and between each two, by the first ranks there. A lone GPU has no link to measure: messages
-- between two threads say nothing of GPUs.
local function measure_links(place)
  local links, done = {}, {}
  if not place.cluster and place.gpu then return {} end
  if not place.cluster then
    return { { type = place.type, from = place.hosts[1], to = place.hosts[1],
               messages = place.messages or native.messages_here(message_bytes, rounds) } }
  end
  for from = 0, #place.hosts - 2 do
    for to = from + 1, #place.hosts - 1 do
      local a, b = place.hosts[from + 1], place.hosts[to + 1]
      local key = a .. "\n" .. b
      if not done[key] then
        done[key], done[b .. "\n" .. a] = true, true
        if place.rank == from or place.rank == to then
          local messages = native.messages_between(place.cluster, from, to, message_bytes, rounds, place.device)
          if place.rank == from then
            links[#links + 1] = { type = place.types[from + 1], from = a, to = b, messages = messages }
          end
        end
        place.cluster:any(false)   -- one pair after the other
      end
    end
  end
  local all = {}
  for _, list in ipairs(place.cluster:all_gather(native.json_encode { links = links })) do
    for _, link in ipairs(native.json_decode(list).links) do all[#all + 1] = link end
  end
  return all
end

-- What a file holds that is kept: all, but for types that take part when asked to measure again, or whose device is
-- another now.
local function kept_of(path, graph, request, place, again)
  local kept = { points = {}, devices = {}, links = {} }
  if native.path_kind(path) == "none" then return kept end
  local ok, before = pcall(native.profile, path, graph, request)
  if not ok then
    local message, kind = errors.describe(before)
    errors.raise(kind, "%s\n%s is there already; --out=FILE names another, or remove it", message, path)
  end
  local dropped = {}   -- types
  for i, type in ipairs(place.types) do
    if again then dropped[type] = true end
    for _, device in ipairs(before.devices) do
      if device.type == type and device.name ~= place.names[i] and not dropped[type] then
        dropped[type] = true
        native.write("stderr", ("%s was %s, now it is %s: measured again\n"):format(type, device.name, place.names[i]))
      end
    end
  end
  for _, name in ipairs { "points", "devices" } do
    for _, entry in ipairs(before[name]) do
      if not dropped[entry.type] then kept[name][#kept[name] + 1] = entry end
    end
  end
  kept.links = before.links
  return kept
end

local function has_point(profile, kind, type, tensor, microbatch)
  for _, point in ipairs(profile.points) do
    if point.kind == kind and point.type == type and point.tensor == tensor and point.microbatch == microbatch then
      return true
    end
  end
  return false
end

-- What rank 0's profile lacks of these kinds, of any type of device that takes part: all ranks measure together.
local function lacks_point(profile, place, kinds, tensor, microbatch)
  for _, type in ipairs(place.types) do
    for _, kind in ipairs(kinds) do
      if not has_point(profile, kind, type, tensor, microbatch) then return true end
    end
  end
  return false
end

-- Points that the profile lacks; those that it has stay as they are.
local function add_points(profile, points)
  for _, point in ipairs(points) do
    if not has_point(profile, point.kind, point.type, point.tensor, point.microbatch) then
      profile.points[#profile.points + 1] = point
    end
  end
end

-- Keep a device in the profile's list, unless its type is there.
local function add_device(profile, type, name)
  for _, device in ipairs(profile.devices) do
    if device.type == type then return end
  end
  profile.devices[#profile.devices + 1] = { type = type, name = name }
end

-- To rank 0's profile, what the first rank of each other type has measured.
local function take_other_types(profile, place)
  if not place.cluster then return end
  local own = { type = place.type, name = place.name, points = profile.points }
  local seen = { [place.types[1]] = true }
  for _, words in ipairs(place.cluster:all_gather(native.json_encode(own))) do
    local other = native.json_decode(words)
    if not seen[other.type] then
      seen[other.type] = true
      add_device(profile, other.type, other.name)
      local theirs = {}
      for _, point in ipairs(other.points) do
        if point.type == other.type then theirs[#theirs + 1] = point end
      end
      add_points(profile, theirs)
    end
  end
end

-- Newly measured links take the place of older ones between the same hosts.
local function merge_links(before, measured)
  local links = {}
  for _, link in ipairs(before) do
    local replaced = false
    for _, new in ipairs(measured) do
      replaced = replaced or (new.type == link.type and new.from == link.from and new.to == link.to)
    end
    if not replaced then links[#links + 1] = link end
  end
  for _, link in ipairs(measured) do links[#links + 1] = link end
  return links
end

-- Measure the points that `wanted` lists; adds them to the profile, which rank 0 saves after each. Returns those that
-- did not fit; nil when interrupted.
local function measure_points(run, place, profile, wanted, request, save)
  local graph, _, context = run:graph_of_sample()
  local skipped, own, size = {}, nil, nil
  for _, entry in ipairs(wanted) do
    if any(place, native.interrupted()) then return nil end
    if entry.microbatch ~= size then
      size, own = entry.microbatch, { graph = run:graph_of_sample(entry.microbatch) }
      own.inputs = inputs_of(run, size, context)
    end
    local ok, result = pcall(native.measure, own.graph, graph, place.device, { name = request.name,
      tokens = request.tokens, type = place.type, tensor = entry.tensor, microbatch = size,
      runs = request.runs, kinds = request.kinds, sharing = place.sharing, inputs = own.inputs })
    local message, kind
    if not ok then message, kind = errors.describe(result) end
    if not ok and kind ~= "environment" then error(result, 0) end
    if any(place, not ok) then
      skipped[#skipped + 1] = entry
      if place.rank == 0 and not native.settings.quiet then
        native.write("stderr", ("left out: tensor %d, micro-batch %d: %s\n"):format(entry.tensor, size,
          message or "another rank has no memory for it"))
      end
    elseif #result.points > 0 then
      add_points(profile, result.points)   -- they may be wanted of another type
      save()
      if place.rank == 0 and not native.settings.quiet then
        native.write("stderr", ("measured: tensor %d, micro-batch %d (%d runs)\n"):format(entry.tensor, size,
          result.runs))
      end
    end
  end
  if any(place, native.interrupted()) then return nil end
  return skipped
end

local function milliseconds(seconds) return ("%.3f"):format(1e3 * seconds) end

local row = "%-16s %6s %7s %11s %9s %9s %9s %9s %9s %10s %10s %10s %11s\n"

local function rows_of(profile, type, model, lines)
  for _, kind in ipairs(model.kinds) do
    for _, point in ipairs(profile.points) do
      if point.type == type and point.kind == kind.name then
        lines[#lines + 1] = row:format(kind.name, kind.layers, point.tensor, point.microbatch,
          milliseconds(point.forward), milliseconds(point.input), milliseconds(point.weight),
          milliseconds(point.recompute or point.forward), point.update and milliseconds(point.update) or "-",
          text.bytes(point.weight_bytes or 0), text.bytes(point.gradient_bytes or 0),
          text.bytes(point.optimizer_bytes or 0), text.bytes(point.activation_bytes or 0))
      end
    end
  end
end

-- The figures of the types of devices that took part, for people.
local function table_of(profile, place, model)
  local lines = {}
  for _, device in ipairs(profile.devices) do
    local here = false
    for _, type in ipairs(place.types) do here = here or type == device.type end
    if here then
      lines[#lines + 1] = ("%s on %s (%s); times in ms\n"):format(profile.model, device.type, device.name)
      lines[#lines + 1] = row:format("layer kind", "layers", "tensor", "micro-batch", "forward", "input", "weight",
        "again", "update", "weights", "gradients", "optimizer", "activations")
      rows_of(profile, device.type, model, lines)
    end
  end
  for _, link in ipairs(profile.links) do
    local latency, bandwidth = native.fit_link(link.messages)
    lines[#lines + 1] = ("link %s, %s: %s, %s/s\n"):format(link.type,
      link.from == link.to and "inside " .. link.from or ("%s to %s"):format(link.from, link.to),
      native.show_seconds(latency), text.bytes(bandwidth))
  end
  return table.concat(lines)
end

local function summary_of(profile, path, counts)
  local links = {}
  for i, link in ipairs(profile.links) do
    local latency, bandwidth = native.fit_link(link.messages)
    links[i] = { type = link.type, from = link.from, to = link.to, latency = latency, bandwidth = bandwidth }
  end
  return { file = path, model = profile.model, digest = profile.digest, devices = profile.devices,
    points = profile.points, links = links, measured = counts.measured, reused = counts.reused,
    skipped = counts.skipped }
end

-- Of a process that is alone: messages between two ranks of this machine, where the file lacks them. They take sockets,
-- which a recipe's process does not have: they are measured before it is confined.
local function messages_before(path, given)
  local device = native.settings.device
  if not path or native.settings.help or not native.is_alone() then return nil end
  if require("het.profile.peak").is_gpu(device) then return nil end
  local known, host = nil, native.host_name()
  if native.path_kind(path) == "file" and not given.again then
    local ok, profile = pcall(native.profile, path)
    known = ok and has_links(profile, { types = { given.type or device }, hosts = { host } })
  end
  return not known and native.messages_here(message_bytes, rounds) or nil
end

--- `hetrun profile RECIPE`; returns the exit code.
function profiling.run(program, ...)
  local words = { ... }
  local given, problems = subcommand.take(about.options, words)
  if problems[1] then errors.usage("%s", table.concat(problems, "\n")) end
  local path = given.out or words[1] and (words[1]:match "([^/]*)$"):gsub("%.lua$", "") .. ".profile.json"
  if path then subcommand.name_path(path, "write") end
  local messages = words[1] and native.path_kind(words[1]) == "file" and messages_before(path, given)
  local run, code = subcommand.recipe(program, about, words)
  if not run then return code end
  run:check_precision()
  native.keeps_measurements(true)
  local graph, tokens = run:graph_of_sample()
  local request = { name = require("het.plan.planning").name_of(run), tokens = tokens }
  local model = native.model(graph, request)
  local tensors = numbers_of("tensor", given.tensor) or model.tensors
  check_degrees(tensors, model.tensors)
  local sizes = numbers_of("microbatches", given.microbatches) or default_microbatches(run.arguments)
  local runs = numbers_of("runs", given.runs)
  if runs and #runs ~= 1 then errors.usage("--runs=%s is not one number", given.runs) end
  request.runs = runs and runs[1]
  request.kinds = kinds_of(given.kinds, model)

  local place = join(run, given)
  place.messages = messages
  local profile, wanted = nil, {}
  if place.rank == 0 then
    profile = kept_of(path, graph, request, place, given.again)
    for _, size in ipairs(sizes) do
      for _, tensor in ipairs(tensors) do
        if lacks_point(profile, place, request.kinds, tensor, size) then
          wanted[#wanted + 1] = { tensor = tensor, microbatch = size }
        end
      end
    end
  end
  local asked = native.json_decode(broadcast(place, native.json_encode { list = wanted,
    links = place.rank == 0 and (given.again ~= nil or not has_links(profile, place)) }))
  wanted = asked.list
  profile = profile or { points = {}, links = {}, devices = {} }
  profile.profile, profile.hetrun, profile.model, profile.digest = format, native.version(), model.name, model.digest
  add_device(profile, place.type, place.name)
  local function save()
    if place.rank == 0 then native.json_write(path, profile) end
  end
  local reused = #sizes * #tensors - #wanted
  local skipped = measure_points(run, place, profile, wanted, request, save)
  take_other_types(profile, place)
  if not skipped then
    if #profile.points > 0 then save() end
    return errors.exit_codes.interrupted
  end
  profile.links = merge_links(profile.links, asked.links and measure_links(place) or {})
  if place.rank == 0 and #profile.points == 0 then
    errors.raise("environment", "nothing could be measured: no size fits in memory; --microbatches=1 and fewer tokens "
      .. "of context help")
  end
  save()
  if place.cluster then place.cluster:leave() end
  if place.rank ~= 0 then return 0 end

  local settings = native.settings
  if not settings.quiet or not settings.json then
    native.write(settings.json and "stderr" or "stdout", table_of(profile, place, model))
  end
  if not settings.quiet then
    native.write("stderr", ("kept in %s: %d measured, %d from before; `hetrun plan %s --profile=%s` uses it\n"):format(
      path, #wanted - #skipped, reused, words[1], path))
  end
  if settings.json then
    native.write("stdout", native.json_encode(summary_of(profile, path, { measured = #wanted - #skipped,
      reused = reused, skipped = skipped })) .. "\n")
  end
  return 0
end

return profiling
