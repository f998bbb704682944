-- What the command line names by options that are paths is the person's own wish.
local het = require "het"
local opt = het.options {
  text = { "", "text", path = "read" }, folder = { "", "where models are", path = "write" },
  log = { "", "file", path = "write" },
}
local corpus = het.data.text { path = opt.text }
assert(io.open(opt.text)):close()
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
  data = corpus, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
  save = opt.folder .. "/model", metrics = opt.log,
  after = function(run)
    run:save(opt.folder .. "/again")
    het.load(opt.folder .. "/again")
    het.data.text { path = "/usr/include/c++", limit = "1 MB" }
  end,
}
