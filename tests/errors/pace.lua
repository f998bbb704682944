-- A planner that is to plan for this machine, beside devices that ranks imitate.
local het = require "het"
local cluster = het.cluster {
  bandwidth = "1 Gbit/s", het.node { name = "a", type = "P100", devices = 2 },
}
return het.train {
  model = het.nn.vit { classes = 10, image = 32, patch = 8, width = 32, heads = 4, layers = 2 },
  data = het.data.shapes { samples = 200, holdout = 0.1 }, batch = 12, steps = 2,
  optimizer = het.optim.adamw { lr = 1e-3 }, plan = het.plan.auto {}, pace = cluster,
}
