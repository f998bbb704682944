--- Whole language models: GPT-2, LLaMA and BERT. Each has, besides `forward` (all logits), `loss` (the classifier
-- fused with the cross-entropy, so that no full logits are kept) and, when it predicts the next token, `last`
-- (logits of the last position only, for generation).
local attention = require "het.nn.attention"
local basic = require "het.nn.basic"
local language = require "het.nn.language"
local layer = require "het.nn.layer"
local op = require "het.op"

local models = {}

-- x + attention(norm(x)), then x + mlp(norm(x)): GPT-2's and LLaMA's block. A mask may follow x.
local function pre_norm_forward(self, x, ...)
  x = op.add(x, self.attention(self.attention_norm(x), ...))
  return op.add(x, self.mlp(self.mlp_norm(x)))
end

--- nn.gpt_block { width = , heads = }
models.gpt_block = layer.define {
  name = "nn.gpt_block",
  sentence = "A block of GPT-2: attention and a feed-forward layer, each behind a layer norm and added to its input.",
  example = "nn.gpt_block { width = 768, heads = 12 }",
  fields = {
    { "width", "integer", "features", required = true, min = 1 },
    { "heads", "integer", "attention heads", required = true, min = 1 },
    { "kv_heads", "integer", "key and value heads (default: heads)", min = 1 },
    { "hidden", "integer", "features inside the feed-forward layer (default: 4 · width)", min = 1 },
    { "activation", "string", "of the feed-forward layer", default = "gelu",
      choices = { "gelu", "gelu_exact", "silu", "relu" } },
    { "bias", "boolean", "biases in projections and norms", default = true },
    { "dropout", "number", "of both results, while training", default = 0, min = 0, below = 1 },
    { "eps", "number", "of the norms", default = 1e-5, above = 0 },
    { "mlp", "layer", "in place of the feed-forward layer, such as nn.experts" },
  },
  check = function(a, report) attention.check_heads(a, report, "nn.gpt_block") end,
  pointwise = true,
  show = function(a) return tostring(a.width) end,
  children = function(a)
    local function norm() return basic.layer_norm(a.width, { bias = a.bias, eps = a.eps }) end
    return {
      { "attention_norm", norm() },
      { "attention", attention.attention { width = a.width, heads = a.heads, kv_heads = a.kv_heads, bias = a.bias,
        dropout = a.dropout }, residual = true },
      { "mlp_norm", norm() },
      { "mlp", a.mlp or attention.mlp { width = a.width, hidden = a.hidden, activation = a.activation, bias = a.bias,
        dropout = a.dropout }, residual = true },
    }
  end,
  takes_mask = true,
  forward = pre_norm_forward,
}

--- nn.llama_block { width = , heads = }
models.llama_block = layer.define {
  name = "nn.llama_block",
  sentence = "A block of LLaMA: RMS norms, rotary attention without biases, SwiGLU.",
  example = "nn.llama_block { width = 512, heads = 8, kv_heads = 2 }",
  fields = {
    { "width", "integer", "features", required = true, min = 1 },
    { "heads", "integer", "attention heads", required = true, min = 1 },
    { "kv_heads", "integer", "key and value heads (default: heads)", min = 1 },
    { "head_size", "integer", "features of a head (default: width / heads)", min = 1 },
    { "hidden", "integer", "features inside the feed-forward layer (default: 8/3 · width)", min = 1 },
    { "rotary", "number", "base of the rotary positions", default = 10000, above = 1 },
    { "scaling", "table", "rotary positions for longer contexts, as nn.attention has it" },
    { "context", "integer", "tokens that the model sees at once, for longrope", min = 1 },
    { "eps", "number", "of the norms", default = 1e-5, above = 0 },
    { "mlp", "layer", "in place of the feed-forward layer, such as nn.experts" },
  },
  check = function(a, report) attention.check_heads(a, report, "nn.llama_block") end,
  pointwise = true,
  show = function(a) return tostring(a.width) end,
  children = function(a)
    return {
      { "attention_norm", basic.rms_norm(a.width, { eps = a.eps }) },
      { "attention", attention.attention { width = a.width, heads = a.heads, kv_heads = a.kv_heads,
        head_size = a.head_size, bias = false, rotary = a.rotary, scaling = a.scaling, context = a.context },
        residual = true },
      { "mlp_norm", basic.rms_norm(a.width, { eps = a.eps }) },
      { "mlp", a.mlp or attention.swiglu { width = a.width, hidden = a.hidden }, residual = true },
    }
  end,
  takes_mask = true,
  forward = pre_norm_forward,
}

