local het = require "het"
local x = het.ones { 3 }
local function is_small(y) return y < 1 end
return is_small(x)
