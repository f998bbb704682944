-- Examples that share rows: losses and gradients are those of the same examples in a row each.
local het = require "het"
local nn, op = het.nn, het.op
local opt = het.options {
  model   = { "gpt", "which" },
  data    = { "examples.jsonl", "examples", path = "read" },
  packing = { false, "several examples share a row" },
  kind    = { "jsonl", "or text, tokens: documents that end with a dot" },
  ending  = { ".", "of an example" },
  mixed   = { "", "a mixture of `data`, packed, and others.jsonl: packed, apart or text" },
  batch   = { 4, "rows of a step" },
  context = { 32, "tokens of a row" },
  steps   = { 4, "optimizer steps" },
  plan    = { "one", "how ranks share the work" },
  save    = { "", "folder to save in", path = "write" },
  sgd     = { false, "weights lose their gradients, and no more" },
}

local constructors = {
  jsonl = function()
    return het.data.jsonl { path = opt.data, tokenizer = "byte", ending = opt.ending, holdout = 0,
      packing = opt.packing }
  end,
  text = function()
    return het.data.text { path = opt.data, tokenizer = "byte", ending = ".", holdout = 0, packing = true }
  end,
  tokens = function()
    return het.data.tokens { path = opt.data, vocab = 256, ending = ("."):byte(), holdout = 0, packing = true }
  end,
}
local corpus = constructors[opt.kind]()
local function mixture()
  local others = { path = "others.jsonl", tokenizer = "byte", holdout = 0 }
  if opt.mixed ~= "text" then others.ending, others.packing = ".", opt.mixed == "packed" end
  return het.data.mixture { { corpus, 2 }, { het.data[opt.mixed == "text" and "text" or "jsonl"](others), 1 } }
end
if opt.mixed ~= "" then corpus = mixture() end
local size = { vocab = corpus.vocab, context = opt.context, width = 16, layers = 2, heads = 2 }
local function sized(more)
  local arguments = {}
  for _, given in ipairs { size, more } do
    for name, value in pairs(given) do arguments[name] = value end
  end
  return arguments
end
local function decoder(family, more)
  more.family = family
  return nn.decoder(sized(more))
end
-- A layer that sees tokens of the row only as far as builder:starts lets it.
local function own_block(width, heads)
  local own = nn.layer {
    name = "own", pointwise = true,
    layers = { q = nn.linear(width, width), kv = nn.linear(width, width) },
    forward = function(self, x)
      local samples, tokens = x.shape[1], x.shape[2]
      local by_heads = { shape = { samples, tokens, heads, width / heads } }
      local q, kv = op.reshape(self.q(x), by_heads), op.reshape(self.kv(x), by_heads)
      local starts = self.builder:starts(samples, tokens)
      local y = starts and op.attention(q, kv, kv, starts, { causal = true })
        or op.attention(q, kv, kv, { causal = true })
      return op.reshape(y, { shape = { samples, tokens, width } })
    end,
  }
  return nn.sequential { nn.residual { nn.layer_norm(width), own }, nn.residual { nn.layer_norm(width),
    nn.mlp { width = width } } }
end
local models = {
  gpt = function() return nn.gpt(size) end,
  llama = function() return nn.llama(sized { kv_heads = 1 }) end,
  own = function() return nn.gpt(sized { block = own_block }) end,
  experts = function()
    return nn.gpt(sized { block = function(width, heads)
      return nn.gpt_block { width = width, heads = heads, mlp = nn.experts { width = width, experts = 2, top = 2,
        capacity = 1, auxiliary = 0 } }
    end })
  end,
  gemma = function() return decoder("gemma", {}) end,
  gemma2 = function() return decoder("gemma2", { window = 5, score_cap = 20, logit_cap = 10 }) end,
  gemma3_text = function() return decoder("gemma3_text", { window = 5, window_every = 2, local_rotary = 100 }) end,
  gpt_neox = function() return decoder("gpt_neox", { rotary_share = 0.5 }) end,
  mistral = function() return decoder("mistral", { window = 7 }) end,
  mixtral = function() return decoder("mixtral", { experts = 3, top = 2 }) end,
  olmo2 = function() return decoder("olmo2", {}) end,
  olmo3 = function() return decoder("olmo3", { window = 5, window_every = 2 }) end,
  olmoe = function() return decoder("olmoe", { experts = 3, top = 2 }) end,
  granite = function()
    return decoder("granite", { embedding_scale = 3, residual_scale = 0.5, logit_scale = 0.5, score_scale = 0.2 })
  end,
  smollm3 = function() return decoder("smollm3", { no_rotary_every = 2 }) end,
  stablelm = function() return decoder("stablelm", { rotary_share = 0.5 }) end,
  starcoder2 = function() return decoder("starcoder2", { window = 7 }) end,
  phi3 = function() return decoder("phi3", {}) end,
  qwen2 = function() return decoder("qwen2", { kv_heads = 1 }) end,
  qwen2_moe = function() return decoder("qwen2_moe", { experts = 3, top = 2, shared = 24, experts_every = 2 }) end,
  qwen3 = function() return decoder("qwen3", { kv_heads = 1 }) end,
  qwen3_moe = function() return decoder("qwen3_moe", { experts = 3, top = 1 }) end,
}

local half = opt.batch / 2
local plans = {
  one = nil,
  data = function()
    return het.plan { microbatch = 1, het.pipeline { microbatches = opt.batch - 1, het.stage { "a:0" } },
      het.pipeline { microbatches = 1, het.stage { "a:1" } } }
  end,
  tensor = function()
    return het.plan { tensor = 2, microbatch = half, het.pipeline { microbatches = 2, het.stage { "a:0-1" } } }
  end,
  pipeline = function()
    return het.plan { microbatch = half,
      het.pipeline { microbatches = 2, het.stage { "a:0", layers = 1, recompute = true }, het.stage { "a:1" } } }
  end,
}

return het.train {
  model = models[opt.model](), data = corpus, batch = opt.batch, steps = opt.steps, seed = 3,
  optimizer = opt.sgd and het.optim.sgd { lr = 1 } or het.optim.adamw { lr = 3e-3, clip = 1 },
  plan = plans[opt.plan] and plans[opt.plan](),
  save = opt.save ~= "" and opt.save or nil,
}
