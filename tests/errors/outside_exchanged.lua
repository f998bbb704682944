-- A path that is exchanged after it was looked at.
local het = require "het"
local corpus = het.data.text { path = "text.txt" }
local run = het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 }, metrics = "metrics.jsonl",
}
run.arguments.metrics = "../outside/metrics.jsonl"
return run
