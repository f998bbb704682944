--- `hetrun bench kernels`: single kernels on a device. Attention as a share of the peak of a matrix product, kernels
-- that only move memory as a share of the bandwidth of a copy, both measured in the same process.
local native = require "het.native"
local op = require "het.op"
local peak = require "het.profile.peak"

local kernels = {}

local function bytes_of(dtype) return dtype == "f32" and 4 or 2 end

local function elements_of(shape)
  local total = 1
  for _, size in ipairs(shape) do total = total * size end
  return total
end

-- What attention of [samples, tokens, heads, features] computes; causal, so half of the scores. Its gradient counts as
-- two and a half times that: five products for two, since it computes the scores again. With a window a token sees so
-- many at most; a cap of scores counts nothing.
local function attention(settings, features, options)
  local window, cap = options.window, options.cap
  local tokens, attributes = settings.tokens, { causal = true, window = window, score_cap = cap }
  local shape = { settings.samples, tokens, settings.heads, features }
  local seen = window or tokens
  local flops = 4 * settings.samples * settings.heads * seen * (tokens - seen / 2) * features
  local function operands(graph, names)
    local values = {}
    for i, name in ipairs(names) do values[i] = graph:input(name, settings.dtype, shape, true) end
    return unpack(values)
  end
  local title = ("attention, head %d, %d tokens%s%s"):format(features, tokens,
    window and (", window %d"):format(window) or "", cap and ", capped" or "")
  return {
    { name = title .. ", forward", op = "attention", flops = flops, build = function(graph)
      local q, k, v = operands(graph, { "q", "k", "v" })
      graph:output("y", (op.attention(q, k, v, attributes)))
    end },
    { name = title .. ", backward", op = "attention_gradient", flops = 2.5 * flops, build = function(graph)
      local q, k, v, dy = operands(graph, { "q", "k", "v", "dy" })
      local y, lse = op.attention(q, k, v, attributes)
      for i, gradient in ipairs { op.attention_gradient(dy, q, k, v, y, lse, attributes) } do
        graph:output("gradient" .. i, gradient)
      end
    end },
  }
end

-- Kernels that read and write each number once.
local function streams(settings)
  local dtype, shape = settings.dtype, { settings.rows, settings.width }
  local size = elements_of(shape) * bytes_of(dtype)
  local function x_of(graph, name) return graph:input(name or "x", dtype, shape, true) end
  local function vector(graph, name) return graph:input(name, "f32", { settings.width }, true) end
  return {
    { name = "gelu", bytes = 2 * size, build = function(graph) graph:output("y", op.gelu(x_of(graph))) end },
    { name = "rms_norm", bytes = 2 * size, build = function(graph)
      graph:output("y", (op.rms_norm(x_of(graph), vector(graph, "weight"))))
    end },
    { name = "layer_norm of a sum", op = "layer_norm", bytes = 4 * size, build = function(graph)
      local y, _, _, sum = op.layer_norm(x_of(graph), vector(graph, "weight"), vector(graph, "bias"),
        x_of(graph, "residual"))
      graph:output("y", y)
      graph:output("sum", sum)
    end },
    { name = "softmax", bytes = 2 * size, build = function(graph)
      graph:output("y", op.softmax(x_of(graph), { dim = 1 }))
    end },
    { name = "dropout", bytes = 2 * size, build = function(graph)
      local counter = graph:input("counter", "i64", { 2 }, true)
      graph:output("y", op.dropout(x_of(graph), counter, { p = 0.1, seed = 1, stream = 1 }))
    end },
    { name = "adamw", bytes = 7 * 4 * elements_of(shape), build = function(graph)
      local p, m, v = graph:buffer("p", "f32", shape), graph:buffer("m", "f32", shape), graph:buffer("v", "f32", shape)
      op.adamw(p, m, v, graph:input("gradient", "f32", shape, true), graph:input("lr", "f32", {}, true),
        graph:input("step", "i64", {}, true), graph:input("coefficient", "f32", {}, true))
    end },
  }
end

--- Median of the seconds of a case's kernel over so many runs, after one that does not count.
-- @tparam table case `op` or `name` of the operator that is timed; `build(graph)` adds inputs, buffers and outputs
function kernels.seconds_of(device, case, runs)
  local graph = native.graph()
  local inputs = {}
  local asking = {
    input = function(_, name, dtype, shape, per_step)
      inputs[#inputs + 1] = { name, dtype, shape }
      return graph:input(name, dtype, shape, per_step)
    end,
    output = function(_, ...) return graph:output(...) end,
    buffer = function(_, ...) return graph:buffer(...) end,
  }
  case.build(asking)
  local executor = native.executor(native.program(graph, { microbatches = 1 }), native.state(device, 0))
  for _, input in ipairs(inputs) do
    local name, dtype, shape = input[1], input[2], input[3]
    if dtype == "i64" then executor:write(name, #shape == 0 and 1 or native.tensor({ 1, 0 }, "i64"))
    elseif #shape == 0 then executor:write(name, 1e-4)
    else executor:write(name, native.randn(shape, "f32", 1):to(dtype)) end
  end
  local times = {}
  for run = 0, runs do
    for _, span in ipairs(executor:timings()) do
      if run > 0 and span.op == (case.op or case.name) then times[#times + 1] = span.seconds end
    end
  end
  table.sort(times)
  return times[math.floor((#times + 1) / 2)]
end

--- Measure all; returns the exit code.
-- @tparam table given `precision`, `runs`
function kernels.run(given)
  local device_name = native.settings.device ~= "" and native.settings.device or "cpu"
  local device, gpu = native.device(device_name), peak.is_gpu(device_name)
  local dtype = given.precision or "f32"
  local settings = gpu and { samples = 4, tokens = 4096, heads = 16, rows = 16384, width = 4096 }
    or { samples = 1, tokens = 512, heads = 4, rows = 16384, width = 1024 }
  settings.dtype = dtype
  local flops, bandwidth = device:product_flops(dtype), device:bandwidth()
  local cases, results = {}, {}
  for _, each in ipairs { { 64, {} }, { 128, {} }, { 64, { window = settings.tokens / 8 } }, { 64, { cap = 50 } } } do
    for _, case in ipairs(attention(settings, unpack(each))) do cases[#cases + 1] = case end
  end
  for _, case in ipairs(streams(settings)) do cases[#cases + 1] = case end
  for i, case in ipairs(cases) do
    local seconds = kernels.seconds_of(device, case, given.runs or 5)
    results[i] = { name = case.name, seconds = seconds, tflops = case.flops and case.flops / seconds / 1e12 or nil,
      gb_per_s = case.bytes and case.bytes / seconds / 1e9 or nil,
      share = case.flops and case.flops / seconds / flops or case.bytes / seconds / bandwidth }
    if not native.settings.json then
      native.write("stdout", ("%-52s %9.3f ms  %s\n"):format(case.name, 1e3 * seconds, case.flops
        and ("%8.2f TFLOP/s, %3.0f %% of a matrix product's"):format(results[i].tflops, 100 * results[i].share)
        or ("%8.1f GB/s, %3.0f %% of a copy's"):format(results[i].gb_per_s, 100 * results[i].share)))
    end
  end
  if native.settings.json then
    native.write("stdout", native.json_encode { benchmark = "kernels", device = gpu and device.model or
      native.processor(), precision = dtype, product_gflops = flops / 1e9, copy_gb_per_s = bandwidth / 1e9,
      kernels = results } .. "\n")
  end
  return 0
end

return kernels
