local het = require "het"
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = het.nn.llama {
    vocab = 20, context = 8, width = 24, layers = 1, heads = 4,
    kv_heads = 3,
  },
  data = corpus, batch = 4, steps = 2, precision = "bf61",
  microbatch = 3,
  optimizer = het.optim.adamw { lr = het.optim.cosine { peak = 1e-3, floor = 1 } },
}
