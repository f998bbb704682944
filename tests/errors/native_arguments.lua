-- What the engine's functions say to arguments that make no sense; --trust, since recipes do not reach them all.
local native = require "het.native"

local function try(what, f, ...)
  local done, problem = pcall(f, ...)
  local kind = type(problem) == "table" and problem.kind or "-"
  io.stderr:write(what, ": ", done and "done" or kind .. ": " .. tostring(problem), "\n")
end

local graph = native.graph()
local x = graph:input("x", "f32", { 2, 2 })
local w = graph:parameter("w", "f32", { 2, 2 }, { kind = "zeros" })
graph:output("y", native.op("linear", { x, w }))
local state = native.state(native.device "cpu", 1)
local program = native.program(graph, { microbatches = 1 })
local executor = native.executor(program, state)
local t = native.tensor { { 1, 2 }, { 3, 4 } }

try("a number for an int", native.threads, 1e15)
try("a number for an int", native.threads, 0 / 0)
try("a fraction", native.arange, 2.5)
try("NaN", native.arange, 0 / 0)
try("an index", t.at, t, 1e300, 1)
try("negative size", native.full, { -1 }, 0)
try("a product of sizes", native.full, { 2 ^ 31, 2 ^ 31, 2 ^ 31 }, 0)
try("more than the memory", native.full, { 2 ^ 20, 2 ^ 20 }, 0)
try("rows of nothing", native.full, { 2 ^ 40, 0 }, 0)
try("a hidden product", native.full, { 0, 2 ^ 40, 2 ^ 40 }, 0)
try("sizes that are none", native.full, { 1, "2" }, 0)
try("a shape with a hole", native.full, { 1, false, 3 }, 0)
local dimensions = {}
for i = 1, 100 do dimensions[i] = 1 end
try("dimensions", native.full, dimensions, 0)
local itself = {}
itself[1] = itself
try("a list in itself", native.tensor, itself)
try("a list in itself", native.json_encode, itself)
local many = { 1 }
for _ = 1, 45 do many = { many, many } end
try("a list many times over", native.tensor, many)
try("a table many times over", native.json_encode, many)
try("lines with a width", function() io.stderr:write(native.json_encode({ 1 }, 2 ^ 31 - 1):gsub("\n", "/"), "; ") end)
try("a seed", native.randn, { 1 }, "f32", 1e300)
try("conversion", function()
  io.stderr:write(table.concat(native.tensor({ 1e30, 0 / 0, -1e30 }, "i32"):tolist(), " "), "; ")
end)
local open = native.graph()   -- no program was made of it
try("pop_scope", open.pop_scope, open)
try("another self", graph.pop_scope, state)
try("no self", executor.run)
try("a hole in operands", native.op, "add_n", { open:input("x", "f32", { 2, 2 }), false })
try("operands", native.op, "add", { x, 5 })
try("a value of another graph", native.graph().output, native.graph(), "z", x)
try("micro-batches", native.program, graph, { microbatches = 2 ^ 31 - 1 })
try("an output that is a parameter", function()
  local g = native.graph()
  g:output("y", g:parameter("w", "f32", { 1 }))
  native.program(g)
end)
try("a graph without parameters", native.model, native.graph(), { tokens = 8 })
try("devices of a plan", native.program, graph, { plan = { pipelines = { { stages = { { devices = { {} } } } } } } })
try("layers of a plan", native.program, graph,
  { plan = { pipelines = { { stages = { { devices = { "a" }, layers = 2 ^ 31 - 1 } } } } } })
try("draw", native.draw, native.tensor {}, 1, nil, 1, 0)
try("draw", native.draw, native.tensor { 1, 2 }, 1, -1, 1, 0)
try("draw", native.draw, native.tensor { 1, 2 }, 0 / 0, nil, 1, 0)
try("draw", native.draw, native.tensor { 1, 2 }, 1, nil, 1, 0, 0)
try("shuffled_rows", native.shuffled_rows, t, 0, 1, 0, 1)
try("shuffled_rows", native.shuffled_rows, t, 2, 1, -1, 1)
try("shuffled_rows", native.shuffled_rows, native.tensor(1), 1, 1, 0, 1)
try("save_files", native.save_files, { {} })
try("messages", native.messages_here, { -1 }, 1)
try("messages", native.messages_here, { 1 }, 0)
try("a split of many", native.op, "split", { native.full({ 5000 }, 0) },
  { dim = 0, sizes = native.full({ 5000 }, 1):tolist() })
try("a device's pace", native.device, "cpu", { flops = 0 / 0 })
try("inputs without names", native.measure, graph, graph, native.device "cpu", { inputs = { t } })

executor:write("x", t, 1)
executor:run()
state:drop "w"
try("dropped state", executor.run, executor)
state:write("w", native.full({ 3 }, 0))
try("state of another type", native.executor, program, state)
local metatable = debug.getmetatable(executor)
metatable.__gc(executor)
metatable.__gc(executor)
try("destroyed", metatable.methods.run, executor)
os.exit(0)
