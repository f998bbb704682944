-- A path that is exchanged after it was looked at: in the table that het.train was given, and in the run.
local het = require "het"
local corpus = het.data.text { path = "text.txt" }
local given = {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 }, metrics = "runs/mine/metrics.jsonl",
}
local run = het.train(given)
given.metrics = "../outside/metrics.jsonl"
assert(run.arguments.metrics == "runs/mine/metrics.jsonl")
run.arguments.metrics = "../outside/metrics.jsonl"
return run
