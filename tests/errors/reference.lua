local het = require "het"
local optimizer = het.optim.sgd { lr = 0.1 }
local function model() return het.nn.gpt { vocab = 256, context = 8, width = 8, layers = 1, heads = 2 } end
local text = het.data.text { path = "text.txt", tokenizer = "byte" }
local function loss(output, labels, scale) return (het.op.cross_entropy(output, labels, scale)) end
het.train { model = model(), reference = model(), data = text, batch = 2, steps = 1, optimizer = optimizer }
return het.train {
  model = model(), data = text, batch = 2, steps = 1, optimizer = optimizer, loss = loss,
  reference = model(),
}
