local het = require "het"
local corpus = het.data.text { path = "../outside/text.txt" }
local ffi = require "ffi"
error(("reached with %d tokens and %s"):format(corpus.tokens, type(ffi.new)))
