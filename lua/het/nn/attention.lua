--- Attention and the feed-forward layers of transformers.
local adapter = require "het.nn.adapter"
local errors = require "het.errors"
local basic = require "het.nn.basic"
local layer = require "het.nn.layer"
local rope = require "het.nn.rope"
local op = require "het.op"
local suggest = require "het.language.suggest"
local text = require "het.text"

local attention = {}

local function head_size(a) return a.head_size or a.width / a.heads end
local function kv_heads(a) return a.kv_heads or a.heads end
local function turned_size(a) return math.floor(head_size(a) * (a.rotary_share or 1)) end

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
  elseif a.rotary and (turned_size(a) < 2 or turned_size(a) % 2 == 1) then
    report("rotary_share", ("%s: rotary_share = %.14g of a head of %d features are %d, which are no pairs"):format(name,
      a.rotary_share, head_size(a), turned_size(a)))
  elseif a.scaling then
    local problem = rope.problem(a.scaling)
    if problem then report("scaling", ("%s.scaling: %s"):format(name, problem)) end
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
  return (op.attention_cached(q, k, v, keys, values, position,
    { scale = a.score_scale, score_cap = a.score_cap, window = a.window }))
end

-- x[samples, tokens, heads, d] with rotary positions: its first turned_size(a) features of each head.
local function turned(self, x)
  local a = self.arguments
  local size, whole = turned_size(a), head_size(a)
  local base, attributes, factor = a.rotary == true and 10000 or a.rotary, nil, 1
  if a.scaling then
    local frequencies
    frequencies, factor = rope.frequencies(base, size, a.scaling, a.context or 0,
      self.builder.sequence or x.shape[2])
    if frequencies then attributes = { frequencies = frequencies } end
  end
  local positions = self.builder:positions(x.shape[2])
  local part = size == whole and x or op.slice(x, { dim = -1, start = 0, length = size })
  part = op.rotary(part, positions, attributes or { base = base })
  if factor ~= 1 then part = op.scale(part, { factor = factor }) end
  if size == whole then return part end
  return (op.concat(part, op.slice(x, { dim = -1, start = size, length = whole - size }), { dim = -1 }))
end

-- Attention that sees no key whose mask is 0.
local function masked(self, q, k, v, mask)
  local b, a = self.builder, self.arguments
  if a.score_cap then errors.usage "nn.attention: score_cap does not work with a mask" end
  if b.cache and a.causal then
    errors.usage("nn.attention: a mask does not work with the cache of keys and values that text is generated with; "
      .. "without `pointwise = true` an nn.layer generates text without a cache")
  end
  if b:starts(q.shape[1], q.shape[2]) then
    errors.usage "nn.attention: a mask does not work with packing = true"
  end
  return op.masked_attention(q, k, v, mask, { causal = a.causal, scale = a.score_scale, window = a.window })
end

-- Keys that a token sees, on average over a row.
local function keys_seen(a, context)
  if not a.causal then return context end
  local window = math.min(a.window or context, context)
  return window * (1 - window / (2 * math.max(context, 1)))
end

