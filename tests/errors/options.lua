local het = require "het"
local opt = het.options {
  steps     = { 20, "optimizer steps", min = 1 },
  precision = { "f32", "of matrices", choices = { "f32", "bf16" } },
  verbose   = { false, "say more" },
}
return opt.steps
