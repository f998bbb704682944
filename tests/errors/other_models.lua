local het = require "het"
local results = {}
for i, folder in ipairs { "bert_untied", "bert_relative", "bert_decoder", "bert_plain",
                          "gpt2_unscaled", "gpt2_by_layer", "gpt2_plain",
                          "qwen2_first", "qwen2_null", "gemma2_first" } do
  local ok, problem = pcall(het.load, folder)
  results[i] = ok and folder .. " is read" or tostring(problem)
end
error(table.concat(results, "\n"), 0)
