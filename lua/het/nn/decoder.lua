--- The decoder-only language models that people publish: one block with the differences between them as arguments, and
-- one model, whose family (lua/het/families) chooses them.
local attention = require "het.nn.attention"
local basic = require "het.nn.basic"
local common = require "het.families.common"
local experts = require "het.nn.experts"
local families = require "het.families"
local language = require "het.nn.language"
local layer = require "het.nn.layer"
local op = require "het.op"
local text = require "het.text"

local decoder = {}

local activations = { "gelu", "gelu_exact", "silu", "relu" }
local norms = { "rms", "rms_offset", "layer" }
local orders = { "before", "after", "both", "parallel" }

local function norm_of(a)
  if a.norm == "layer" then return basic.layer_norm(a.width, { eps = a.eps }) end
  return basic.rms_norm(a.width, { eps = a.eps, offset = a.norm == "rms_offset" and 1 or 0 })
end

-- x + y, y times the block's residual_scale.
local function added(self, x, y)
  local scale = self.arguments.residual_scale
  return op.add(x, scale ~= 1 and op.scale(y, { factor = scale }) or y)
end

-- x with what attention and the feed-forward layer add, by where the norms are.
local forwards = {}

function forwards.before(self, x)
  x = added(self, x, self.attention(self.attention_norm(x)))
  return added(self, x, self.mlp(self.mlp_norm(x)))
end

function forwards.after(self, x)
  x = added(self, x, self.attention_norm(self.attention(x)))
  return added(self, x, self.mlp_norm(self.mlp(x)))
end

function forwards.both(self, x)
  x = added(self, x, self.attention_post_norm(self.attention(self.attention_norm(x))))
  return added(self, x, self.mlp_post_norm(self.mlp(self.mlp_norm(x))))
end

function forwards.parallel(self, x)
  local y = self.attention(self.attention_norm(x))
  return added(self, added(self, x, y), self.mlp(self.mlp_norm(x)))
end

local block_fields = {
  { "width", "integer", "features", required = true, min = 1 },
  { "heads", "integer", "attention heads", required = true, min = 1 },
  { "kv_heads", "integer", "key and value heads (default: heads)", min = 1 },
  { "head_size", "integer", "features of a head (default: width / heads)", min = 1 },
  { "hidden", "integer", "features inside the feed-forward layer (default: 8/3 · width with a gate, else 4 · width)",
    min = 1 },
  { "gated", "boolean", "the feed-forward layer has a gate, as nn.swiglu", default = true },
  { "activation", "string", "of the feed-forward layer", default = "silu", choices = activations },
  { "bias", "boolean", "biases of queries, keys and values", default = false },
  { "out_bias", "boolean", "a bias of attention's result (default: as `bias`)" },
  { "mlp_bias", "boolean", "biases of the feed-forward layer", default = false },
  { "norm", "string", "rms, rms_offset (times 1 + weight) or layer", default = "rms", choices = norms },
  { "order", "string", "norms before attention and the feed-forward layer, after them, both, or before the two side by "
    .. "side", default = "before", choices = orders },
  { "qk_norm", "string", "norms of queries and keys, as nn.attention has them", default = "none",
    choices = { "none", "head", "width" } },
  { "rotary", "number", "base of the rotary positions", default = 10000, above = 1 },
  { "rotary_share", "number", "of each head's features that they turn", default = 1, above = 0, max = 1 },
  { "scaling", "table", "rotary positions for longer contexts, as nn.attention has it" },
  { "context", "integer", "tokens that the model sees at once, for longrope", min = 1 },
  { "score_scale", "number", "what scores are multiplied by (default: 1 / √head_size)", above = 0 },
  { "score_cap", "number", "scores are cap · tanh(score / cap)", min = 1e-3, max = 1e4 },
  { "window", "integer", "a token sees this many tokens: itself and those just before it (default: all)", min = 1 },
  { "residual_scale", "number", "what attention and the feed-forward layer add is multiplied by", default = 1,
    above = 0 },
  { "positions", "boolean", "rotary positions of queries and keys", default = true },
  { "eps", "number", "of the norms", default = 1e-5, above = 0 },
  { "mlp", "layer", "in place of the feed-forward layer, such as nn.experts" },
}

