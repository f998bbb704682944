-- Shares of tensor-parallel ranks are whole numbers from 1 on.
local het = require "het"
local plans = {}
plans[1] = het.plan { tensor = { 3, 0 }, microbatch = 2,
  het.pipeline { het.stage { "here:0-1" } } }
plans[2] = het.plan { tensor = {}, microbatch = 2,
  het.pipeline { het.stage { "here:0-1" } } }
plans[3] = het.plan { tensor = "two", microbatch = 2,
  het.pipeline { het.stage { "here:0-1" } } }
plans[4] = het.plan { microbatch = 2,
  het.pipeline { het.stage { "here:0-1", tensor = { 1, 0.5 } } } }
plans[5] = het.plan { tensor = { 1e30, 1 }, microbatch = 2,
  het.pipeline { het.stage { "here:0-1" } } }
plans[6] = het.plan { tensor = { 2, first = 1 }, microbatch = 2,
  het.pipeline { het.stage { "here:0-1" } } }
plans[7] = het.plan { tensor = { 0, 0, 0 }, microbatch = 2,
  het.pipeline { het.stage { "here:0-2" } } }
return plans
