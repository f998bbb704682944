local het = require "het"
local nn, op = het.nn, het.op
local corpus = het.data.text { path = "text.txt", packing = true, ending = ".", tokenizer = "char" }
local function block(width)
  return nn.layer { pointwise = true, layers = { attention = nn.attention { width = width, heads = 2, causal = true } },
    forward = function(self, x)
      return x + self.attention(x, op.greater(op.sum(x, { dims = { -1 } }), 0))
    end }
end
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 2, block = block },
  data = corpus, batch = 2, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
}
