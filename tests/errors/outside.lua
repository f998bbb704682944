local het = require "het"
local corpus = het.data.text { path = "../outside/text.txt" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
  save = "/etc/hetrun", from = "..",
  metrics = "linked/metrics.jsonl",
}
