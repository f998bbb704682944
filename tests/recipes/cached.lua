-- Text from caches of keys and values is that of the whole context computed again for each token.
local het = require "het"
local opt = het.options { llama = { false, "LLaMA in place of GPT" } }
local corpus = het.data.text { path = "text.txt" }
local make = opt.llama and het.nn.llama or het.nn.gpt
return het.train {
  model = make { vocab = corpus.vocab, context = 48, width = 16, layers = 2, heads = 2 },
  data = corpus, batch = 4, steps = 60, optimizer = het.optim.adamw { lr = 1e-2 },
  after = function(run)
    local how = { prompt = "the quick", tokens = 35, temperature = 0 }
    local cached = run:generate(how)
    local generator = require("het.sandbox.handle").inner(run).generator   -- with --trust
    assert(generator.incremental)
    generator.incremental, generator.executors = false, {}
    local uncached = run:generate(how)
    assert(uncached == cached, ("%q by caches, %q without"):format(cached, uncached))
    print(cached)
  end,
}
