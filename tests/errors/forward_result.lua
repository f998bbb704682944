-- What a forward or a function returns has to be a value; the line of the layer is shown.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local function problem(layer)
  local x = het.zeros({ 16, 8 })
  local model = nn.sequential { nn.linear(8, 8), layer }
  local run = het.train { model = model, data = data.pairs { inputs = x, labels = x }, batch = 16,
    steps = 1, optimizer = optim.adamw { lr = 1e-2 } }
  local _, why = pcall(run.start, run)
  return tostring(why)
end

local function own(forward) return nn.layer { name = "own", layers = { up = nn.linear(8, 8) }, forward = forward } end

local problems = {
  problem(own(function() return 3 end)),
  problem(own(function(x) return x end)),
  problem(own(function() return nn.gelu() end)),
  problem(own(function(self, x) return self:up(x) end)),
  problem(own(function(self, x) self.up(x) end)),
  problem(function() return "x" end),
  problem(nn.linear(8, 16)),
}
error(table.concat(problems, "\n"), 0)
