local het = require "het"
local function forward(self, x) return x * self.w end
local ways = {
  { 3, 4, init = "xavier" }, { 3, 4, init = "normal" }, { 3, 4, init = { kind = "normal" } }, { 3, 4, init = 7 },
  { 3.5 }, 4, het.randn(3, 4), { 3, 4, init = het.randn(4, 3) }, { 3, init = het.arange(3, "i32") },
}
local met = {}
for _, way in ipairs(ways) do
  local _, problem = pcall(het.nn.layer, { name = "scaled", parameters = { w = way }, forward = forward })
  met[#met + 1] = tostring(problem)
end
error(table.concat(met, "\n"), 0)
