-- Shares of tensor-parallel ranks: whole numbers from 1 on, and each rank has a head.
local het = require "het"
local plans = {}
plans[1] = het.plan { tensor = { 3, 0 }, microbatch = 2,
  het.pipeline { het.stage { "here:0-1" } } }
plans[2] = het.plan { tensor = {}, microbatch = 2,
  het.pipeline { het.stage { "here:0-1" } } }
plans[3] = het.plan { tensor = "two", microbatch = 2,
  het.pipeline { het.stage { "here:0-1" } } }
return plans
