local het = require "het"
local nn = het.nn
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = nn.sequential { nn.embedding(corpus.vocab, 8), nn.linear(8, corpus.vocab) },
  data = corpus, context = 8, batch = 2, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
  sample = { prompt = "the " },
}
