-- A folder beside the recipe in which a file is a link.
local het = require "het"
return het.load "linking"
