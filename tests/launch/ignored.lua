-- Tokens whose labels are partly ignored, unevenly: row r of 24 has r % 7 labels that count, of 6; some have none. With
-- --plan under one of the plans below.
local het = require "het"
local nn, optim, data, stage = het.nn, het.optim, het.data, het.stage

local opt = het.options { plan = { "", "one of those below" } }
local tokens, rows, length = 11, 24, 6
local inputs, labels = {}, {}
for r = 1, rows do
  inputs[r], labels[r] = {}, {}
  for t = 1, length do
    inputs[r][t] = (3 * r + 5 * t + r * t) % tokens
    labels[r][t] = t <= r % 7 and (7 * r + t * t) % tokens or -100
  end
end

local plans = {
  data = het.plan { microbatch = 1, het.pipeline { microbatches = 5, stage { "a:0" } },
    het.pipeline { microbatches = 3, stage { "a:1" } } },
  tensor = het.plan { tensor = { 3, 1 }, microbatch = 4, het.pipeline { microbatches = 2, stage { "a:0-1" } } },
}
return het.train {
  model = nn.sequential { nn.embedding(tokens, 8), nn.linear(8, 16), nn.gelu(), nn.linear(16, tokens) },
  data = data.pairs { inputs = het.tensor(inputs, "i32"), labels = het.tensor(labels, "i32"), holdout = 1 / 3 },
  batch = 8, microbatch = opt.plan == "" and 8 or nil, steps = 6, optimizer = optim.sgd { lr = 0.5 },
  evaluate = { every = 3, batches = 1 }, plan = plans[opt.plan],
}
