local het = require "het"
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = het.load "truncated", data = corpus, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
}
