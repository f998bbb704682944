local het = require "het"
local corpus = het.data.text { path = "text.txt", tokenizer = "char" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 16, width = 32, layers = 2, heads = 2 },
  data = corpus, batch = 4, steps = 2, optimizer = het.optim.adamw { lr = 1e-3 },
  precision = "f16",
}
