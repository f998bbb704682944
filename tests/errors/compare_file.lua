local het = require "het"
local file = assert(io.open("text.txt"))
if file < 1 then print(het) end
