local het = require "het"
local optimizer = het.optim.sgd { lr = 0.1 }
local function model() return het.nn.gpt { vocab = 256, context = 8, width = 8, layers = 1, heads = 2 } end
local text = het.data.text { path = "text.txt", tokenizer = "byte" }
local function loss(output, labels, scale) return (het.op.cross_entropy(output, labels, scale)) end
het.train { model = model(), reference = model(), data = text, batch = 2, steps = 1, optimizer = optimizer }
-- A run's folders may not be the reference's; adapters share its weights, and may be saved there.
local base = het.load "reference"
local adapted = het.nn.lora { model = base, rank = 2, alpha = 2 }
het.train { model = base, reference = base, data = text, batch = 2, steps = 1, optimizer = optimizer, loss = loss,
  save = "reference" }
het.train { model = base, reference = base, data = text, batch = 2, steps = 1, optimizer = optimizer, loss = loss,
  keep_best = "reference/", evaluate = { every = 1 } }
het.train { model = adapted, reference = base, data = text, batch = 2, steps = 1, optimizer = optimizer, loss = loss,
  save = "reference" }
return het.train {
  model = model(), data = text, batch = 2, steps = 1, optimizer = optimizer, loss = loss,
  reference = model(),
}
