local het = require "het"
return het.train {
  model = het.load "nowhere", data = het.data.text { path = "text.txt" }, batch = 2, steps = 2,
  optimizer = het.optim.sgd { lr = 0.1 },
}
