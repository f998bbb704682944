local het = require "het"
return het.train {
  model = het.nn.linear(1, 1)
  batch = 2,
}
