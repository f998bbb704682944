-- Random calls of all that a recipe reaches, in a recipe's sandbox, with random mixtures of objects and hostile values,
-- also from within the functions that a run calls. It fails when the library raises a bug, when a recipe
-- gets what it may not hold, and when the process dies; then the same seed, or the last line of --log, shows the call.
--
--   hetrun --trust tests/fuzz/recipe_api.lua --seconds=60 --seed=7
local ffi = require "ffi"
local define = require "het.language.define"
local mistakes = require "het.language.mistakes"
local native = require "het.native"
local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."
local world = dofile(here .. "/../security/world.lua")

local opt = require("het").options {
  seconds = { 10, "how long", min = 1 },
  actions = { 0, "stop after so many calls; 0: by the time", min = 0 },
  seed    = { 1, "of the calls", min = 0 },
  log     = { "", "file for each call before it is made" },
  memory  = { 6, "GiB of addresses; 0: no limit, for an address sanitizer, which reserves far more", min = 0 },
}

-- Tensors of absurd sizes are refused, not swapped in. The native code that runs for long is bounded by this too.
ffi.cdef [[struct het_rlimit { unsigned long current, most; }; int setrlimit(int, const struct het_rlimit *);]]
if opt.memory > 0 then
  local bytes = opt.memory * 2 ^ 30
  ffi.C.setrlimit(9, ffi.new("struct het_rlimit", bytes, bytes))   -- RLIMIT_AS
end
jit.off()   -- so that the hook sees every loop
collectgarbage "setpause"

math.randomseed(opt.seed)
local random = math.random
native.write("stdout", ("seed %d\n"):format(opt.seed))

local most_values = 600         -- kept to call with
local most_depth = 2            -- of calls within functions that the library calls
local action_seconds = 1.5      -- of one call

local folder = world.folder()
local environment = world.environment(folder)
local log = opt.log ~= "" and assert(io.open(opt.log, "w"))

-- Metatables that the recipe makes are its own.
local own = setmetatable({}, { __mode = "k" })
local set = environment.setmetatable
rawset(environment, "setmetatable", function(value, meta)
  if type(meta) == "table" then own[meta] = true end
  return set(value, meta)
end)

local values = {}

local fail, failures = world.failures()

local function keep(name, value)
  local kind = type(value)
  if kind == "nil" or kind == "number" or kind == "string" or kind == "boolean" then return end
  local why = world.problem(value, environment, own)
  if why then return fail(name, why) end
  local at = #values < most_values and #values + 1 or random(most_values)
  values[at] = { name:sub(1, 60), value }
end

local hostile = world.hostile()
for _, value in ipairs(hostile) do own[type(value) == "table" and debug.getmetatable(value) or false] = true end

