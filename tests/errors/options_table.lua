local het = require "het"
local opt = het.options { steps = 20, save = { "runs/mine", "folder", path = "write" } }
return opt.steps
