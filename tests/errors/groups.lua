-- What is wrong with parameter groups is said before the run, with the line.
local het = require "het"
local optim = het.optim
optim.adamw { lr = 1e-3, groups = { match = "^tokens", lr = 1e-4 } }
optim.adamw { lr = 1e-3, groups = { "^tokens" } }
optim.adamw { lr = 1e-3, groups = { { match = "^tokens", rate = 1e-4 } } }
optim.adamw { lr = 1e-3, groups = { { match = "^tokens" } } }
optim.adamw { lr = 1e-3, groups = { { match = "^tokens", lr = -1 } } }
optim.adamw { lr = 1e-3, groups = { { match = "^tokens", lr = "fast" } } }
optim.sgd { lr = 1e-3, groups = { { match = "^tokens", weight_decay = -0.1 } } }
optim.lion { lr = function() return 1e-3 end, groups = { { match = "^tokens", lr = 1e-4 } } }
optim.adamw { lr = 1e-3, groups = { { match = "^tokens", lr = optim.cosine { peak = 0 } } } }
local last = optim.adamw { lr = 1e-3, param_groups = {} }
return last
