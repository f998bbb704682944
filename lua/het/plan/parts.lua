--- What a step of a plan goes to, as a bar with a legend, and what would make it shorter: a section of the page.
local parts = {}

-- As the report names them, in words, and drawn in which of the page's colours.
local kinds = {
  { "compute", "compute", "forward" }, { "recompute", "recompute", "weight" },
  { "tensor", "tensor-parallel collectives", "exchange" }, { "transfers", "transfers between stages", "send" },
  { "bubble", "bubble", "panel" }, { "gradients", "exchange of gradients", "reduce" },
  { "norms", "exchange of norms and losses", "weight" }, { "update", "update", "update" },
  { "gather", "gathering of weights", "backward" }, { "waiting", "waiting for others", "line" },
}
local least_drawn = 0.0005   -- of the step

--- The section; empty for a report without parts.
-- @tparam table report of native.plan or native.simulate
-- @func escape makes text HTML
function parts.html(report, escape)
  if not report.parts then return "" end
  local total, bars, legend, helps = 0, {}, {}, {}
  for _, kind in ipairs(kinds) do total = total + report.parts[kind[1]] end
  for _, kind in ipairs(kinds) do
    local share = report.parts[kind[1]] / total
    if share >= least_drawn then
      local words = ("%s %.1f %%"):format(kind[2], 100 * share)
      bars[#bars + 1] = ('<div style="width: %.2f%%; background: var(--%s)" title="%s"></div>'):format(100 * share,
        kind[3], words)
      legend[#legend + 1] = ('<span><i style="background: var(--%s)"></i>%s</span>'):format(kind[3], words)
    end
  end
  for i, what in ipairs(report.helps or {}) do helps[i] = ("<li>%s</li>"):format(escape(what.text)) end
  return ('\n<h2>What a step goes to</h2>\n<p>On %s, slowest in compute.</p>\n<div class="parts">%s</div>'
    .. '<div class="legend">%s</div>\n%s'):format(escape(report.slowest), table.concat(bars), table.concat(legend),
      #helps > 0 and "<p>What would make it shorter, each alone:</p>\n<ul>" .. table.concat(helps) .. "</ul>\n"
        or report.helps and "<p>No change that was simulated makes it shorter by 1 %.</p>\n" or "")
end

return parts
