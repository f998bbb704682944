-- Misspelt fields of a parameter.
local het = require "het"
local function layer(parameter)
  return het.nn.layer { parameters = { gain = parameter }, forward = function(self, x) return x * self.gain end }
end
local _, why = pcall(layer, { 4, int = "ones" })
error(tostring(why) .. "\n" .. tostring(select(2, pcall(layer, { 4, trainable = false }))))
