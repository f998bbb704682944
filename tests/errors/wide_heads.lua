local het = require "het"
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 2048, layers = 1, heads = 2 },
  data = corpus, batch = 2, steps = 2, optimizer = het.optim.adamw { lr = 0.1 },
}
