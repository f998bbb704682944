-- An index outside of a tensor.
local het = require "het"
local x = het.randn(2, 3)
local sum = 0
for i = 1, 3 do
  sum = sum + x[i][1]
end
