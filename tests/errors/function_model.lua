-- A function has no parameters to train.
local het = require "het"
local nn = het.nn
local x = het.zeros { 16, 8 }
local adapted = nn.lora { model = nn.linear(8, 2) }
local frozen = nn.frozen(function(y) return y end)
het.train { model = nn.sequential { adapted, frozen }, data = het.data.pairs { inputs = x, labels = x }, batch = 4,
  steps = 1, optimizer = het.optim.sgd { lr = 0.1 } }
return het.train {
  model = function(y) return nn.linear(8, 8)(y) end,
  data = het.data.pairs { inputs = x, labels = x }, batch = 4, steps = 1, optimizer = het.optim.sgd { lr = 0.1 },
}
