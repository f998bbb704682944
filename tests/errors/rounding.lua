-- Rounding by chance is of a copy of the weights that f32 does not have.
local het = require "het"
local optim = het.optim
local misspelt = optim.sgd { lr = 0.1, rounding = "stochastik" }
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 2,
  optimizer = misspelt and optim.adamw { lr = 0.1, rounding = "stochastic" },
}
