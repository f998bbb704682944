-- Names that the library does not have, and a method that was not called.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local corpus = data.text { path = "text.txt" }
local model = nn.gpt { vocab = corpus.vocabulary, context = 8, width = 16, layers = 1, heads = 2 }
return het.train {
  model = model, data = corpus, batch = 2, steps = 2,
  optimizer = optim.adamww { lr = 0.1 },
}
