--- Attention and the feed-forward layers of transformers.
local basic = require "het.nn.basic"
local layer = require "het.nn.layer"
local op = require "het.op"
local suggest = require "het.language.suggest"

local attention = {}

local function head_size(a) return a.head_size or a.width / a.heads end
local function kv_heads(a) return a.kv_heads or a.heads end

--- Rules between the numbers of heads and the width, shared with the models.
function attention.check_heads(a, report, name)
  if not a.head_size and a.width % a.heads ~= 0 then
    report("heads", ("%s.heads = %d does not divide width = %d; nearest that do: %s"):format(
      name, a.heads, a.width, suggest.divisors(a.width, a.heads)))
  elseif a.kv_heads and a.heads % a.kv_heads ~= 0 then
    report("kv_heads", ("%s.kv_heads = %d does not divide heads = %d; nearest that do: %s"):format(
      name, a.kv_heads, a.heads, suggest.divisors(a.heads, a.kv_heads)))
  elseif a.rotary and head_size(a) % 2 == 1 then
    report("heads", ("%s: rotary positions turn pairs of features, and heads of width / heads = %d have an odd one")
      :format(name, head_size(a)))
  end
end

-- Keys and values of the past, while generating.
local function cached(self, q, k, v)
  local b, a, cache = self.builder, self.arguments, self.builder.cache
  local shape = { q.shape[1], cache.length, kv_heads(a), head_size(a) }
  local path = b:path()
  local keys = b.graph:buffer("cache." .. path .. ".keys", q.dtype, shape)
  local values = b.graph:buffer("cache." .. path .. ".values", q.dtype, shape)
  local position = b:input("position", "i32", { 1 }, true)
  return (op.attention_cached(q, k, v, keys, values, position))
end

--- nn.attention { width = , heads = }
attention.attention = layer.define {
  name = "nn.attention",
  sentence = "Multi-head self-attention (Vaswani et al. 2017), tiled, so that memory is linear in the context.",
  example = "nn.attention { width = 768, heads = 12, causal = true }",
  fields = {
    { "width", "integer", "features in and out", required = true, min = 1 },
    { "heads", "integer", "heads; they share the width out", required = true, min = 1 },
    { "kv_heads", "integer", "key and value heads, each serving heads / kv_heads queries (default: heads)", min = 1 },
    { "head_size", "integer", "features of a head (default: width / heads)", min = 1 },
    { "causal", "boolean", "tokens see only those before them", default = true },
    { "bias", "boolean", "biases in the projections", default = true },
    { "rotary", "number|boolean", "rotary positions (Su et al. 2021), true or their base (true: 10000)" },
    { "dropout", "number", "of the result, while training", default = 0, min = 0, below = 1 },
  },
  check = function(a, report) attention.check_heads(a, report, "nn.attention") end,
  pointwise = true,   -- it knows the cache
  show = function(a)
    return ("%d in %d heads%s%s%s"):format(a.width, a.heads,
      kv_heads(a) ~= a.heads and (" (%d of keys)"):format(kv_heads(a)) or "",
      a.causal and ", causal" or "", a.rotary and ", rotary" or "")
  end,
  flops = function(a, context) return 12 * context * a.heads * head_size(a) * (a.causal and 0.5 or 1) end,
  children = function(a)
    local d = head_size(a)
    return {
      { "qkv", basic.linear(a.width, (a.heads + 2 * kv_heads(a)) * d, { bias = a.bias }) },
      { "out", basic.linear(a.heads * d, a.width, { bias = a.bias }), residual = "inherit" },
    }
  end,
  forward = function(self, x)
    local a = self.arguments
    local samples, tokens, d = x.shape[1], x.shape[2], head_size(a)
    local hq, hk = a.heads, kv_heads(a)
    local q, k, v = op.split(self.qkv(x), { dim = -1, sizes = { hq * d, hk * d, hk * d } })
    q = op.reshape(q, { shape = { samples, tokens, hq, d } })
    k = op.reshape(k, { shape = { samples, tokens, hk, d } })
    v = op.reshape(v, { shape = { samples, tokens, hk, d } })
    if a.rotary then
      local turn = { base = a.rotary == true and 10000 or a.rotary }
      local positions = self.builder:positions(tokens)
      q, k = op.rotary(q, positions, turn), op.rotary(k, positions, turn)
    end
    local y
    if self.builder.cache and a.causal then y = cached(self, q, k, v)
    else y = (op.attention(q, k, v, { causal = a.causal })) end
    y = self.out(op.reshape(y, { shape = { samples, tokens, hq * d } }))
    return self.builder:dropout(y, a.dropout)
  end,
}

--- What stands between the two products of a feed-forward layer: "gelu" (by tanh), "gelu_exact", "silu" or "relu".
function attention.activate(name, x)
  if name == "gelu" then return op.gelu(x) end
  if name == "gelu_exact" then return op.gelu(x, { approximate = "none" }) end
  return op[name](x)
end

--- nn.mlp { width = , hidden = }
attention.mlp = layer.define {
  name = "nn.mlp",
  sentence = "The feed-forward layer: width → hidden, an activation, hidden → width.",
  example = "nn.mlp { width = 768, hidden = 3072 }",
  fields = {
    { "width", "integer", "features in and out", required = true, min = 1 },
    { "hidden", "integer", "features between (default: 4 · width)", min = 1 },
    { "activation", "string", "between the two", default = "gelu",
      choices = { "gelu", "gelu_exact", "silu", "relu" } },
    { "bias", "boolean", "biases", default = true },
    { "dropout", "number", "of the result, while training", default = 0, min = 0, below = 1 },
  },
  pointwise = true,
  show = function(a) return ("%d → %d, %s"):format(a.width, a.hidden or 4 * a.width, a.activation) end,
  children = function(a)
    local hidden = a.hidden or 4 * a.width
    return {
      { "up", basic.linear(a.width, hidden, { bias = a.bias }) },
      { "down", basic.linear(hidden, a.width, { bias = a.bias }), residual = "inherit" },
    }
  end,
  forward = function(self, x)
    local a = self.arguments
    return self.builder:dropout(self.down(attention.activate(a.activation, self.up(x))), a.dropout)
  end,
}

--- nn.swiglu { width = , hidden = }
attention.swiglu = layer.define {
  name = "nn.swiglu",
  sentence = "LLaMA's feed-forward layer (Shazeer 2020): down(silu(gate(x)) · up(x)).",
  example = "nn.swiglu { width = 512, hidden = 1376 }",
  fields = {
    { "width", "integer", "features in and out", required = true, min = 1 },
    { "hidden", "integer", "features between (default: 8/3 · width, rounded up to a multiple of 32)", min = 1 },
    { "bias", "boolean", "biases", default = false },
  },
  pointwise = true,
  show = function(a) return ("%d → %d"):format(a.width, a.hidden or attention.swiglu_hidden(a.width)) end,
  children = function(a)
    local hidden = a.hidden or attention.swiglu_hidden(a.width)
    return {
      { "gate", basic.linear(a.width, hidden, { bias = a.bias }) },
      { "up", basic.linear(a.width, hidden, { bias = a.bias }) },
      { "down", basic.linear(hidden, a.width, { bias = a.bias }), residual = "inherit" },
    }
  end,
  forward = function(self, x) return self.down(op.mul(op.silu(self.gate(x)), self.up(x))) end,
}

--- Hidden features that give SwiGLU as many parameters as an MLP of 4 · width, in multiples of 32.
function attention.swiglu_hidden(width) return math.ceil(width * 8 / 3 / 32) * 32 end

return attention
