--- Mixtures of experts.
local adapter = require "het.nn.adapter"
local attention = require "het.nn.attention"
local basic = require "het.nn.basic"
local errors = require "het.errors"
local layer = require "het.nn.layer"
local op = require "het.op"
local text = require "het.text"

local experts = {}

local function hidden_of(a) return a.hidden or 4 * a.width end

-- Places that an expert has for the tokens of one sample.
local function places(a, tokens)
  return math.min(tokens, math.ceil(a.capacity * a.top * tokens / a.experts))
end

-- What a token's choices count: of one its probability (Fedus et al. 2021), of more their shares of the sum (Lepikhin
-- et al. 2020).
local function weights(a, chosen)
  local normalised = a.normalised
  if normalised == nil then normalised = a.top > 1 end
  if not normalised then return chosen end
  return op.div(chosen, op.sum(chosen, { dims = { -1 }, keep = true }))
end

-- experts · Σ f · P of each sample, summed over samples: f is the share of the tokens whose first choice an expert is,
-- P its mean probability. It is least, 1 a sample, where all experts have equally many.
local function balance_loss(a, tokens, probabilities, counts)
  local sum = op.sum(op.mul(op.sum(probabilities, { dims = { 1 } }), op.cast(counts, { dtype = "f32" })))
  return op.scale(sum, { factor = a.auxiliary * a.experts / (tokens * tokens) })
end

--- nn.experts { width = , experts = }
experts.experts = layer.define {
  name = "nn.experts",
  sentence = "A mixture of experts in place of nn.mlp (Switch Transformer, Fedus et al. 2021): each token goes to the "
    .. "`top` feed-forward layers that a gate finds most probable for it. A token beyond an expert's capacity "
    .. "gets 0 from it, and a block passes it on by its residual connection.",
  example = "nn.experts { width = 768, experts = 8, top = 2 }",
  fields = {
    { "width", "integer", "features in and out", required = true, min = 1 },
    { "experts", "integer", "feed-forward layers", required = true, min = 1 },
    { "hidden", "integer", "features inside each (default: 4 · width)", min = 1 },
    { "top", "integer", "experts of each token (top-k)", default = 1, min = 1 },
    { "capacity", "number", "capacity factor: tokens of a sample that an expert takes, relative to an even share",
      default = 1.25, above = 0 },
    { "auxiliary", "number", "weight of the auxiliary load-balancing loss, while training", default = 0.01,
      min = 0 },
    { "normalised", "boolean", "the weights of a token's experts add up to 1 (default: where `top` is more than 1)" },
    { "gated", "boolean", "each has a gate as nn.swiglu: down(activation(side(x)) · up(x))", default = false },
    { "activation", "string", "inside", default = "gelu", choices = { "gelu", "gelu_exact", "silu", "relu" } },
    { "shared", "integer", "features inside the shared expert, which all tokens go to; its result is multiplied by "
      .. "sigmoid(shared_gate(x)) (default: none)", min = 1 },
    { "dropout", "number", "of the result, while training", default = 0, min = 0, below = 1 },
  },
  check = function(a, report)
    if a.top > a.experts then
      report("top", ("nn.experts.top = %d is more than experts = %d"):format(a.top, a.experts))
    end
  end,
  show = function(a)
    return ("%d → %d, %s, top %d of %d%s"):format(a.width, hidden_of(a), a.activation, a.top, a.experts,
      a.shared and ", one shared" or "")
  end,
  -- With places for all tokens none depends on the others.
  pointwise = function(a) return a.capacity * a.top >= a.experts end,
  packs = true,   -- examples of a row share the places of the row
  -- Of the experts that a token goes to.
  flops = function(a) return (a.gated and 18 or 12) * a.top * a.width * hidden_of(a) end,
  parameters = function(a)
    local list = {
      { "gate", { a.experts, a.width }, full = true },
      { "up", { a.experts, hidden_of(a), a.width }, stacked = true },
      { "down", { a.experts, a.width, hidden_of(a) }, projection = true, stacked = true },
    }
    if a.gated then list[#list + 1] = { "side", { a.experts, hidden_of(a), a.width }, stacked = true } end
    return list
  end,
  children = function(a)
    if not a.shared then return {} end
    local kind = a.gated and attention.swiglu or attention.mlp
    return {
      { "shared", kind { width = a.width, hidden = a.shared, activation = a.activation, bias = false },
        residual = "inherit" },
      { "shared_gate", basic.linear(a.width, 1, { bias = false }) },
    }
  end,
  forward = function(self, x)
    local a, b = self.arguments, self.builder
    if #x.shape ~= 3 or x.shape[3] ~= a.width then
      errors.usage("nn.experts: x has the shape %s; [samples, tokens, %d] is needed", text.shape(x.shape), a.width)
    end
    local samples, tokens = x.shape[1], x.shape[2]
    local capacity = places(a, tokens)
    local exact = x.dtype == "f32" and x or op.cast(x, { dtype = "f32" })
    local probabilities = op.softmax((op.linear(exact, self.gate)))
    local chosen, expert = op.top_k(probabilities, { k = a.top })
    local slot, counts = op.expert_slots(expert, { experts = a.experts, capacity = capacity })
    if b.mode == "train" and a.auxiliary > 0 then
      b:add_loss(balance_loss(a, tokens, probabilities, counts))
    end
    local y = op.dispatch(x, slot, { experts = a.experts, capacity = capacity })
    y = op.reshape(y, { shape = { a.experts, samples * capacity, a.width } })
    local function times(which, of)
      return adapter.add(self, which, of, (op.matmul(of, self[which], { transpose_b = true })))
    end
    local h = times("up", y)
    if a.gated then
      h = op.mul(attention.activate(a.activation, times("side", y)), h)
    else
      h = attention.activate(a.activation, h)
    end
    y = times("down", h)
    y = op.reshape(y, { shape = { a.experts, samples, capacity, a.width } })
    y = op.combine(y, slot, weights(a, chosen))
    if a.shared then y = op.add(y, op.mul(self.shared(x), op.sigmoid(self.shared_gate(x)))) end
    return b:dropout(y, a.dropout)
  end,
}

return experts
