-- What stands in braces has names.
local het = require "het"
print(het.op.reshape(het.ones { 4 }, { 2, 2 }))
