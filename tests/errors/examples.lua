local het = require "het"
local lines = het.data.jsonl { path = "text.txt", tokenizer = "byte", loss = "completions" }
local folder = het.data.jsonl { path = "text.txt" }
local broken = het.data.jsonl { path = "text.txt", tokenizer = "byte" }
return { lines, folder, broken }
