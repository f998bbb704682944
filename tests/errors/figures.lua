local het = require "het"
local op = het.op
return het.train {
  model = het.nn.gpt { vocab = 256, context = 8, width = 8, layers = 1, heads = 2 },
  data = het.data.text { path = "text.txt", tokenizer = "byte" },
  batch = 2, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
  loss = function(output, labels, scale)
    return (op.cross_entropy(output, labels, scale)), { greatest = op.max(output) }
  end,
}
