local het = require "het"
local corpus = het.data.tokens { path = "text.txt" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
}
