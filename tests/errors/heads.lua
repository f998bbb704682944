-- Every mistake comes out at once, each on its line.
local het = require "het"
local nn = het.nn
local model = nn.sequential {
  nn.embedding(100, 768),
  nn.attention {
    width = 768,
    heads = 10,
    casual = true,
  },
  nn.linear { inputs = 768, outputs = 100, parts = { 50, 40 } },
  nn.linear { inputs = 768, outputs = 100, parts = { 99.5, 0.5 } },
}
return het.train {
  model = model,
  batch = 2.5,
  steps = 2,
  optimizer = het.optim.adamw { lr = 0.1, beta2 = 1.5 },
}
