local het = require "het"
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 65536, layers = 100, heads = 512 },
  data = corpus, batch = 2, steps = 2, optimizer = het.optim.adamw { lr = 0.1 },
}
