--- Layers of one operator, and the containers.
local adapter = require "het.nn.adapter"
local layer = require "het.nn.layer"
local op = require "het.op"
local text = require "het.text"

local basic = {}

-- Parts of a weight are whole numbers of rows, and all of them together.
local function check_parts(a, report)
  if not a.parts then return end
  if #a.parts == 0 then return report("parts", "nn.linear.parts is a list of rows: { 512, 128, 128 }") end
  local sum = 0
  for i, rows in ipairs(a.parts) do
    if type(rows) ~= "number" or rows < 1 or rows % 1 ~= 0 then
      return report("parts", ("nn.linear.parts: item %d is %s; a whole number of rows is needed"):format(i,
        text.value(rows)))
    end
    sum = sum + rows
  end
  if sum ~= a.outputs then
    report("parts", ("nn.linear.parts = { %s } are %d rows; outputs = %d"):format(table.concat(a.parts, ", "), sum,
      a.outputs))
  end
end

--- nn.linear(inputs, outputs)
basic.linear = layer.define {
  name = "nn.linear",
  sentence = "y = x Wᵀ + b, on the last dimension.",
  example = "nn.linear(768, 3072)",
  positional = 2,
  fields = {
    { "inputs", "integer", "features that come in", required = true, min = 1 },
    { "outputs", "integer", "features that go out", required = true, min = 1 },
    { "bias", "boolean", "add a bias", default = true },
    { "deviation", "number", "standard deviation of the first weights (default: the model's, or 1/√inputs)",
      above = 0 },
    { "parts", "list", "rows of each matrix in the weight, as { 512, 128, 128 } of queries, keys and values "
      .. "(default: one)" },
  },
  check = check_parts,
  pointwise = true,
  show = function(a) return ("%d → %d%s"):format(a.inputs, a.outputs, a.bias and "" or ", no bias") end,
  parameters = function(a)
    local list = { { "weight", { a.outputs, a.inputs }, projection = true, deviation = a.deviation, parts = a.parts } }
    if a.bias then list[2] = { "bias", { a.outputs } } end
    return list
  end,
  forward = function(self, x)
    return adapter.add(self, "", x, (op.linear(x, self.weight, self.arguments.bias and self.bias)))
  end,
}

--- nn.layer_norm(width)
basic.layer_norm = layer.define {
  name = "nn.layer_norm",
  sentence = "Layer normalisation of the last dimension (Ba et al. 2016), statistics in f32.",
  example = "nn.layer_norm(768)",
  positional = 1,
  fields = {
    { "width", "integer", "features", required = true, min = 1 },
    { "bias", "boolean", "add a bias", default = true },
    { "eps", "number", "added to the variance", default = 1e-5, above = 0 },
  },
  pointwise = true,
  show = function(a) return tostring(a.width) end,
  parameters = function(a)
    local list = { { "weight", { a.width }, init = "ones" } }
    if a.bias then list[2] = { "bias", { a.width } } end
    return list
  end,
  forward = function(self, x)
    return (op.layer_norm(x, self.weight, self.arguments.bias and self.bias, { eps = self.arguments.eps }))
  end,
}

--- nn.rms_norm(width)
basic.rms_norm = layer.define {
  name = "nn.rms_norm",
  sentence = "Division by the root of the mean square (Zhang and Sennrich 2019), statistics in f32.",
  example = "nn.rms_norm(768)",
  positional = 1,
  fields = {
    { "width", "integer", "features", required = true, min = 1 },
    { "eps", "number", "added to the mean square", default = 1e-5, above = 0 },
    { "offset", "number", "added to the weights; with 1 they begin at 0 (Gemma)", default = 0, choices = { 0, 1 } },
  },
  pointwise = true,
  show = function(a) return tostring(a.width) .. (a.offset ~= 0 and ", 1 + weight" or "") end,
  parameters = function(a) return { { "weight", { a.width }, init = a.offset == 1 and "zeros" or "ones" } } end,
  forward = function(self, x)
    local a = self.arguments
    local weight = a.offset == 0 and self.weight or op.shift(self.weight, { amount = a.offset })
    return (op.rms_norm(x, weight, { eps = a.eps }))
  end,
}

