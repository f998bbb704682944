-- Constructors that are given where what they make is needed, and names that other frameworks have.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local x = het.zeros({ 16, 8 })
local own = nn.layer { name = "own", forward = function(_, y) return y end }
local _, inner = pcall(nn.layer, { name = "own", layers = { up = nn.linear }, forward = function(_, y) return y end })
print(inner)
return het.train {
  model = nn.sequential { nn.linear(8, 8), nn.gelu, own },
  data = data.pairs { inputs = x, labels = x },
  batch_size = 16, epochs = 1, steps = 1,
  optimizer = optim.adamw,
}
