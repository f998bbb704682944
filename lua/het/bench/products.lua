--- `hetrun bench products`: the matrix products of training, shape by shape. `tests/bench/products.py` sets them beside
-- those of a library.
local native = require "het.native"
local kernels = require "het.bench.kernels"
local op = require "het.op"
local peak = require "het.profile.peak"

local products = {}

-- Linear layers { name, features in, features out, with a bias, with GELU } of models, on so many tokens. A classifier
-- gets the rows of one tile: training never has all logits at once.
local models = {
  { name = "gpt2-124m", rows = 4096, layers = {
    { "qkv", 768, 2304, true }, { "projection", 768, 768, true }, { "up", 768, 3072, true, true },
    { "down", 3072, 768, true }, { "classifier", 768, 50257, rows = 512 },
  } },
  { name = "gpt_text", rows = 768, layers = {
    { "qkv", 128, 384, true }, { "projection", 128, 128, true }, { "up", 128, 512, true, true },
    { "down", 512, 128, true }, { "classifier", 128, 65 },
  } },
  { name = "llama-60m", rows = 2048, layers = {
    { "query", 512, 512 }, { "key", 512, 256 }, { "up", 512, 1376 }, { "down", 1376, 512 },
    { "classifier", 512, 32000, rows = 512 },
  } },
}

-- What a layer multiplies: { kind, op, build }.
local function cases_of(layer, rows, dtype)
  local name, features, out, bias, gelu = unpack(layer)
  rows = layer.rows or rows
  local function x(graph) return graph:input("x", dtype, { rows, features }, true) end
  local function weight(graph) return graph:input("weight", dtype, { out, features }, true) end
  local function dy(graph) return graph:input("dy", dtype, { rows, out }, true) end
  local function forward(attributes)
    return function(graph)
      local b = bias and graph:input("bias", "f32", { out }, true) or false
      graph:output("y", (op.linear(x(graph), weight(graph), b, attributes or {})))
    end
  end
  local cases = {
    { kind = "forward", op = "linear", build = forward() },
    { kind = "input gradient", op = "linear_input_gradient", build = function(graph)
      graph:output("dx", (op.linear_input_gradient(dy(graph), weight(graph))))
    end },
    { kind = "weight gradient", op = "linear_weight_gradient", build = function(graph)
      graph:output("dweight", (op.linear_weight_gradient(dy(graph), x(graph))))
    end },
  }
  if gelu then
    cases[#cases + 1] = { kind = "forward, gelu", op = "linear", build = forward { activation = "gelu" } }
  end
  for _, case in ipairs(cases) do
    case.layer, case.rows, case.features, case.out, case.bias = name, rows, features, out, bias or false
  end
  return cases
end

--- Measure all; returns the exit code.
-- @tparam table given `precision`, `steps` (times that each is run; default: for a fifth of a second, at least 5)
function products.run(given)
  local dtype = given.precision or "f32"
  local name = peak.device_of(native.settings.device ~= "" and native.settings.device or "cpu")
  local device, results = native.device(name), {}
  for _, model in ipairs(models) do
    for _, layer in ipairs(model.layers) do
      for _, case in ipairs(cases_of(layer, model.rows, dtype)) do
        local flops = 2 * case.rows * case.features * case.out
        local runs = given.steps or math.max(5, math.min(400, math.floor(4e10 / flops)))
        local seconds = kernels.seconds_of(device, case, runs)
        results[#results + 1] = { model = model.name, layer = case.layer, kind = case.kind, rows = case.rows,
          features = case.features, out = case.out, bias = case.bias, seconds = seconds,
          gflops = flops / seconds / 1e9 }
        if not native.settings.json then
          native.write("stdout", ("%-10s %-11s %-16s %5d x %5d x %5d  %9.3f ms %8.1f GFLOP/s\n"):format(model.name,
            case.layer, case.kind, case.rows, case.features, case.out, 1e3 * seconds, flops / seconds / 1e9))
        end
      end
    end
  end
  if native.settings.json then
    native.write("stdout", native.json_encode { benchmark = "products", precision = dtype, device = device.model,
      processor = peak.is_gpu(name) and device.model or native.processor(), threads = native.threads(),
      products = results } .. "\n")
  end
  return 0
end

return products
