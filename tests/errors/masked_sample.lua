local het = require "het"
local corpus = het.data.masked { path = "text.txt" }
return het.train {
  model = het.nn.bert { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
  sample = { prompt = "the " },
}