--- nn.bert_block { width = , heads = }
models.bert_block = layer.define {
  name = "nn.bert_block",
  sentence = "A block of BERT: attention both ways and a feed-forward layer, each added to its input and then normed.",
  example = "nn.bert_block { width = 128, heads = 4 }",
  fields = {
    { "width", "integer", "features", required = true, min = 1 },
    { "heads", "integer", "attention heads", required = true, min = 1 },
    { "hidden", "integer", "features inside the feed-forward layer (default: 4 · width)", min = 1 },
    { "dropout", "number", "of both results, while training", default = 0, min = 0, below = 1 },
    { "eps", "number", "of the norms", default = 1e-12, above = 0 },
    { "mlp", "layer", "in place of the feed-forward layer, such as nn.experts" },
  },
  check = function(a, report) attention.check_heads(a, report, "nn.bert_block") end,
  pointwise = true,
  show = function(a) return tostring(a.width) end,
  children = function(a)
    return {
      { "attention", attention.attention { width = a.width, heads = a.heads, causal = false,
        dropout = a.dropout } },
      { "attention_norm", basic.layer_norm(a.width, { eps = a.eps }) },
      { "mlp", a.mlp or attention.mlp { width = a.width, hidden = a.hidden, activation = "gelu_exact",
        dropout = a.dropout } },
      { "mlp_norm", basic.layer_norm(a.width, { eps = a.eps }) },
    }
  end,
  takes_mask = true,
  forward = function(self, x, ...)
    x = self.attention_norm(op.add(x, self.attention(x, ...)))
    return self.mlp_norm(op.add(x, self.mlp(x)))
  end,
}

local function gpt_hidden(self, tokens)
  language.announce(self)
  local b, a = self.builder, self.arguments
  b:begin_layer("embedding")
  local x = op.add(self.tokens(tokens), language.position_rows(self, tokens.shape[1], tokens.shape[2]))
  x = language.run_blocks(self, b:dropout(x, a.dropout))
  b:begin_layer("head")
  return self.norm(x)
end

