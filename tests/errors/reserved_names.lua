-- Names of parameters and layers that would hide something.
local het = require "het"
local nn = het.nn
local function problem(given)
  given.forward = function(_, x) return x end
  local _, why = pcall(nn.layer, given)
  return tostring(why)
end
local problems = {
  problem { name = "own", parameters = { builder = { 4 } } },
  problem { name = "own", layers = { children = nn.linear(4, 4) } },
  problem { name = "own", parameters = { gain = { 4 } }, layers = { gain = nn.linear(4, 4) } },
}
error(table.concat(problems, "\n"), 0)