local function any() return values[random(#values)] end
local function chosen(list) return #list > 0 and list[random(#list)] or nil end

local depth, threads = 0, {}
local act
local function inside(name, ...)
  for i = 1, select("#", ...) do keep(name, (select(i, ...))) end
  if depth < most_depth then
    for _ = 1, random(0, 2) do act() end
  end
  if coroutine.running() and random() < 0.3 then coroutine.yield() end
end

local small = { 1, 1, 2, 2, 3, 4, 8 }
local words = { "", "text.txt", folder .. "/text.txt", folder .. "/saved", folder, "the ", "f32", "bf16", "i32", "i64",
  "train", "holdout", "char", "tokens.weight", "blocks.0", "1 GB/s", "5 us", "24 GiB", "T4", "here:0", "a:0-3", "1f1b" }

-- What is not tried: it reaches other hosts, waits on purpose, or measures the machine.
local skipped_fields = { rendezvous = true, pace = true, name = true, limit = true }
local skipped = { ["cluster.here"] = true, ["plan.auto"] = true, help = true }

-- Sizes that only take time are small or refused.
local value_of

local function plausible(field)
  if field.choices then return chosen(field.choices) end
  local kind = chosen((function()
    local kinds = {}
    for name in field[2]:gmatch "[^|]+" do kinds[#kinds + 1] = name end
    return kinds
  end)())
  if kind == "integer" then return chosen(small) end
  if kind == "number" then return random() end
  if kind == "boolean" then return random() < 0.5 end
  if kind == "string" then return chosen(words) end
  if kind == "record" then
    local record = {}
    for _, inner in ipairs(field.fields or {}) do
      if random() < 0.5 then record[inner[1]] = value_of(inner) end
    end
    return record
  end
  if kind == "function" then
    local result = any()[2]
    return function(...)
      inside(field[1], ...)
      return random() < 0.5 and (...) or result
    end
  end
  for _ = 1, 30 do
    local value = any()[2]
    if define.kind_of(value) == kind or kind == "tensor" and type(value) == "userdata" then return value end
  end
  return any()[2]
end

function value_of(field)
  local chance = random()
  if chance < 0.85 then return plausible(field) end
  if chance < 0.93 then return any()[2] end
  return chosen(hostile)
end

-- Arguments for a constructor, by its definition.
local function arguments_of(definition)
  local given = {}
  for _, field in ipairs(definition.fields or {}) do
    if not skipped_fields[field[1]] and (field.required and random() < 0.95 or random() < 0.3) then
      given[field[1]] = value_of(field)
    end
  end
  if definition.list then
    for i = 1, random(0, 3) do given[i] = value_of { "item", definition.list[1] } end
  end
  return given
end

local function argument()
  local chance = random()
  if chance < 0.35 then return any()[2] end
  if chance < 0.55 then return chosen(hostile) end
  if chance < 0.65 then return chosen(small) end
  if chance < 0.75 then return chosen(words) end
  if chance < 0.85 then
    return function(...)
      inside("callback", ...)
      return ...
    end
  end
  local list = {}
  for i = 1, random(0, 4) do list[i] = random() < 0.7 and chosen(small) or any()[2] end
  if random() < 0.5 then
    list[chosen { "dim", "shape", "tokens", "prompt", "batch", "context", "start", "p" }] = argument()
  end
  return list
end

local calls, trained, deadline = 0, 0, math.huge

local function call(what, fn, ...)
  calls = calls + 1
  if log then
    log:write(("%d %s%s\n"):format(calls, ("  "):rep(depth), what))
    log:flush()
  end
  local before, started = deadline, native.clock()
  depth, deadline = depth + 1, math.min(deadline, started + action_seconds)
  local results
  if random() < 0.1 and type(fn) == "function" then
    -- In a coroutine: what yields in a function that the library calls goes on later, or never.
    local thread = coroutine.create(fn)
    results = { coroutine.resume(thread, ...) }
    if coroutine.status(thread) == "suspended" then
      results = { true }
      threads[#threads % 8 + 1] = thread
    end
  else
    results = { pcall(fn, ...) }
  end
  depth, deadline = depth - 1, before
  local took = native.clock() - started
  if log and took > 1 then log:write(("took %.1f s: %s\n"):format(took, what)) end
  mistakes.take()
  if results[1] then
    for i = 2, math.min(#results, 6) do keep(what, results[i]) end
    return results[2]
  end
  local kind, message = world.raised(results[2])
  if kind == "bug" then fail(what, "a bug: " .. message) end
  keep("error of " .. what, results[2])
end

debug.sethook(function()
  if native.clock() > deadline then
    deadline = math.huge
    error("the time of this call is up", 0)
  end
end, "", 20000)

local public = environment.require "het"
assert(public.help "run")   -- it loads all parts of the library
local constructors, operators = {}, {}
for _, name in ipairs(define.names()) do
  local definition = define.lookup(name)
  local value = public
  for part in name:gmatch "[^.]+" do
    local ok, inner = pcall(function() return value[part] end)
    value = ok and inner or nil
  end
  if value ~= nil and not skipped[name] and not definition.of then
    if name:match "^op%." then operators[#operators + 1] = { name, value }
    elseif definition.fields then constructors[#constructors + 1] = { name, value, definition } end
  end
end

-- A method or a field of something that is kept, by a name that it documents.
local function use_member()
  local name, value = unpack(any())
  local meta = (type(value) == "table" or type(value) == "userdata") and debug.getmetatable(value)
  local names = {}
  if meta and rawget(meta, "__names") then names = meta.__names end
  if meta and type(value) == "userdata" then
    for method in pairs(rawget(meta, "methods") or {}) do names[#names + 1] = method end
    table.sort(names)
  end
  if #names == 0 then return end
  local member = chosen(names)
  local what = ("%s.%s"):format(name, member)
  local found = call(what, function() return value[member] end)
  if type(found) ~= "function" then return end
  local count, arguments = random(0, 3), {}
  for i = 1, count do arguments[i] = argument() end
  local definition = define.lookup("generate")
  if member == "generate" and random() < 0.8 then
    arguments[1] = arguments_of(definition)
    arguments[1].tokens, count = chosen(small), math.max(count, 1)
  end
  if random() < 0.05 then value = argument() end
  call(what .. "()", found, value, unpack(arguments, 1, count))
end

local function construct()
  local name, fn, definition = unpack(chosen(constructors))
  local given = arguments_of(definition)
  -- These only take time: bounded where they are numbers.
  for _, field in ipairs { "steps", "tokens", "layers", "batches", "every", "save_every" } do
    local value = given[field]
    if name ~= "stage" and type(value) == "number" and value > 8 and value < math.huge then given[field] = 3 end
  end
  call(name, fn, given)
end

-- Objects of objects.lua by their names.
local good = {}

local train
for _, each in ipairs(constructors) do train = each[1] == "train" and each or train end

-- A run that would train, but for a few of its arguments.
local function train_some()
  local given = { model = chosen { good.model, good.model, good.llama, good["own blocks"], good.loaded },
    data = good.corpus, optimizer = chosen { good.optimizer, good.sgd }, batch = 2, steps = random(3),
    evaluate = { every = 1, batches = 1 } }
  if random() < 0.3 then given.model, given.data = good.sequential, good.pairs end
  if random() < 0.2 then given.plan = good.plan end
  for _, field in ipairs(train[3].fields) do
    local name = field[1]
    if not skipped_fields[name] and name ~= "steps" and random() < 0.06 then given[name] = value_of(field) end
  end
  if random() < 0.6 then given.on_step = function(...) inside("on_step", ...) end end
  if random() < 0.3 then given.after = function(...) inside("after", ...) end end
  if random() < 0.2 then
    given.loss = function(...)
      inside("loss", ...)
      return random() < 0.8 and call("loss", public.op.cross_entropy, ...) or any()[2]
    end
  end
  local run = call("train", train[2], given)
  if define.kind_of(run) ~= "run" then return end
  for _ = 1, random(0, 2) do
    local member = chosen { "prepare", "train_step", "evaluate", "gather", "save", "start", "generate",
      "graph_of_sample" }
    call("run:" .. member, run[member], run, argument())
  end
  if call("run:start()", run.start, run) then trained = trained + 1 end
end

local function operate()
  local name, fn = unpack(chosen(operators))
  local arguments, count = {}, random(0, 4)
  for i = 1, count do
    arguments[i] = random() < 0.8 and plausible { "operand", "tensor" } or argument()
  end
  if random() < 0.6 then
    count = count + 1
    local attributes = {}
    for _, attribute in ipairs { "dim", "shape", "sizes", "start", "length", "factor", "p", "order", "causal", "dtype",
      "heads", "scale", "eps", "seed", "stream", "base", "window" } do
      if random() < 0.2 then
        attributes[attribute] = random() < 0.7 and chosen { -1, 0, 1, 2, 3, true, "f32", 0.5, { 2, 3 }, { 1, 0 } }
          or argument()
      end
    end
    arguments[count] = attributes
  end
  call(name, fn, unpack(arguments, 1, count))
end

-- Make a tensor, so that operators have some to work with.
local function make_tensor()
  local shape = {}
  for i = 1, random(0, 3) do shape[i] = chosen { 0, 1, 2, 3, 4, 8 } end
  call("het.randn", public.randn, shape, chosen { "f32", "bf16", "f64" })
  call("het.full", public.full, shape, random(0, 5), chosen { "i32", "i64", "f32", "bool", "u8" })
end

local function write()
  local name, value = unpack(any())
  if type(value) ~= "table" then return end
  local key = random() < 0.5 and chosen { "step", "cursor", "state", "arguments", "linear", "train", 1 } or argument()
  if key == nil or key ~= key then return end
  local meta = debug.getmetatable(value)
  if meta and own[meta] then return end
  call("write of " .. name, chosen { environment.rawset, function(t, k, v) t[k] = v end, environment.setmetatable },
    value, key, argument())
end

function act()
  local chance = random()
  local thread = chance < 0.05 and chosen(threads)
  if thread then return call("a coroutine", coroutine.resume, thread) end
  if chance < 0.35 then return use_member() end
  if chance < 0.55 then return construct() end
  if chance < 0.6 then return train_some() end
  if chance < 0.8 then return operate() end
  if chance < 0.85 then return make_tensor() end
  if chance < 0.9 then return write() end
  local name, value = unpack(any())
  local arguments, count = {}, random(0, 4)
  for i = 1, count do arguments[i] = argument() end
  if type(value) == "function" or type(value) == "table" and debug.getmetatable(value) then
    call(name .. "()", value, unpack(arguments, 1, count))
  end
  pcall(tostring, value)
end

for i, value in ipairs(hostile) do keep("hostile " .. i, value) end
world.objects(environment, folder, function(name, value)
  good[name] = good[name] or value
  keep(name, value)
end, function() end)
local began = native.clock()
local rounds = 0
while failures() < 20 do
  if opt.actions > 0 and calls >= opt.actions then break end
  if native.clock() - began > opt.seconds then break end
  act()
  rounds = rounds + 1
  if rounds % 50 == 0 then collectgarbage() end
  if rounds % 3000 == 0 then   -- what was kept holds what it is made of
    values = {}
    for i, value in ipairs(hostile) do keep("hostile " .. i, value) end
    call("objects", world.objects, environment, folder, keep, inside)
  end
end
debug.sethook()
native.write("stdout", ("%d calls, %d runs trained, %d failures, %.0f MiB at most\n"):format(
  calls, trained, failures(), native.memory_peak() / 2 ^ 20))
os.execute("rm -rf '" .. folder .. "'")
os.exit(failures() == 0 and 0 or 1)
