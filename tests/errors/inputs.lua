-- What is wrong with inputs by name.
local het = require "het"
local nn, data = het.nn, het.data
local x, y = het.zeros { 10, 2 }, het.zeros { 10, 1 }
data.pairs { inputs = {}, labels = y }
data.pairs { inputs = { x, x }, labels = y }
data.pairs { inputs = { a = x, b = 3 }, labels = y }
data.pairs { inputs = { a = x, b = het.zeros { 9 } }, labels = y }
data.pairs { inputs = { ["a b"] = x }, labels = y }
data.pairs { inputs = 3, labels = y }
local named = data.pairs { inputs = { a = x, b = x }, labels = y }
local function run(model, evaluated)
  return het.train { model = model, data = named, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
    evaluate = { data = evaluated } }
end
local own = nn.layer { layers = { inner = nn.linear(2, 1) }, forward = function(self, t) return self.inner(t.a) end }
run(nn.linear(2, 1))
run(nn.gpt { vocab = 4, context = 4, width = 4, layers = 1, heads = 1 })
run(own, data.pairs { inputs = x, labels = y })
local last = run(own, data.pairs { inputs = { a = x }, labels = y })
return last
