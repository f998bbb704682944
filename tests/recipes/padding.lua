-- BERT on samples of unequal length, padded with token 0: a model of the library, or layers of the recipe's own.
local het = require "het"
local nn, op = het.nn, het.op
local opt = het.options {
  padded = { true, "no token attends to padding" }, plan = { "one", "how ranks share the work" },
  own = { false, "a model of the recipe's own" }, precision = { "f32", "" }, save = { "", "folder", path = "write" },
  steps = { 6, "" }, load = { "", "evaluate the model of this folder", path = "read" } }
local vocab, context = 12, 8

local inputs, labels = {}, {}
for i = 1, 40 do
  inputs[i], labels[i] = {}, {}
  local length = 2 + i % 7
  for t = 1, context do
    local token = t <= length and 1 + (i * 5 + t * t) % (vocab - 1) or 0
    inputs[i][t], labels[i][t] = token, t <= length and t % 2 == 0 and token or -100
    if t % 2 == 0 and t <= length then inputs[i][t] = vocab - 1 end
  end
end

local model = nn.bert { vocab = vocab, context = context, width = 16, layers = 2, heads = 4,
  padding = opt.padded and 0 or nil }
if opt.own then
  model = nn.layer { parameters = { table = { vocab, 16 }, places = { context, 16 } },
    layers = { block = nn.bert_block { width = 16, heads = 4 },
      attention = nn.attention { width = 16, heads = 4, kv_heads = 2, rotary = true }, head = nn.linear(16, vocab) },
    forward = function(self, tokens)
      local mask = op.not_equal(op.cast(tokens, { dtype = "f32" }), 0)
      self.builder:begin_layer "first"
      local x = op.cast(op.embedding(tokens, self.table) + self.places, { dtype = self.builder.precision })
      x = self.block(x, mask)
      self.builder:begin_layer "second"
      return self.head(x + self.attention(x, mask))
    end }
end
if opt.load ~= "" then model = het.load(opt.load) end
local plans = {
  data = het.plan { microbatch = 1, sharded_optimizer = true,
    het.pipeline { microbatches = 3, het.stage { "a:0" } }, het.pipeline { microbatches = 1, het.stage { "a:1" } } },
  tensor = het.plan { tensor = 2, microbatch = 2, het.pipeline { microbatches = 2, het.stage { "a:0-1" } } },
  pipeline = het.plan { microbatch = 2,
    het.pipeline { microbatches = 2, het.stage { "a:0", layers = 1, recompute = true }, het.stage { "a:1" } } },
  three = het.plan { microbatch = 1,
    het.pipeline { microbatches = 4, het.stage { "a:0", layers = 1 }, het.stage { "a:1", layers = 1 },
      het.stage { "a:2" } } },
}
return het.train {
  model = model, batch = 4, steps = opt.steps, precision = opt.precision, plan = plans[opt.plan],
  data = het.data.pairs { inputs = het.tensor(inputs, "i32"), labels = het.tensor(labels, "i32"), holdout = 0.2 },
  optimizer = het.optim.adamw { lr = 1e-2 }, evaluate = { every = 3 }, save = opt.save ~= "" and opt.save or nil,
}
