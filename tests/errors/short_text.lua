local het = require "het"
local corpus = het.data.text { path = "short.txt", holdout = 0 }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 64, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
}
