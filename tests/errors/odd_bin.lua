local het = require "het"
local corpus = het.data.tokens { path = "odd.bin" }
return het.train {
  model = het.nn.gpt { vocab = 256, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
}
