-- A mesh of a stage's devices names its axes with their sizes, and what is cut along each of them.
local het = require "het"
local stages = {}
stages[1] = het.stage { "here:0-1", sharding = { mesh = "data" } }
stages[2] = het.stage { "here:0-1", sharding = { mesh = { data = 1 } } }
stages[3] = het.stage { "here:0-1", sharding = { mesh = { { "data" } } } }
stages[4] = het.stage { "here:0-1", sharding = { mesh = { data = { 3, 0.5 } } } }
stages[5] = het.stage { "here:0-1", sharding = { mesh = { data = 2 }, inputs = { inputs = 0 } } }
stages[6] = het.stage { "here:0-1", sharding = { mesh = { data = 2 }, inputs = { inputs = { model = 0 } } } }
stages[7] = het.stage { "here:0-1", sharding = { mesh = { data = 2 }, inputs = { inputs = { data = "cut" } } } }
stages[8] = het.stage { "here:0-1", sharding = { mesh = { data = 2 }, nodes = { ["head linear"] = { data = 1 } } } }
stages[9] = het.stage { "here:0-1", sharding = { meshes = { data = 2 } } }
stages[10] = het.stage { "here:0-3", sharding = { mesh = { { "data", 2 }, { "data", 2 } } } }
stages[11] = het.stage { "here:0-1", sharding = { mesh = { ["end"] = 2 }, state = { ["*"] = 0 } } }
stages[12] = het.stage { "here:0-1", sharding = { inputs = { inputs = { data = 0 } } } }
stages[13] = het.stage { "here:0-1", sharding = { mesh = {} } }
return stages
