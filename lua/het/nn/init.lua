--- `het.nn`: layers and models. Everything here returns a description without weights that prints as a tree.
local layer = require "het.nn.layer"
local suggest = require "het.language.suggest"

local nn = { layer = layer.custom }
for _, name in ipairs { "basic", "attention", "models", "vision" } do
  for key, value in pairs(require("het.nn." .. name)) do
    if not key:match("^check_") and key ~= "swiglu_hidden" then nn[key] = value end
  end
end

return suggest.module("het.nn", nn)
