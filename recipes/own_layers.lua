-- Layers of your own, written with het.op: a causal convolution and a sparse mixture of experts, in place of attention
-- and the feed-forward layer of a small language model. On one rank, and the same losses on two that share each layer:
--   hetrun recipes/own_layers.lua
--   hetrun --workers=2 recipes/own_layers.lua --tensor=2
local het = require "het"
local nn, op, optim, data = het.nn, het.op, het.optim, het.data

local opt = het.options {
  text   = { "/usr/include/c++", "text file, or folder of text files", path = "read" },
  steps  = { 400, "optimizer steps", min = 1 },
  tensor = { 1, "ranks that share each layer", min = 1 },
}
local width, experts, top, hidden, kernel = 96, 8, 2, 192, 5

-- Each channel sees itself in the last `kernel` tokens.
local function causal_convolution()
  return nn.layer {
    name = "causal_convolution",
    parameters = { weight = { width, 1, kernel, init = { kind = "normal", scale = 0.4 } }, bias = { width } },
    forward = function(self, x)   -- [samples, tokens, width]
      local channels = op.transpose(x, { order = { 0, 2, 1 } })
      local y = op.conv1d(channels, self.weight, self.bias, { causal = true, groups = width })
      return op.transpose(y, { order = { 0, 2, 1 } })
    end,
  }
end

-- Each token goes to the two experts that its gate likes most; an expert has places for 1.5 times its share of tokens.
local function mixture()
  return nn.layer {
    name = "mixture",
    parameters = { gate = { experts, width }, up = { experts, hidden, width }, down = { experts, width, hidden } },
    forward = function(self, x)
      local samples, tokens = x.shape[1], x.shape[2]
      local places = math.ceil(1.5 * top * tokens / experts)
      local weight, expert = op.top_k(op.softmax(op.linear(x, self.gate)), { k = top })
      local slot = op.expert_slots(expert, { experts = experts, capacity = places })
      local y = op.dispatch(x, slot, { experts = experts, capacity = places })
      y = op.reshape(y, { shape = { experts, samples * places, width } })
      y = op.matmul(op.gelu(op.matmul(y, self.up, { transpose_b = true })), self.down, { transpose_b = true })
      y = op.reshape(y, { shape = { experts, samples, places, width } })
      return (op.combine(y, slot, weight / op.sum(weight, { dims = { -1 }, keep = true })))
    end,
  }
end

local corpus = data.text { path = opt.text, tokenizer = "char", holdout = 0.1 }
local layers = { nn.embedding(corpus.vocab, width) }
for _ = 1, 3 do
  layers[#layers + 1] = nn.residual { nn.rms_norm(width), causal_convolution() }
  layers[#layers + 1] = nn.residual { nn.rms_norm(width), mixture() }
end
layers[#layers + 1], layers[#layers + 2] = nn.rms_norm(width), nn.linear(width, corpus.vocab)

return het.train {
  model = nn.sequential(layers), data = corpus, context = 64, batch = 16, steps = opt.steps,
  optimizer = optim.adamw { lr = optim.cosine { peak = 3e-3, warmup = 40 }, clip = 1 }, evaluate = { every = 100 },
  plan = opt.tensor > 1 and het.plan { tensor = opt.tensor, microbatch = 8,
    het.pipeline { microbatches = 2, het.stage { ("a:0-%d"):format(opt.tensor - 1) } } } or nil,
}