--- nn.attention { width = , heads = }
attention.attention = layer.define {
  name = "nn.attention",
  sentence = "Multi-head self-attention (Vaswani et al. 2017), in tiles: memory is linear in the sequence length. The "
    .. "forward of an nn.layer may give it a mask, too: self.attention(x, mask), [samples, tokens], 0 where no token "
    .. "attends (op.masked_attention).",
  example = "nn.attention { width = 768, heads = 12, causal = true }",
  fields = {
    { "width", "integer", "features in and out", required = true, min = 1 },
    { "heads", "integer", "number of attention heads", required = true, min = 1 },
    { "kv_heads", "integer", "key and value heads, each shared by heads / kv_heads query heads (default: heads)",
      min = 1 },
    { "head_size", "integer", "features of a head (default: width / heads)", min = 1 },
    { "causal", "boolean", "each token attends to itself and earlier tokens only", default = true },
    { "bias", "boolean", "biases in the projections", default = true },
    { "out_bias", "boolean", "a bias in the projection of the result (default: as `bias`)" },
    { "rotary", "number|boolean", "rotary positions (Su et al. 2021), true or their base (true: 10000)" },
    { "rotary_share", "number", "of each head's features, the first ones, that rotary positions turn", default = 1,
      above = 0, max = 1 },
    { "scaling", "table", "rotary positions for longer contexts, as rope_scaling of a config.json: rope_type "
      .. '("linear", "llama3", "yarn", "longrope", "dynamic") and the numbers of this type' },
    { "context", "integer", "tokens that the model sees at once, for longrope", min = 1 },
    { "qk_norm", "string", 'RMS norms of queries and keys: "head" (each head alone) or "width" (all together)',
      default = "none", choices = { "none", "head", "width" } },
    { "norm_offset", "number", "added to the weights of these norms", default = 0, choices = { 0, 1 } },
    { "eps", "number", "of these norms", default = 1e-5, above = 0 },
    { "score_scale", "number", "what scores are multiplied by (default: 1 / √head_size)", above = 0 },
    { "score_cap", "number", "scores are cap · tanh(score / cap) (soft-capping)", min = 1e-3, max = 1e4 },
    { "window", "integer", "a token sees this many tokens: itself and those just before it (default: all)", min = 1 },
    { "dropout", "number", "of the result, while training", default = 0, min = 0, below = 1 },
  },
  check = function(a, report)
    attention.check_heads(a, report, "nn.attention")
    if not a.causal and a.window then report("window", "nn.attention.window needs causal = true") end
  end,
  pointwise = true,   -- it knows the cache
  packs = function(a) return a.causal end,
  show = function(a)
    return ("%d in %s%s%s%s%s%s%s"):format(a.width, text.plural(a.heads, "head"),
      kv_heads(a) ~= a.heads and (" (%d of keys)"):format(kv_heads(a)) or "",
      a.causal and ", causal" or "", a.rotary and ", rotary" or "",
      a.qk_norm ~= "none" and ", normed queries and keys" or "",
      a.window and (", window %d"):format(a.window) or "", a.score_cap and ", capped scores" or "")
  end,
  flops = function(a, context) return 12 * keys_seen(a, context) * a.heads * head_size(a) end,
  children = function(a)
    local d, out_bias = head_size(a), a.out_bias
    if out_bias == nil then out_bias = a.bias end
    local list = {
      { "qkv", basic.linear(a.width, (a.heads + 2 * kv_heads(a)) * d,
        { bias = a.bias, parts = { a.heads * d, kv_heads(a) * d, kv_heads(a) * d } }) },
      { "out", basic.linear(a.heads * d, a.width, { bias = out_bias }), residual = "inherit" },
    }
    if a.qk_norm ~= "none" then
      for _, norm in ipairs { { "q_norm", a.heads }, { "k_norm", kv_heads(a) } } do
        local width = a.qk_norm == "head" and d or norm[2] * d
        list[#list + 1] = { norm[1], basic.rms_norm(width, { eps = a.eps, offset = a.norm_offset }) }
      end
    end
    return list
  end,
  takes_mask = true,
  forward = function(self, x, mask)
    local a = self.arguments
    local samples, tokens, d = x.shape[1], x.shape[2], head_size(a)
    local hq, hk = a.heads, kv_heads(a)
    local q, k, v = op.split(self.qkv(x), { dim = -1, sizes = { hq * d, hk * d, hk * d } })
    q, k, v = adapter.add(self, "q", x, q), adapter.add(self, "k", x, k), adapter.add(self, "v", x, v)
    if a.qk_norm == "width" then q, k = self.q_norm(q), self.k_norm(k) end
    q = op.reshape(q, { shape = { samples, tokens, hq, d } })
    k = op.reshape(k, { shape = { samples, tokens, hk, d } })
    v = op.reshape(v, { shape = { samples, tokens, hk, d } })
    if a.qk_norm == "head" then q, k = self.q_norm(q), self.k_norm(k) end
    if a.rotary then q, k = turned(self, q), turned(self, k) end
    local y
    if mask ~= nil then y = masked(self, q, k, v, mask)
    elseif self.builder.cache and a.causal then y = cached(self, q, k, v)
    else
      local starts = self.builder:starts(samples, tokens)
      local attributes = { causal = a.causal, scale = a.score_scale, score_cap = a.score_cap, window = a.window }
      y = (starts and op.attention(q, k, v, starts, attributes) or op.attention(q, k, v, attributes))
    end
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
    { "activation", "string", "of the gate", default = "silu", choices = { "gelu", "gelu_exact", "silu", "relu" } },
    { "bias", "boolean", "biases", default = false },
  },
  pointwise = true,
  show = function(a)
    return ("%d → %d%s"):format(a.width, a.hidden or attention.swiglu_hidden(a.width),
      a.activation ~= "silu" and ", " .. a.activation or "")
  end,
  children = function(a)
    local hidden = a.hidden or attention.swiglu_hidden(a.width)
    return {
      { "gate", basic.linear(a.width, hidden, { bias = a.bias }) },
      { "up", basic.linear(a.width, hidden, { bias = a.bias }) },
      { "down", basic.linear(hidden, a.width, { bias = a.bias }), residual = "inherit" },
    }
  end,
  forward = function(self, x)
    return self.down(op.mul(attention.activate(self.arguments.activation, self.gate(x)), self.up(x)))
  end,
}

--- Hidden features that give SwiGLU as many parameters as an MLP of 4 · width, in multiples of 32.
function attention.swiglu_hidden(width) return math.ceil(width * 8 / 3 / 32) * 32 end

return attention
