local het = require "het"
local opt = het.options { text = { "other.txt", "what to learn", path = "read" }, steps = { 20, "optimizer steps" } }
local corpus = het.data.text { path = opt.text, tokeniser = "char" }
return het.train { model = het.load(opt.text), data = corpus }
