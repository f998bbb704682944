--- `het.nn`: layers and models. Everything here returns a description without weights that prints as a tree.
local layer = require "het.nn.layer"
local errors = require "het.errors"
local suggest = require "het.suggest"
local text = require "het.text"

local nn = { layer = layer.custom }
for _, name in ipairs { "basic", "attention", "models" } do
  for key, value in pairs(require("het.nn." .. name)) do
    if not key:match("^check_") and key ~= "swiglu_hidden" then nn[key] = value end
  end
end

return setmetatable(nn, {
  __index = function(_, name)
    errors.usage("het.nn has no '%s'%s", tostring(name), suggest.sentence(tostring(name), text.keys(nn)))
  end,
})
