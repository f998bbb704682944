-- A small BERT whose second and fourth block have experts; with --plan under a plan that places them in some way.
local het = require "het"
local nn, optim, data, stage = het.nn, het.optim, het.data, het.stage

local opt = het.options {
  plan  = { "", "one of those below" },
  shard = { "", "what hints cut the experts' weights by", choices = { "", "experts", "hidden", "replicated" } },
  top   = { 2, "experts of a token", min = 1 },
  optimizer = { "adamw", "by its name", choices = { "adamw", "adafactor", "muon" } },
}
local corpus = data.masked { path = "text.txt", tokenizer = "char", holdout = 0.1 }

local plans = {
  -- Each layer on several ranks: as Megatron-LM cuts it, the experts by experts.
  tensor = het.plan { tensor = 2, microbatch = 2, het.pipeline { microbatches = 4, stage { "a:0-1" } } },
  uneven = het.plan { tensor = { 3, 1 }, sequence = true, microbatch = 2,
    het.pipeline { microbatches = 4, stage { "a:0-1" } } },
  -- Replicas with unequal shares; stages, one recomputing; all of it.
  data = het.plan { microbatch = 1, sharded_optimizer = true, het.pipeline { microbatches = 5, stage { "a:0" } },
    het.pipeline { microbatches = 3, stage { "a:1" } } },
  pipeline = het.plan { microbatch = 2, het.pipeline { microbatches = 4, stage { "a:0", layers = 2, recompute = true },
    stage { "a:1", layers = 2 }, stage { "a:2" } } },
  mixed = het.plan { microbatch = 2,
    het.pipeline { microbatches = 3, stage { "a:0-1", layers = 3, tensor = 2 }, stage { "a:2" } },
    het.pipeline { microbatches = 1, stage { "b:0-1", tensor = { 3, 1 } } } },
  -- Experts and samples are divided among the same ranks: tokens travel to their experts and back.
  expert = het.plan { tensor = { 3, 1 }, microbatch = 4, sharding = { inputs = { inputs = 0, labels = 0 },
    state = { ["blocks.*.mlp.up"] = 0, ["blocks.*.mlp.down"] = 0 } },
    het.pipeline { microbatches = 2, stage { "a:0-1" } } },
}
local hints = {
  experts = { up = { model = 0 }, down = { model = 0 } },
  hidden = { up = { model = 1 }, down = { model = 2 } },
  replicated = { up = { model = "replicated" }, down = { model = "replicated" } },
}

return het.train {
  model = nn.bert { vocab = corpus.vocab, context = 16, width = 32, layers = 4, heads = 4, dropout = 0.1,
    block = function(width, heads, index)
      if index % 2 == 1 then return nn.bert_block { width = width, heads = heads, dropout = 0.1 } end
      local experts = nn.experts { width = width, hidden = 48, experts = 4, top = opt.top, dropout = 0.1 }
      if opt.shard ~= "" then experts = experts:shard(hints[opt.shard]) end
      return nn.bert_block { width = width, heads = heads, mlp = experts }
    end },
  data = corpus, batch = 8, steps = 6,
  optimizer = optim[opt.optimizer] { lr = opt.optimizer == "adamw" and 3e-3 or 1e-2, clip = 0.5 },
  evaluate = { every = 3, batches = 2 }, plan = plans[opt.plan],
}
