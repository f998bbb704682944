-- A run on token files that writes text, with the vocabulary of the run that the tokens were made with.
local het = require "het"
local opt = het.options {
  path = { "shards", "files", path = "read" },
  vocabulary = { "runs/mine", "of an earlier run", path = "read" }, vocab = { 40, "ids" },
}
local corpus = het.data.tokens { path = opt.path, vocabulary = opt.vocabulary, vocab = opt.vocab }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 }, save = "runs/again",
  sample = { prompt = "the ", tokens = 100, temperature = 100 },
}
