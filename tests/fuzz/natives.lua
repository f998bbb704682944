-- luacheck: no max line length
-- luacheck: ignore 431
-- Random calls of the engine's functions, as a hostile recipe would make them: hetrun --trust natives.lua --seconds=N
-- --seed=S. Whatever the arguments, a call returns or raises an error that is not a bug of hetrun's.
local native = require "het.native"
local ffi = require "ffi"

io.stdout:setvbuf "line"
local seconds, seed, trace = 10, os.time(), false
for _, word in ipairs(native.arguments) do
  seconds = tonumber(word:match "^%-%-seconds=(.+)$") or seconds
  seed = tonumber(word:match "^%-%-seed=(.+)$") or seed
  trace = trace or word == "--slow=show"
end
print(("fuzz natives: --seed=%d --seconds=%g"):format(seed, seconds))
math.randomseed(seed)
local random = math.random

-- What is not called at random, and why.
local skipped = {
  fail = "raises the kind of error that its argument names",
  write = "prints", undisturbed = "only calls a function", run_trains = "changes what signals do",
  interrupted = "takes a signal", threads = "is called with small numbers alone: threads stay",
  write_text = "writes files", append = "writes files", json_write = "writes files", staged_path = "only names a file",
  commit_staged = "renames files", drop_staged = "removes files", remove_file = "removes files", make_folder = "makes folders",
  try_folder = "makes files", save_files = "writes files; called with hostile lists alone",
  join = "waits for other processes", member = "waits for other processes", messages_between = "needs a cluster",
  address = "gives an address, which is used by no other function",
  snapshot_write = "writes files", snapshot_remove = "removes files", store_newest = "asks servers", store_clear = "removes files", run_snapshots = "writes files, and listens",
  control = "needs a cluster", attach = "connects to runs", sleep = "waits", let_interrupts_end = "changes what signals do",
  watch_for_notices = "asks the cloud", end_notices = "changes what signals do",
  confine = "takes rights from the process", limit_memory = "takes memory from it", limit_prompt = "limits io.open",
  open_file = "makes and empties files", cache_write = "writes files", product_speeds = "measures, and writes files", write_control = "moves the cursor",
  kill_self = "ends the process", terminate_self = "ends the process", say_left = "speaks to the launcher", bring_back = "speaks to the launcher", wait_for_file = "waits", be_silent = "sends the output nowhere", resolve = "asks the file system", read_text = "may read endless files", executable = "takes no arguments",
}

