local het = require "het"
local told = {}
for i, folder in ipairs { "bert_untied", "bert_relative", "bert_decoder", "bert_plain",
                          "gpt2_unscaled", "gpt2_by_layer", "gpt2_plain" } do
  local ok, problem = pcall(het.load, folder)
  told[i] = ok and folder .. " is read" or tostring(problem)
end
error(table.concat(told, "\n"), 0)
