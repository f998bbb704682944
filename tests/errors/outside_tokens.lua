local het = require "het"
local tokens = het.data.tokens { path = "linked/text.txt" }
local masked = het.data.masked { path = "text.txt", vocabulary = "/etc" }
return { tokens, masked, het.plan.auto { profile = "../outside/text.txt" } }
