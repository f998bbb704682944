-- Names that other libraries have for what a run takes.
local het = require "het"
local nn = het.nn
local corpus = het.data.text { path = "nothing.txt" }   -- its mistake alone is reported, not what follows from it
local model = nn.layer { parameters = { table = { corpus.vocab, 8 } }, forward = function(self, x)
  return het.op.embedding(x, self.table)
end }
return het.train {
  model = model, data = corpus, context = 8, batch = 2, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
  gradient_clip = 1,
  gradient_accumulation = 4,
  val_data = corpus,
  workers = 2,
  device = "cuda",
  shuffle = true,
}
