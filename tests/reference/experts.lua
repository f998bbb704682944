-- A small BERT with experts, its loss and all gradients, against the numbers that PyTorch gave (experts.py):
-- hetrun --trust experts.lua --numbers=experts.json
local het = require "het"
local native = require "het.native"
local builder = require "het.nn.builder"
local graphs = require "het.train.graphs"
local handle = require "het.sandbox.handle"

local opt = het.options { numbers = { "experts.json", "the file that experts.py writes", path = "read" } }
local numbers = native.json_read(opt.numbers)
local s = numbers.settings
local samples = #numbers.inputs

local function model_of(top)
  return het.nn.bert { vocab = s.vocab, context = s.context, width = s.width, heads = s.heads, layers = s.layers,
    block = function(width, heads)
      return het.nn.bert_block { width = width, heads = heads, mlp = het.nn.experts { width = width, hidden = s.hidden,
        experts = s.experts, top = top, capacity = s.capacity, auxiliary = s.auxiliary } }
    end }
end

-- The formula of experts.py.
local function set_weights(state, parameters)
  local names, shapes = {}, {}
  for i, parameter in ipairs(parameters) do names[i], shapes[parameter.name] = parameter.name, parameter.shape end
  table.sort(names)
  for n, name in ipairs(names) do
    local count, values = 1, {}
    for _, size in ipairs(shapes[name]) do count = count * size end
    local amplitude, base = name:match "gate$" and 1.5 or 0.4, name:match "norm%.weight$" and 1 or 0
    for i = 0, count - 1 do values[i + 1] = amplitude * math.sin(0.7 * i * (1 + 0.01 * n) + n) + base end
    state:write(name, native.tensor(values, "f32", shapes[name]))
  end
end

local function flatten(rows)
  local values = {}
  for _, row in ipairs(rows) do
    for _, value in ipairs(row) do values[#values + 1] = value end
  end
  return values
end

local compared = 0
local function compare(what, given, wanted, tolerance)
  local largest = 0
  for _, value in ipairs(wanted) do largest = math.max(largest, math.abs(value)) end
  for i, value in ipairs(wanted) do
    compared = compared + 1
    local difference = math.abs(given:at(i) - value)
    if difference ~= difference or difference > tolerance * (math.abs(value) + largest) then
      error(("%s, element %d: %.9g, PyTorch gives %.9g"):format(what, i, given:at(i), value), 0)
    end
  end
end

local function check(case, device)
  local shape = { samples, s.context }
  local b = builder.new { mode = "train", samples = samples }
  local loss = graphs.loss(b, { model = handle.inner(model_of(case.top)), inputs = { "i32", shape },
    labels = { "i32", shape } })
  local graph = b.graph
  graph:output("loss", loss)
  local gradients = graph:differentiate(loss)
  for name in pairs(case.gradients) do graph:output("gradient of " .. name, gradients[name]) end
  local state = native.state(native.device(device), 0)
  set_weights(state, graph:parameters())
  local executor = native.executor(native.program(graph, { microbatches = 1 }), state)
  local labels, counted = flatten(numbers.labels), 0
  for _, label in ipairs(labels) do counted = counted + (label ~= -100 and 1 or 0) end
  executor:write("inputs", native.tensor(flatten(numbers.inputs), "i32", shape), 1)
  executor:write("labels", native.tensor(labels, "i32", shape), 1)
  executor:write("scale", native.tensor({ 1 / counted }, "f32"))
  executor:run()
  local where = ("top %d on %s"):format(case.top, device)
  local values = { at = function() return executor:number "loss" end }
  compare(where .. ": loss", values, { case.loss }, 1e-6)
  for name, wanted in pairs(case.gradients) do
    local given = flatten { native.op("reshape", { executor:read("gradient of " .. name) }, { shape = { #wanted } })
      :tolist() }
    compare(where .. ": gradient of " .. name, { at = function(_, i) return given[i] end }, wanted, 1e-5)
  end
end

for _, case in ipairs(numbers.cases) do
  for _, device in ipairs { "cpu", "reference" } do check(case, device) end
end
print(("%d numbers compared"):format(compared))
os.exit(0)
