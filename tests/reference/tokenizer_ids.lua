-- Encodes texts by a tokenizer.json, and decodes what came out: tokenizer_ids.py compares. Run with --trust: it uses
-- the engine below the library.
local het = require "het"
local native = require "het.native"

local opt = het.options {
  tokenizer = { "", "folder with tokenizer.json", path = "read" },
  texts = { "", "texts, one file after the other, with commas between" },
}
local tokenizer = native.tokenizer(require("het.model.tokenizer").vocabulary(opt.tokenizer))
print(native.json_encode { prefix = tokenizer:prefix(), vocabulary = tokenizer.vocab })
for path in opt.texts:gmatch "[^,]+" do
  local file = io.open(path, "rb")
  local text = file:read "*a"
  file:close()
  local begin = native.clock()
  local ids = tokenizer:encode(text)
  local seconds = native.clock() - begin
  local out = io.open(path .. ".ids", "wb")
  out:write(table.concat(ids, " "))
  out:close()
  out = io.open(path .. ".decoded", "wb")
  out:write(tokenizer:decode(ids))
  out:close()
  print(("%s: %.1f MB/s"):format(path, #text / seconds / 1e6))
end
os.exit(0)
