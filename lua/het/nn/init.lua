--- `het.nn`: layers and models. Everything here returns a description without weights that prints as a tree.
local layer = require "het.nn.layer"
local suggest = require "het.language.suggest"

local nn = { layer = layer.custom, constant = layer.constant }
-- What these modules and others of the library share.
local shared = { activate = true, check_heads = true, swiglu_hidden = true, lora_places = true }
for _, name in ipairs { "basic", "attention", "experts", "models", "decoder", "vision", "lora" } do
  for key, value in pairs(require("het.nn." .. name)) do
    if not shared[key] then nn[key] = value end
  end
end

return suggest.module("het.nn", nn)
