local het = require "het"
local model = het.nn.linear(1, 1)
print(model)
