-- A small mixed cluster: one machine with five A100, one with three H800, and two with two old cards each, on two
-- networks.
--
--   hetrun plan recipes/gpt_text.lua --cluster=recipes/clusters/mixed.lua
local het = require "het"

return het.cluster {
  bandwidth = "25 Gbit/s", latency = "40 us",
  het.node { name = "a", type = "A100-80", devices = 5, zone = "fast", price = 20.5, preemptions = 0.02 },
  het.node { name = "h", type = "H800", devices = 3, zone = "fast", price = 18.0, preemptions = 0.05 },
  het.node { name = "old", type = "RTX-3090", devices = 2, count = 2, zone = "desks", price = 0.8 },
  het.link { from = "fast", to = "fast", bandwidth = "200 Gbit/s", latency = "8 us" },
}
