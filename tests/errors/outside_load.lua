local het = require "het"
local model = het.load "linked"
return model