local function pick(list) return list[random(#list)] end

-- --- hostile arguments

local dtypes = { "f32", "f64", "bf16", "f16", "i32", "i64", "u8", "bool" }
local numbers = {
  0, 1, 2, 3, 4, 7, 8, 16, 100, -1, -2, -0.0, 0.5, 1.5, 1e-300, 1000, 2 ^ 31, 2 ^ 31 - 1, -2 ^ 31, 2 ^ 32,
  2 ^ 48, 2 ^ 52, 2 ^ 53, 2 ^ 53 + 2, 2 ^ 62, 2 ^ 63, -2 ^ 63, 2 ^ 64, 1e15, 1e18, 1e30, 1e300, -1e300, 1 / 0, -1 / 0,
  0 / 0,
}
-- Of dimensions: none that fits the memory and takes long to fill.
local sizes = { 0, 1, -1, 0.5, 2 ^ 40, 2 ^ 46, 2 ^ 48, 2 ^ 53, 2 ^ 63, 1e30, 1 / 0, 0 / 0 }
local words = {
  "", "x", "y", "w", "loss", "f32", "i32", "cpu", "reference", "cuda", "cuda:7", "normal", "zeros", "forward",
  "backward", "update", "train", "holdout", "text", "tokens", "ids", "char", "byte", "bpe", "sentencepiece", "masked",
  "next_token", "1f1b", "interleaved", "auto", "time", "cost", "a\0b", "\255\254", ("long"):rep(1000), "1 GiB",
  "1e400 GB", "nan", "-1", "5 us", "/nonexistent/file", "/dev/null", "/proc/self/comm", "%s%n", "{}", "[[[[",
  '{"kind":"byte"}', "gelu",
}
local field_names = {
  "kind", "scale", "dims", "dim", "order", "shape", "start", "length", "sizes", "value", "dtype", "factor", "amount",
  "eps", "causal", "ignore", "rows", "first", "of", "p", "seed", "stream", "slice", "whole", "base", "bias", "keep",
  "step", "steps", "immediates", "results", "dtypes", "counts", "part", "max_norm", "momentum", "beta1",
  "weight_decays", "activation", "approximate", "transpose_a", "transpose_b", "microbatches", "plan", "rank", "fuse",
  "pipelines", "stages", "devices", "layers", "tensor", "sequence", "microbatch", "schedule", "chunks", "warmup",
  "sharded_optimizer", "unlike_devices", "optimizer_share", "recompute", "context", "batch", "split", "count", "ahead", "objective",
  "mask_share", "mask_token", "ids", "vocabulary", "holdout", "path", "tokenizer", "model", "width", "most_bytes",
  "tokenizer_json", "packing", "ending", "ending_id", "name", "tokens", "type", "runs", "inputs", "cluster", "policy", "events", "fallbacks",
  "extensions", "old", "near", "nodes", "types", "links", "latency", "bandwidth", "zone", "price", "preemptions",
  "interfaces", "cases", "step_seconds", "window", "parts",
  "efficiency", "memory", "f32", "bf16", "f16", "from", "to", "bytes", "seconds", "flops", "profile", "tensors",
  "metadata", "json", "merges", "characters", "warmup", "interface", "axes", "sizes", "ranks", "device",
}

local pool = {}      -- objects by class
local classes = {}   -- names of them
local function keep(value)
  if type(value) ~= "userdata" then return end
  local class = getmetatable(value)
  if type(class) ~= "string" then return end
  if class == "tensor" and value:numel() > 2 ^ 20 then return end   -- memory stays bounded
  if not pool[class] then
    pool[class] = {}
    classes[#classes + 1] = class
  end
  local list = pool[class]
  if #list < 24 then list[#list + 1] = value else list[random(#list)] = value end
end

local anything

local function shape()
  local made = {}
  for i = 1, random(0, 4) do made[i] = random() < 0.15 and pick(sizes) or random(0, 5) end
  return made
end

local function list(depth)
  local values = {}
  local count, kind = random(0, 5), random(5)
  for i = 1, count do
    if kind == 1 then values[i] = pick(numbers)
    elseif kind == 2 then values[i] = pick(words)
    elseif kind == 3 then values[i] = random(0, 6)
    else values[i] = anything(depth + 1) end
  end
  if random() < 0.05 then values[random(10)] = anything(depth + 1) end   -- a hole
  return values
end

local function fields(depth)
  local values = {}
  for _ = 1, random(0, 6) do values[pick(field_names)] = anything(depth + 1) end
  return values
end

local function itself()
  local t = {}
  t[1], t[2], t.plan, t.pipelines, t.stages, t.cluster = t, t, t, t, t, t
  return t
end

local function many_times()
  local t = { 1 }
  for _ = 1, random() < 0.1 and 60 or random(2, 12) do t = { t, t } end
  return t
end

local function hostile_meta()
  return setmetatable({}, { __index = function(_, key)
    local choice = random(4)
    if choice == 1 then error "from a table" end
    if choice == 2 then return key end
    if choice == 3 then collectgarbage() end
    return pick(numbers)
  end })
end

function anything(depth)
  depth = depth or 0
  local choice = random(22)
  if choice <= 3 then return pick(numbers) end
  if choice <= 5 then return pick(words) end
  if choice == 6 then return random(0, 5) end
  if choice == 7 then return random() end
  if choice == 8 then return nil end
  if choice == 9 then return random() < 0.5 end
  if choice == 10 then return pick(dtypes) end
  if choice == 11 then return shape() end
  if choice == 12 then return print end
  if choice == 13 then return native.null end
  if choice == 14 then return random() < 0.5 and coroutine.create(print) or ffi.new("int64_t", 5) end
  if choice == 15 then return depth < 3 and pick { itself, many_times, hostile_meta }() or {} end
  if choice == 16 and depth < 4 then return fields(depth) end
  if choice == 17 and depth < 4 then return list(depth) end
  return pick(pool[pick(classes)])
end

-- --- valid objects to begin with

local function tensor(dtype, ...)
  return native.randn({ ... }, "f32"):to(dtype or "f32")
end

local function small_graph()
  local g = native.graph()
  g:begin_layer "first"
  g:push_scope "first"
  local x = g:input("x", "f32", { 4, 8 })
  local labels = g:input("labels", "i32", { 4 })
  local w = g:parameter("w", "f32", { 8, 8 }, { kind = "normal", scale = 0.1 })
  local h = native.op("linear", { x, w })
  g:pop_scope()
  g:begin_layer "second"
  g:enter_layer(0)
  g:enter_layer(1)
  g:push_scope "second"
  local v = g:parameter("v", "f32", { 6, 8 }, { kind = "uniform", scale = 0.1 })
  local one = native.op("fill", g, { value = 0.25, shape = { 1 } })
  local loss = native.op("linear_cross_entropy", { h, v, false, labels, one })
  g:pop_scope()
  g:output("loss", loss)
  local gradients = g:differentiate(loss)
  for name, gradient in pairs(gradients) do g:output("d" .. name, gradient) end
  for _, value in ipairs { x, labels, w, h, v, loss } do keep(value) end
  return g
end

local valid = {
  function() return tensor(pick(dtypes), random(0, 4), random(1, 5)) end,
  function() return tensor(pick(dtypes), random(1, 8)) end,
  function() return native.tensor(random(-3, 9), pick(dtypes)) end,
  function() return native.randn({ 2, 3, 2, 4 }, pick { "f32", "bf16" }) end,
  function() return native.op("transpose", { tensor("f32", 3, 4) }, { order = { 1, 0 } }) end,
  function() return native.graph() end,
  small_graph,
  function() return native.device(pick { "cpu", "reference" }) end,
  function() return native.state(native.device(pick { "cpu", "reference" }), random(0, 9)) end,
  function() return native.program(small_graph(), { microbatches = random(1, 3) }) end,
  function()
    local state = native.state(native.device "cpu", 1)
    keep(state)
    local executor = native.executor(native.program(small_graph(), { microbatches = 1 }), state)
    executor:write("x", tensor("f32", 4, 8), 1)
    executor:write("labels", native.tensor({ 1, 2, 3, 0 }, "i32"), 1)
    return executor
  end,
  function() return native.corpus { kind = "ids", ids = { 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5 }, vocabulary = 6,
    holdout = 0.3 } end,
  function()
    return native.corpus { kind = "ids", ids = { 1, 2, 3, 4, 5, 0, 1 }, vocabulary = 6, holdout = 0 }
      :sampler { context = 2, batch = 2, ahead = random(0, 2) }
  end,
  function() return native.tokenizer { kind = "byte" } end,
  function() return native.tokenizer { kind = "char", characters = "abc" } end,
  function()
    local state = native.state(native.device "cpu", 1)
    state:write("t", tensor("f32", 2, 2))
    return state:copy()
  end,
}

local function cluster()
  return { latency = 1e-5, bandwidth = 1e9,
    nodes = { { name = "a", type = "A100-80", devices = random(1, 3) }, { name = "b", type = "T4", devices = 1,
      count = random(1, 2) } } }
end

local function plan()
  return { microbatch = 1, pipelines = { { microbatches = random(1, 3),
    stages = { { devices = { "a:0" }, layers = 1 }, { devices = { "a:1" } } } } } }
end

-- A valid table with one thing in it changed, at any depth.
local function spoilt(t)
  local at = t
  for _ = 1, random(1, 4) do
    local keys = {}
    for key in pairs(at) do keys[#keys + 1] = key end
    if #keys == 0 then break end
    local key = pick(keys)
    if type(at[key]) == "table" and random() < 0.7 then
      at = at[key]
    else
      at[key] = anything(2)
      break
    end
  end
  if random() < 0.3 then at[pick(field_names)] = anything(2) end
  return t
end

-- Arguments that are nearly right, by function.
local operators = native.operators()
local function operands(count)
  local source = random() < 0.5 and pool.tensor or pool.value
  local result = {}
  for i = 1, count do
    result[i] = random() < 0.08 and false or pick(source)
    if random() < 0.03 then result[i] = anything(2) end
  end
  return result
end
local function attributes_of(operator)
  local result = {}
  for _, name in ipairs(operator.attributes) do
    local choice = random(6)
    if choice == 1 then result[name] = random(0, 4)
    elseif choice == 2 then result[name] = list(2)
    elseif choice == 3 then result[name] = shape()
    elseif choice == 4 then result[name] = random() < 0.5
    elseif choice == 5 then result[name] = anything(2) end
  end
  return result
end
-- Operands with types that the operator asks for: shapes of few sizes, so that they often fit.
local function fitting(operator)
  local inputs = operator.signature:match "^(.-)→" or ""
  local leading, operands_made = { random(0, 3), random(0, 3), random(0, 3) }, {}
  local dtype, rank = pick { "f32", "bf16", "f32" }, random(1, 3)
  local by_letter = {}
  for operand in (inputs .. ","):gmatch "%s*(.-)%s*," do
    if operand ~= "" and not operand:find "…" then
      local dims = operand:match "%[(.-)%]"
      local made = {}
      if dims then
        for dim in dims:gmatch "[^,%s]+" do
          if dim == "..." then for i = 1, rank - 1 do made[#made + 1] = leading[i] end
          elseif tonumber(dim) then made[#made + 1] = tonumber(dim)
          else
            by_letter[dim] = by_letter[dim] or random(0, 4)
            made[#made + 1] = by_letter[dim]
          end
        end
      else
        for i = 1, rank do made[i] = leading[i] end
      end
      local is = operand:match ":(%w+)"
      is = (is == "T" or is == nil) and dtype or is == "A" and "f32" or is
      if operand:find "%?" and random() < 0.4 then operands_made[#operands_made + 1] = false
      elseif is == "i32" or is == "i64" then
        operands_made[#operands_made + 1] = native.full(made, random() < 0.9 and random(0, 2) or pick(numbers), is)
      else
        operands_made[#operands_made + 1] = native.randn(made, is)
      end
    end
  end
  return operands_made
end

local nearly = {
  op = function()
    local operator = pick(operators)
    if random() < 0.5 then
      local ok, made = pcall(fitting, operator)
      return operator.name, ok and made or {}, random() < 0.5 and attributes_of(operator) or nil
    end
    return operator.name, random() < 0.1 and pick(pool.graph) or operands(random(0, 6)), attributes_of(operator)
  end,
  tensor = function() return list(0), pick(dtypes), random() < 0.3 and shape() or nil end,
  full = function() return shape(), pick(numbers), pick(dtypes) end,
  arange = function() return random() < 0.7 and random(0, 9) or pick(sizes), pick(dtypes), pick(numbers),
    pick(numbers) end,
  randn = function() return shape(), pick(dtypes), pick(numbers) end,
  uniform = function() return shape(), pick(dtypes), pick(numbers) end,
  device = function() return pick { "cpu", "reference", nil }, fields(2) end,
  state = function() return pick(pool.device), pick(numbers) end,
  program = function()
    return pick(pool.graph), pick { nil, { microbatches = pick { 1, 2, 3, 0, -1, 0.5, 2 ^ 31 - 1, 2 ^ 31, 0 / 0 } },
      spoilt { plan = plan(), rank = random(0, 1) } }
  end,
  executor = function() return pick(pool.program), pick(pool.state) end,
  corpus = function()
    return spoilt(pick {
      { kind = "ids", ids = { 1, 2, 3, 0, 5, 1, 1 }, vocabulary = 6, holdout = 0.2 },
      { kind = "text", path = "/proc/self/comm", tokenizer = "byte" },
      { kind = "tokens", path = "/proc/self/cmdline", width = 16 } })
  end,
  draw = function()
    return native.randn { random(0, 9) }, pick { 0, 1, 0.5, pick(numbers) }, pick { nil, 1, 3, pick(numbers) },
      pick { 1, 0.5, pick(numbers) }, pick { 0, 0.5, 0.999, pick(numbers) }, pick { nil, 2, pick(numbers) }
  end,
  shuffled_rows = function()
    return pick(pool.tensor), random() < 0.6 and random(0, 4) or pick(numbers), pick(numbers), pick(numbers),
      random() < 0.6 and random(0, 9) or pick(sizes)
  end,
  threads = function() return pick { 1, 2, 0, -1, 1e9, 0 / 0, "x" } end,
  save_files = function() return pick { {}, itself(), { {} }, { { path = 5 } }, { 1, 2 }, 7, nil } end,
  plan = function()
    return pick(pool.graph), spoilt { cluster = cluster(), batch = 4, name = "m", tokens = 8, policy = pick { "auto",
      "megatron" } }
  end,
  simulate = function()
    return pick(pool.graph), spoilt { cluster = cluster(), batch = 2, name = "m", tokens = 8, plan = plan() }
  end,
  pace = function() return spoilt(cluster()), spoilt(plan()), pick { 2, 2, pick(numbers) } end,
  cluster_problems = function() return spoilt(cluster()) end,
  price_problem = function() return spoilt(cluster()), pick { "time", "cost", "progress", pick(words) } end,
  model = function() return pick(pool.graph), spoilt { name = "m", tokens = 8 } end,
  measure = function()
    local settings = spoilt { name = "m", tokens = 8, type = "cpu", runs = 1, sharing = 2, inputs = { x = tensor("f32", 4, 8),
      labels = native.full({ 4 }, 1, "i32") } }
    if pick { true, false } then settings.kinds = pick { {}, { pick(words) }, list(0), 7 } end
    if type(settings.runs) == "number" and settings.runs > 3 then settings.runs = -settings.runs end   -- they take long
    return pick(pool.graph), pick(pool.graph), pick(pool.device), settings
  end,
  messages_here = function() return pick { { 1, 100 }, { 0 }, { -1 }, { 2 ^ 40 }, {}, list(0) }, pick { 1, 2, 0, -1,
    0 / 0 } end,
  fit_link = function() return pick { { { bytes = 1, seconds = 2 }, { bytes = 5, seconds = 3 } }, {}, list(0),
    { { bytes = pick(numbers), seconds = pick(numbers) } } } end,
  json_encode = function() return anything(), pick { false, true, 2, pick(numbers) } end,
  json_decode = function() return pick { ("["):rep(random(1, 1000)), '{"a":1,"a":2}', "1e999", "[1,2",
    pick(words) } end,
  tokenizer = function()
    return spoilt(pick { { kind = "byte" }, { kind = "char", characters = "abc" }, { kind = "bpe", tokens = { "a",
      "b" }, merges = { "a b" } },
      { kind = "sentencepiece", model = "AAAA" } })
  end,
  mesh = function() return nil, pick { { "a" }, { "a", "b" }, list(0) }, pick { { 1 }, { 1, 1 }, { 0, 2 }, list(0) },
    pick { nil, { 0 }, { 1 }, list(0) } end,
  run_on_mesh = function() return pick(pool.graph), { pick(pool.tensor) }, { pick(pool.value) }, { pick(pool.value) },
    { pick { 0, 1, 7, pick(numbers) } } end,
  nearest = function() return pick(words), pick { { "abc", "abd" }, list(0), {} } end,
  stored_joined = function() return list(0) end,
}

-- --- methods

local metatable_of = debug.getmetatable
local function methods_of(object)
  local meta = metatable_of(object)
  local names = {}
  for name, value in pairs(meta) do
    if name == "methods" then
      for method, f in pairs(value) do names[#names + 1] = { method, f } end
    elseif type(value) == "function" and name ~= "__index" and (name ~= "__gc" or random() < 0.02) then
      names[#names + 1] = { name, value }
    end
  end
  table.sort(names, function(a, b) return a[1] < b[1] end)
  return names
end

local nearly_method = {
  at = function() return random(-2, 5), random(-2, 5) end,
  to = function() return pick(dtypes) end,
  write = function(class)
    if class == "state" then return pick { "w", "v", "x", pick(words) }, pick(pool.tensor) end
    return pick { "x", "labels", pick(words) }, pick { pick(pool.tensor), pick(numbers), tensor("f32", 4, 8) },
      pick { 1, nil, 2, pick(numbers) }
  end,
  read = function() return pick { "loss", "dw", "w", "v", pick(words) } end,
  number = function() return pick { "loss", "dw" } end,
  drop = function() return pick { "w", "v", "x" } end,
  input = function() return pick(words), pick(dtypes), shape(), random() < 0.3 end,
  parameter = function() return pick(words), pick(dtypes), shape(), fields(2) end,
  buffer = function() return pick(words), pick(dtypes), shape(), fields(2) end,
  output = function() return pick(words), pick(pool.value) end,
  differentiate = function() return pick(pool.value) end,
  join_classifiers = function() return pick { list(0), { { 0, 3 } }, { { pick(numbers), pick(numbers) } }, { list(0) } } end,
  sampler = function() return spoilt { context = 2, batch = 2, microbatch = 1, split = "train", seed = 1,
    ahead = 0 } end,
  seek = function() return pick { 0, 5, pick(numbers) } end,
  set_initial = function() return pick { "w", "v", pick(words) }, pick(pool["stored tensor"] or pool.tensor) end,
  decode = function() return pick { { 0, 1, 2 }, list(0) } end,
  encode = function() return pick(words) end,
  __newindex = function() return random(-1, 6), pick(numbers) end,
  shard = function() return pick(pool.mesh or pool.tensor), pick { { a = 0 }, { a = { dim = 1, shares = { 1 } } },
    { a = pick(numbers) }, { b = 0 }, list(0) } end,
  redistribute = function() return pick { { a = 0 }, { a = { dim = -1 } }, {}, list(0) } end,
  all_gather = function() return pick(pool.tensor), pick { "a", "b", "x" }, pick { 0, 1, -1, pick(numbers) } end,
  all_reduce = function() return pick(pool.tensor), pick { "a", "b" }, pick { nil, "max", "min" } end,
  reduce_scatter = function() return pick(pool.tensor), "a", pick { 0, 1, pick(numbers) }, pick { nil, { 1 }, list(0) } end,
  all_to_all = function() return pick(pool.tensor), "a", pick { 0, 1, pick(numbers) }, pick { 0, 1, pick(numbers) } end,
  broadcast = function() return pick(pool.tensor), "a", pick { 0, 1, pick(numbers) } end,
  transfer = function() return pick(pool.tensor), "a", pick { 0, 1, pick(numbers) }, pick { 0, 0, pick(numbers) } end,
  gradients = function()
    local record = { first = pick { 0, 1, pick(numbers) }, last = pick { 1, 2, pick(numbers) },
      inputs = pick { { pick(pool.value) }, {}, 7 }, output = pick(pool.value),
      backward = function(gradient) return pick { gradient, pick(pool.value), 7, false } end }
    return pick(pool.value), { pick(pool.value) }, pick { { record }, { record, record }, { 7 }, false }
  end,
}
local skipped_methods = {
  data = "a pointer of the ffi", copy_to = "writes files", kill_at = "ends the process in the next run",
  peak_flops = "measures for seconds", product_flops = "measures for seconds", bandwidth = "measures for seconds",
  measuring = "measures for seconds",
}

-- --- the walk

local function show(value, depth)
  depth = depth or 0
  if type(value) == "table" then
    if depth > 3 then return "{...}" end
    local parts = {}
    for key, entry in pairs(value) do
      parts[#parts + 1] = (type(key) == "number" and "" or tostring(key) .. "=") .. show(entry, depth + 1)
      if #parts > 12 then break end
    end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  if type(value) == "string" then return ("%q"):format(value:sub(1, 40)) end
  if type(value) == "userdata" and metatable_of(value) then
    local class = getmetatable(value)
    local meta = metatable_of(value)
    if class == "tensor" or class == "value" then
      local _, d = pcall(function() return value.dtype .. "{" .. table.concat(value.shape, ",") .. "}" end)
      return class .. " " .. tostring(d)
    end
    return meta and tostring(class) or "userdata"
  end
  return tostring(value)
end

local function shown(...)
  local parts = {}
  for i = 1, select("#", ...) do parts[i] = show((select(i, ...))) end
  return table.concat(parts, ", ")
end

local functions = {}
for name, value in pairs(native) do
  if type(value) == "function" and (not skipped[name] or nearly[name]) then functions[#functions + 1] = name end
end
table.sort(functions)

local counts, bugs = { calls = 0, returned = 0 }, {}
local last = trace and io.open(os.getenv "FUZZ_TRACE" or "/dev/null", "w")

local function call(name, f, ...)
  counts.calls = counts.calls + 1
  if last then
    last:seek("set", 0)
    last:write(name, "(", shown(...), ")", (" "):rep(200), "\n")
    last:flush()
  end
  local began = native.clock()
  local results = { pcall(f, ...) }
  if trace and native.clock() - began > 0.5 then
    print(("SLOW %.1f s: %s(%s): %s"):format(native.clock() - began, name, shown(...), tostring(results[2]):sub(1,
      100)))
  end
  if results[1] then
    counts.returned = counts.returned + 1
    for i = 2, math.min(#results, 8) do
      keep(results[i])
      if type(results[i]) == "table" then
        for key, entry in pairs(results[i]) do
          keep(entry)
          if type(key) == "number" and key > 8 then break end
        end
      end
    end
    return
  end
  local problem = results[2]
  local kind = type(problem) == "table" and rawget(problem, "kind") or "text"
  if kind == "environment" or problem == "not enough memory" then collectgarbage() end
  counts[kind] = (counts[kind] or 0) + 1
  if kind == "bug" then
    local message = tostring(problem)
    local key = name .. ": " .. message:gsub("%d+", "N"):sub(1, 120)
    if not bugs[key] then
      bugs[key] = true
      bugs[#bugs + 1] = key
      print(("BUG %s\n    %s(%s)"):format(message, name, shown(...)))
    end
  end
end

local function hostile_arguments()
  local count = random(0, 6)
  local arguments = {}
  for i = 1, count do arguments[i] = anything() end
  return unpack(arguments, 1, count)
end

-- Tensors that stand in a file; it stays mapped when it is removed.
local function stored()
  local path = os.tmpname()
  native.save_files { { path = path, tensors = { w = tensor("f32", 8, 8), v = tensor("f32", 6, 8), t = tensor("bf16",
    3, 4) } } }:wait()
  for _, each in pairs((native.safetensors_open(path))) do keep(each) end
  os.remove(path)
end

for _ = 1, 3 do
  for _, make in ipairs(valid) do keep(make()) end
end
stored()

local started, rounds = native.clock(), 0
while native.clock() - started < seconds do
  rounds = rounds + 1
  if rounds % 50 == 0 then
    local ok, made = pcall(pick(valid))
    if ok then keep(made) end
  end
  if rounds % 400 == 0 then
    -- Graphs grow without end, and with them what is made of them.
    for _, class in ipairs { "graph", "value", "program", "executor", "state" } do
      local kept = pool[class]
      for i = #kept, 5, -1 do kept[i] = nil end
    end
    keep(small_graph())
    collectgarbage()
  end
  if random() < 0.5 then
    local name = pick(functions)
    if nearly[name] and (random() < 0.7 or skipped[name]) then
      call("native." .. name, native[name], nearly[name]())
    elseif not skipped[name] then
      call("native." .. name, native[name], hostile_arguments())
    end
  else
    local class = pick(classes)
    local object = pick(pool[class])
    if metatable_of(object) then
      local method = pick(methods_of(object))
      local name, f = method[1], method[2]
      if not skipped_methods[name] then
        local self = random() < 0.93 and object or anything()
        if nearly_method[name] and random() < 0.7 then
          call(class .. ":" .. name, f, self, nearly_method[name](class))
        else
          call(class .. ":" .. name, f, self, hostile_arguments())
        end
      end
      if random() < 0.1 then
        call(class .. ".index", function(o, k) return o[k] end, object, anything())
      end
    else   -- destroyed by __gc: any use of it is an error
      for i, entry in ipairs(pool[class]) do
        if entry == object then table.remove(pool[class], i) break end
      end
      if #pool[class] == 0 then
        for _, make in ipairs(valid) do pcall(function() keep(make()) end) end
        if #pool[class] == 0 then
          for i, each in ipairs(classes) do
            if each == class then table.remove(classes, i) break end
          end
          pool[class] = nil
        end
      end
    end
  end
end

local summary = {}
for kind, count in pairs(counts) do summary[#summary + 1] = kind .. " " .. count end
table.sort(summary)
print("fuzz natives: " .. table.concat(summary, ", "))
if #bugs > 0 then
  print(("%d kinds of bugs; --seed=%d"):format(#bugs, seed))
  os.exit(1)
end
os.exit(0)