--- nn.gpt { vocab = , context = , width = , layers = , heads = }
models.gpt = layer.define(language.with({
  name = "nn.gpt",
  sentence = "GPT-2 (Radford et al. 2019): learned positions, blocks, a norm, a classifier tied to the embedding.",
  example = "nn.gpt { vocab = corpus.vocab, context = 64, width = 128, layers = 4, heads = 4 }",
  model = "gpt2",
  fields = {
    { "vocab", "integer", "number of different tokens", required = true, min = 1 },
    { "context", "integer", "tokens that it sees at once", required = true, min = 1 },
    { "width", "integer", "features", required = true, min = 1 },
    { "layers", "integer", "blocks", required = true, min = 1, max = 1000 },
    { "heads", "integer", "attention heads", required = true, min = 1 },
    { "hidden", "integer", "features inside the feed-forward layers (default: 4 · width)", min = 1 },
    { "activation", "string", "of the feed-forward layers", default = "gelu",
      choices = { "gelu", "gelu_exact", "silu", "relu" } },
    { "bias", "boolean", "biases in projections and norms", default = true },
    { "dropout", "number", "of embeddings and of each layer's result, while training", default = 0, min = 0,
      below = 1 },
    { "tied", "boolean", "the LM head shares the embedding's weight", default = true },
    { "eps", "number", "of the norms", default = 1e-5, above = 0 },
    { "block", "function", "function(width, heads, index) that returns a block of your own" },
  },
  check = function(a, report)
    if not a.block then attention.check_heads(a, report, "nn.gpt") end
    language.check_blocks(a, report, "nn.gpt")
  end,
  pointwise = true,
  show = language.show,
  flops = language.tied_flops,
  children = function(a)
    local list = {
      { "tokens", basic.embedding(a.vocab, a.width) },
      { "positions", basic.embedding(a.context, a.width) },
    }
    for _, block in ipairs(language.blocks_of(a, function()
      return models.gpt_block { width = a.width, heads = a.heads, hidden = a.hidden, activation = a.activation,
        bias = a.bias, dropout = a.dropout, eps = a.eps }
    end)) do list[#list + 1] = block end
    list[#list + 1] = { "norm", basic.layer_norm(a.width, { bias = a.bias, eps = a.eps }) }
    if not a.tied then list[#list + 1] = { "head", basic.linear(a.width, a.vocab, { bias = false }) } end
    return language.mark_repeats(list)
  end,
}, language.next_token(gpt_hidden)))

local function llama_hidden(self, tokens)
  language.announce(self)
  self.builder:begin_layer("embedding")
  local x = language.run_blocks(self, self.tokens(tokens))
  self.builder:begin_layer("head")
  return self.norm(x)
end

--- nn.llama { vocab = , context = , width = , layers = , heads = }
models.llama = layer.define(language.with({
  name = "nn.llama",
  sentence = "LLaMA (Touvron et al. 2023): rotary positions, RMS norms, SwiGLU, grouped queries.",
  example = "nn.llama { vocab = corpus.vocab, context = 256, width = 512, layers = 8, heads = 8, kv_heads = 2 }",
  model = "llama",
  fields = {
    { "vocab", "integer", "number of different tokens", required = true, min = 1 },
    { "context", "integer", "tokens that it sees at once", required = true, min = 1 },
    { "width", "integer", "features", required = true, min = 1 },
    { "layers", "integer", "blocks", required = true, min = 1, max = 1000 },
    { "heads", "integer", "attention heads", required = true, min = 1 },
    { "kv_heads", "integer", "key and value heads (default: heads)", min = 1 },
    { "head_size", "integer", "features of a head (default: width / heads)", min = 1 },
    { "hidden", "integer", "features inside the feed-forward layers (default: 8/3 · width)", min = 1 },
    { "rotary", "number", "base of the rotary positions", default = 10000, above = 1 },
    { "scaling", "table", "rotary positions for longer contexts, as nn.attention has it" },
    { "tied", "boolean", "the LM head shares the embedding's weight", default = false },
    { "eps", "number", "of the norms", default = 1e-5, above = 0 },
    { "block", "function", "function(width, heads, index) that returns a block of your own" },
  },
  check = function(a, report)
    if not a.block then attention.check_heads(a, report, "nn.llama") end
    language.check_blocks(a, report, "nn.llama")
  end,
  pointwise = true,
  show = language.show,
  flops = language.tied_flops,
  children = function(a)
    local list = { { "tokens", basic.embedding(a.vocab, a.width) } }
    for _, block in ipairs(language.blocks_of(a, function()
      return models.llama_block { width = a.width, heads = a.heads, kv_heads = a.kv_heads, head_size = a.head_size,
        hidden = a.hidden, rotary = a.rotary, scaling = a.scaling, context = a.context, eps = a.eps }
    end)) do list[#list + 1] = block end
    list[#list + 1] = { "norm", basic.rms_norm(a.width, { eps = a.eps }) }
    if not a.tied then list[#list + 1] = { "head", basic.linear(a.width, a.vocab, { bias = false }) } end
    return language.mark_repeats(list)
  end,
}, language.next_token(llama_hidden)))

local function bert_hidden(self, tokens)
  language.announce(self)
  local b, a = self.builder, self.arguments
  b:begin_layer("embedding")
  local segments = op.slice(language.weight_of(self, "segments"), { dim = 0, start = 0, length = 1 })
  local positions = language.position_rows(self, tokens.shape[1], tokens.shape[2])
  local x = op.add(op.add(self.tokens(tokens), positions), segments)
  local mask = a.padding and op.not_equal(op.cast(tokens, { dtype = "f32" }), a.padding) or nil
  x = language.run_blocks(self, b:dropout(self.embedding_norm(x), a.dropout), mask)
  b:begin_layer("head")
  return self.head_norm(op.gelu(self.head_transform(x), { approximate = "none" }))
end

--- nn.bert { vocab = , context = , width = , layers = , heads = }
models.bert = layer.define {
  name = "nn.bert",
  sentence = "BERT (Devlin et al. 2019) with its masked language model: it guesses hidden tokens from both sides.",
  example = "nn.bert { vocab = corpus.vocab, context = 128, width = 128, layers = 4, heads = 4 }",
  model = "bert",
  fields = {
    { "vocab", "integer", "number of different tokens, the mask's included", required = true, min = 1 },
    { "context", "integer", "tokens that it sees at once", required = true, min = 1 },
    { "width", "integer", "features", required = true, min = 1 },
    { "layers", "integer", "blocks", required = true, min = 1, max = 1000 },
    { "heads", "integer", "attention heads", required = true, min = 1 },
    { "hidden", "integer", "features inside the feed-forward layers (default: 4 · width)", min = 1 },
    { "dropout", "number", "of embeddings and of each layer's result, while training", default = 0, min = 0,
      below = 1 },
    { "eps", "number", "of the norms", default = 1e-12, above = 0 },
    { "padding", "integer", "the token that fills samples up: no token attends to it. Blocks of your own get the mask "
      .. "as a second value, [samples, tokens], 0 at padding", min = 0 },
    { "block", "function", "function(width, heads, index) that returns a block of your own" },
  },
  check = function(a, report)
    if a.padding and a.padding >= a.vocab then
      report("padding", ("nn.bert.padding = %d is no token; vocab = %d has tokens from 0 to %d"):format(a.padding,
        a.vocab, a.vocab - 1))
    end
    if not a.block then attention.check_heads(a, report, "nn.bert") end
    language.check_blocks(a, report, "nn.bert")
  end,
  pointwise = false,
  show = language.show,
  flops = function(a) return 6 * a.width * a.vocab end,
  parameters = function(a) return { { "head_bias", { a.vocab } } } end,
  children = function(a)
    local function norm() return basic.layer_norm(a.width, { eps = a.eps }) end
    local list = {
      { "tokens", basic.embedding(a.vocab, a.width) },
      { "positions", basic.embedding(a.context, a.width) },
      { "segments", basic.embedding(2, a.width) },
      { "embedding_norm", norm() },
    }
    for _, block in ipairs(language.blocks_of(a, function()
      return models.bert_block { width = a.width, heads = a.heads, hidden = a.hidden, dropout = a.dropout,
        eps = a.eps }
    end)) do list[#list + 1] = block end
    list[#list + 1] = { "head_transform", basic.linear(a.width, a.width) }
    list[#list + 1] = { "head_norm", norm() }
    return language.mark_repeats(list)
  end,
  forward = function(self, tokens)
    return (op.linear(bert_hidden(self, tokens), language.weight_of(self, "tokens"), self.head_bias))
  end,
  loss = function(self, tokens, labels, scale)
    return (op.linear_cross_entropy(bert_hidden(self, tokens), language.weight_of(self, "tokens"), self.head_bias,
      labels, scale))
  end,
}

return models