--- nn.gelu()
basic.gelu = layer.define {
  name = "nn.gelu",
  sentence = "The Gaussian error linear unit.",
  fields = { { "approximate", "string", "tanh (GPT-2's) or none (exact)", default = "tanh",
               choices = { "tanh", "none" } } },
  pointwise = true,
  show = function(a) return a.approximate == "none" and "exact" or "" end,
  forward = function(self, x) return op.gelu(x, { approximate = self.arguments.approximate }) end,
}

local function activation(name, sentence)
  basic[name] = layer.define {
    name = "nn." .. name, sentence = sentence, pointwise = true,
    forward = function(_, x) return op[name](x) end,
  }
end
activation("silu", "x · sigmoid(x).")
activation("relu", "max(x, 0).")
activation("tanh", "The hyperbolic tangent.")

--- nn.dropout(probability)
basic.dropout = layer.define {
  name = "nn.dropout",
  sentence = "While training, sets elements to 0 with a probability and scales up the rest; otherwise nothing.",
  example = "nn.dropout(0.1)",
  positional = 1,
  fields = { { "probability", "number", "of an element to be dropped", required = true, min = 0, below = 1 } },
  pointwise = true,
  show = function(a) return text.value(a.probability) end,
  forward = function(self, x) return self.builder:dropout(x, self.arguments.probability) end,
}

--- nn.embedding(vocab, width)
basic.embedding = layer.define {
  name = "nn.embedding",
  sentence = "A table of vectors: token ids become their rows.",
  example = "nn.embedding(50257, 768)",
  positional = 2,
  fields = {
    { "vocab", "integer", "number of different tokens", required = true, min = 1 },
    { "width", "integer", "features of a row", required = true, min = 1 },
    { "deviation", "number", "standard deviation of the first weights", default = 0.02, above = 0 },
  },
  pointwise = true,
  show = function(a) return ("%d × %d"):format(a.vocab, a.width) end,
  parameters = function(a) return { { "weight", { a.vocab, a.width }, deviation = a.deviation, lookup = true } } end,
  forward = function(self, ids) return op.embedding(ids, self.weight) end,
}

--- nn.flatten()
basic.flatten = layer.define {
  name = "nn.flatten",
  sentence = "[samples, ...] becomes [samples, features].",
  forward = function(_, x)
    local features = 1
    for i = 2, #x.shape do features = features * x.shape[i] end
    return op.reshape(x, { shape = { x.shape[1], features } })
  end,
}

-- The containers' children; the last one's result goes where the container's goes.
local function children_of(list, residual)
  local children = layer.named(list)
  if #children > 0 then children[#children].residual = residual end
  return children
end

--- nn.sequential { layer, ... }
basic.sequential = layer.define {
  name = "nn.sequential",
  sentence = "One layer after the other.",
  example = "nn.sequential { nn.linear(64, 256), nn.gelu(), nn.linear(256, 64) }",
  list = { "layer", "layers", least = 1 },
  pointwise = true,
  children = function(a) return children_of(a, "inherit") end,
  forward = function(self, x)
    for _, child in ipairs(self.children) do x = child(x) end
    return x
  end,
}

--- nn.residual { layer, ... }
basic.residual = layer.define {
  name = "nn.residual",
  sentence = "x + the layers' result on x: the layers in a row, their result added to what came in.",
  example = "nn.residual { nn.layer_norm(64), nn.attention { width = 64, heads = 4 } }",
  list = { "layer", "layers", least = 1 },
  pointwise = true,
  children = function(a) return children_of(a, true) end,
  forward = function(self, x)
    local y = x
    for _, child in ipairs(self.children) do y = child(y) end
    return op.add(x, y)
  end,
}

return basic