--- nn.decoder_block { width = , heads = }
decoder.decoder_block = layer.define {
  name = "nn.decoder_block",
  sentence = "A block of a decoder-only model, with what differs among LLaMA, Qwen, OLMo, Gemma, Granite, Phi and "
    .. "Pythia as arguments.",
  example = 'nn.decoder_block { width = 512, heads = 8, kv_heads = 2, qk_norm = "head" }',
  fields = block_fields,
  check = function(a, report) attention.check_heads(a, report, "nn.decoder_block") end,
  pointwise = true,
  show = function(a) return ("%d, %s norms%s"):format(a.width, a.norm, a.order == "parallel" and ", parallel"
    or a.order == "before" and "" or " " .. a.order) end,
  children = function(a)
    local mlp = a.mlp or (a.gated and attention.swiglu or attention.mlp) { width = a.width, hidden = a.hidden,
      activation = a.activation, bias = a.mlp_bias }
    local residual = a.order == "before" or a.order == "parallel" or nil   -- else a norm stands between
    local list = {
      { "attention_norm", norm_of(a) },
      { "attention", attention.attention { width = a.width, heads = a.heads, kv_heads = a.kv_heads,
        head_size = a.head_size, bias = a.bias, out_bias = a.out_bias, rotary = a.positions and a.rotary,
        rotary_share = a.rotary_share, scaling = a.scaling, context = a.context, qk_norm = a.qk_norm,
        norm_offset = a.norm == "rms_offset" and 1 or 0, eps = a.eps, score_scale = a.score_scale,
        score_cap = a.score_cap, window = a.window }, residual = residual },
      { "mlp_norm", norm_of(a) },
      { "mlp", mlp, residual = residual },
    }
    if a.order == "both" then
      table.insert(list, 3, { "attention_post_norm", norm_of(a) })
      list[#list + 1] = { "mlp_post_norm", norm_of(a) }
    end
    return list
  end,
  forward = function(self, x) return forwards[self.arguments.order](self, x) end,
}

-- The arguments with what the family says of those that are not given.
local function settings_of(a) return families.settings(a) end

-- Arguments of block i, from 1.
local function block_arguments(a, i)
  local b = {}
  for _, field in ipairs(block_fields) do b[field[1]] = a[field[1]] end
  if common.has_experts(a, i - 1) then
    b.mlp = experts.experts { width = a.width, hidden = a.hidden or attention.swiglu_hidden(a.width),
      experts = a.experts, top = a.top, gated = true, normalised = a.normalised, activation = a.activation,
      auxiliary = a.auxiliary, capacity = a.capacity or a.experts / a.top, shared = a.shared }
  elseif a.experts then
    b.hidden = a.dense_hidden
  end
  -- The first layers, or every n-th one, see all; the others have the window, and may have other positions.
  local is_local = i > (a.window_after or 0) and (not a.window_every or i % a.window_every ~= 0)
  if not is_local or (b.window and b.window >= a.context) then b.window = nil end
  if is_local and a.window_every and a.local_rotary then b.rotary, b.scaling = a.local_rotary, nil end
  if is_local and a.unscaled_windows then b.scaling = nil end
  b.positions = (a.no_rotary_every or 0) == 0 or i % a.no_rotary_every ~= 0
  return b
end

local function hidden(self, tokens)
  language.announce(self)
  local a = settings_of(self.arguments)
  self.builder:begin_layer("embedding")
  local x = self.tokens(tokens)
  local scale = a.scaled_embedding and math.sqrt(a.width) or a.embedding_scale or 1
  if scale ~= 1 then x = op.scale(x, { factor = scale }) end
  x = language.run_blocks(self, x)
  self.builder:begin_layer("head")
  x = self.norm(x)
  return (a.logit_scale or 1) ~= 1 and op.scale(x, { factor = a.logit_scale }) or x
end

-- Fields whose default is the family's.
local function by_family(field)
  local copy = {}
  for key, value in pairs(field) do copy[key] = value end
  copy.default = nil
  return copy
end

local fields = {
  { "family", "string", "whose differences it has, and under whose names it is saved", required = true,
    choices = families.decoders() },
  { "vocab", "integer", "number of different tokens", required = true, min = 1 },
  { "context", "integer", "tokens that it sees at once", required = true, min = 1 },
  { "layers", "integer", "blocks", required = true, min = 1, max = 1000 },
  { "tied", "boolean", "the LM head shares the embedding's weight (default: the family's)" },
  { "logit_cap", "number", "logits are cap · tanh(logit / cap)", above = 0 },
  { "logit_scale", "number", "what logits are multiplied by (default: 1)", above = 0 },
  { "embedding_scale", "number", "what embeddings are multiplied by (default: the family's)", above = 0 },
  { "no_rotary_every", "integer", "every n-th layer has no rotary positions; 0: all have them (default: the family's)",
    min = 0 },
  { "window_every", "integer", "every n-th layer has no window", min = 1 },
  { "window_after", "integer", "the first n layers have no window", min = 1 },
  { "local_rotary", "number", "base of the rotary positions of layers with a window (default: as the others)",
    above = 1 },
  { "experts", "integer", "experts in each block, of families that have them", min = 1 },
  { "top", "integer", "experts of each token (top-k)", min = 1 },
  { "shared", "integer", "features inside an expert that all tokens go to, as nn.experts has it", min = 1 },
  { "experts_every", "integer", "every n-th layer has experts (default: 1, all)", min = 1 },
  { "dense_layers", "table", "numbers, from 0, of other layers without experts (default: none)" },
  { "dense_hidden", "integer", "features inside the feed-forward layers of layers without experts "
    .. "(default: 8/3 · width)",
    min = 1 },
  { "normalised", "boolean", "the weights of a token's experts add up to 1 (norm_topk_prob)" },
  { "capacity", "number", "capacity factor, as nn.experts has it (default: no token is dropped)", above = 0 },
  { "auxiliary", "number", "weight of the auxiliary load-balancing loss (default: 0)", min = 0 },
  { "block", "function", "function(width, heads, index) that returns a block of your own" },
}
-- What only the family decides.
local decided = { gated = true, norm = true, order = true, qk_norm = true, context = true, mlp = true,
  positions = true }
for _, field in ipairs(block_fields) do
  if not decided[field[1]] then fields[#fields + 1] = by_family(field) end
end
fields[#fields + 1] = { "parallel", "boolean", "attention and the feed-forward layer side by side (GPT-NeoX)" }

--- nn.decoder { family = , vocab = , context = , width = , layers = , heads = }
decoder.decoder = layer.define(language.with({
  name = "nn.decoder", model = "decoder",
  sentence = "A decoder-only language model of a family that people publish, such as Qwen3 or Gemma: what het.load "
    .. "makes of such a folder.",
  example = 'nn.decoder { family = "qwen3", vocab = corpus.vocab, context = 256, width = 512, layers = 8, heads = 8, '
    .. "kv_heads = 2 }",
  fields = fields,
  check = function(a, report)
    if not families.find(a.family) then return end
    local s = settings_of(a)
    if not a.block then attention.check_heads(s, report, "nn.decoder") end
    for _, number in ipairs(a.dense_layers or {}) do
      if type(number) ~= "number" or number % 1 ~= 0 or number < 0 or number >= a.layers then
        report("dense_layers", ("nn.decoder.dense_layers has %s; layers are 0 to %d"):format(text.value(number),
          a.layers - 1))
      end
    end
    local problem, field = families.problem(a)
    if problem then report(field, problem) end
    if s.window then
      if a.window_after and a.window_after >= a.layers then
        report("window_after", ("nn.decoder.window_after = %d leaves none of %s a window"):format(
          a.window_after, text.plural(a.layers, "layer")))
      end
    else
      -- Without a window `window_every` still chooses the layers with `local_rotary`.
      local idle = a.window_after and "window_after" or a.window_every and not s.local_rotary and "window_every"
      if idle then report(idle, ("nn.decoder.%s has no effect without `window`"):format(idle)) end
    end
    language.check_blocks(a, report, "nn.decoder")
  end,
  pointwise = true,
  show = function(a) return a.family .. ", " .. language.show(a) end,
  flops = function(a) return language.tied_flops(settings_of(a)) end,
  children = function(a)
    local s = settings_of(a)
    local list = { { "tokens", basic.embedding(a.vocab, a.width) } }
    for _, block in ipairs(language.blocks_of(a, function(_, i)
      return decoder.decoder_block(block_arguments(s, i))
    end)) do list[#list + 1] = block end
    list[#list + 1] = { "norm", norm_of(s) }
    if not s.tied then list[#list + 1] = { "head", basic.linear(a.width, a.vocab, { bias = false }) } end
    return language.mark_repeats(list)
  end,
}, language.next_token(hidden, settings_of)))

return decoder
