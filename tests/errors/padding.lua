-- Padding of BERT, and pairs as data of a language model.
local het = require "het"
local nn = het.nn
local function run(model, inputs, labels)
  return het.train { model = model, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
    data = het.data.pairs { inputs = inputs, labels = labels } }
end
local function ids(tokens, dtype) return het.zeros({ 10, tokens }, dtype or "i32") end
local function bert() return nn.bert { vocab = 8, context = 4, width = 8, layers = 1, heads = 1, padding = 0 } end
nn.bert { vocab = 8, context = 4, width = 8, layers = 1, heads = 1, padding = 8 }
nn.bert { vocab = 8, context = 4, width = 8, layers = 1, heads = 1, padding = -1 }
run(bert(), ids(4, "f32"), ids(4))
run(bert(), ids(4), ids(3))
local last = run(bert(), ids(5), ids(5))
return last
