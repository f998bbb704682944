--- A plan drawn as one self-contained page: the step as a Gantt chart, memory, the devices and why, the plan itself.
-- No scripts, nothing fetched; it follows the reader's light or dark setting.
local native = require "het.native"
local text = require "het.text"

local page = {}

local style = [[
:root { --ink: #1c2430; --soft: #5b6675; --line: #d6dbe2; --back: #ffffff; --panel: #f5f7fa;
  --forward: #3b76c4; --backward: #d98032; --weight: #e9b872; --send: #7a68b8; --reduce: #2f9484; --gather: #2f9484;
  --update: #8a94a3; --used: #3b76c4; --over: #c43c3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9f0; --soft: #9aa6b6; --line: #36404d; --back: #14181e;
  --panel: #1c222b; --forward: #5c96e0; --backward: #e39550; --weight: #b98a4c; --send: #9d8cd9; --reduce: #4fb5a4;
  --gather: #4fb5a4; --update: #76818f; --used: #5c96e0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 24px 56px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 34px 0 10px; }
p { margin: 0 0 10px; color: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: 10px; margin: 18px 0 0; }
.figure { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px;
  min-width: 132px; }
.figure b { display: block; font-size: 19px; font-variant-numeric: tabular-nums; }
  .figure span { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; } svg { display: block; width: 100%; min-width: 860px; } svg text { fill: var(--ink);
  font: 12px system-ui, sans-serif; }
svg .soft { fill: var(--soft); } svg .grid { stroke: var(--line); }
.forward { fill: var(--forward); } .backward { fill: var(--backward); } .weight { fill: var(--weight); }
.send { fill: var(--send); } .reduce { fill: var(--reduce); } .gather { fill: var(--gather); }
  .update { fill: var(--update); }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; color: var(--soft); font-size: 13px; margin: 6px 0 0; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; font-size: 13px; } td.number { white-space: nowrap; }
.bar { background: var(--panel); border: 1px solid var(--line); border-radius: 4px; height: 14px; width: 150px;
  overflow: hidden; }
.bar div { height: 100%; background: var(--used); }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px;
  overflow-x: auto; font-size: 13px; }
]]

local function escape(words)
  return (tostring(words):gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local kinds = { -- as the simulator names them, with what the legend says
  { "forward", "forward" }, { "backward", "backward" }, { "weight gradient", "backward of weights, put off" },
  { "send", "between stages" }, { "reduce", "gradients summed" }, { "update", "update" },
  { "gather", "parameters shared" },
}
local on_wire = { send = true, reduce = true, gather = true }

-- Devices of the report by pipeline and stage, names joined.
local function rows_of(answer)
  local rows, by = {}, {}
  for _, device in ipairs(answer.report.devices) do
    local key = device.pipeline .. "/" .. device.stage
    if not by[key] then
      by[key] = { pipeline = device.pipeline, stage = device.stage, names = {}, device = device }
      rows[#rows + 1] = by[key]
    end
    by[key].names[#by[key].names + 1] = device.device
  end
  return rows, by
end

-- "a:0-3" of a:0, a:1, a:2, a:3.
local function joined(names)
  if #names == 1 then return names[1] end
  return ("%s-%s"):format(names[1], names[#names]:match ":(%d+)$" or names[#names])
end

-- Rectangles of one lane; what is too narrow to be seen apart is drawn as one.
local function lane(events, scale, left, top, height, parts)
  table.sort(events, function(a, b) return a.start < b.start end)
  local narrow = 0.4
  local i = 1
  while i <= #events do
    local first, last = events[i], events[i]
    while events[i + 1] and events[i + 1].kind == first.kind
      and (events[i + 1].start - last["end"]) * scale < narrow and (last["end"] - last.start) * scale < 2 do
      i = i + 1
      last = events[i]
    end
    local label = first == last and ("%s of %s %d"):format(first.kind, on_wire[first.kind] and first.kind ~= "send"
      and "layer" or "micro-batch", first.item) or first.kind
    parts[#parts + 1] = ('<rect class="%s" x="%.2f" y="%d" width="%.2f" height="%d"><title>%s, %s to %s</title></rect>')
      :format(first.kind, left + first.start * scale, top, math.max((last["end"] - first.start) * scale, 0.3), height,
        label, escape(native.show_seconds(first.start)), escape(native.show_seconds(last["end"])))
    i = i + 1
  end
end

local function gantt(answer)
  local rows = rows_of(answer)
  local left, width, row_height = 128, 980, 36
  local total = answer.report.step_seconds
  local scale = width / total
  local height = 26 + #rows * row_height + 8
  local parts = { ('<svg viewBox="0 0 %d %d" role="img" aria-label="One step, device by device">'):format(
    left + width + 12, height) }
  for tick = 0, 5 do
    local x = left + width * tick / 5
    parts[#parts + 1] = ('<line class="grid" x1="%.1f" x2="%.1f" y1="18" y2="%d"/><text class="soft" x="%.1f" y="12" '
      .. 'text-anchor="%s">%s</text>'):format(x, x, height, x, tick == 5 and "end" or tick == 0 and "start" or "middle",
        escape(native.show_seconds(total * tick / 5)))
  end
  local by = {}
  for _, event in ipairs(answer.events) do
    local key = event.pipeline .. "/" .. event.stage .. (on_wire[event.kind] and "/wire" or "")
    by[key] = by[key] or {}
    table.insert(by[key], event)
  end
  for i, row in ipairs(rows) do
    local top = 22 + (i - 1) * row_height
    local key = row.pipeline .. "/" .. row.stage
    parts[#parts + 1] = ('<text x="0" y="%d">%s</text><text class="soft" x="0" y="%d">%s</text>'):format(top + 13,
      escape(joined(row.names)), top + 27, escape(("%s, pipeline %d"):format(row.device.type, row.pipeline)))
    lane(by[key] or {}, scale, left, top + 3, 18, parts)
    lane(by[key .. "/wire"] or {}, scale, left, top + 23, 6, parts)
  end
  parts[#parts + 1] = "</svg>"
  local present, legend = {}, {}
  for _, event in ipairs(answer.events) do present[event.kind] = true end
  for _, kind in ipairs(kinds) do
    if present[kind[1]] then
      legend[#legend + 1] = ('<span><i style="background: var(--%s)"></i>%s</span>')
        :format(kind[1]:match "%w+", kind[2])
    end
  end
  return ('<div class="scroll">%s</div><div class="legend">%s</div>'):format(table.concat(parts), table.concat(legend))
end

local function figures(report)
  local list = {
    { native.show_seconds(report.step_seconds), "a step" },
    { text.count(report.tokens_per_second), "tokens a second" },
    { ("%.1f %%"):format(100 * report.bubble), "bubble" },
    { native.show_seconds(report.exposed_seconds), "communication in the open" },
    { ("%.1f %%"):format(100 * report.gap), "above what no plan can beat" },
  }
  if report.price_per_hour > 0 then
    list[#list + 1] = { ("%.2f"):format(report.price_per_hour), "an hour" }
    list[#list + 1] = { ("%.2f"):format(report.price_per_billion_tokens), "for a billion tokens" }
  end
  local parts = {}
  for _, each in ipairs(list) do
    parts[#parts + 1] = ('<div class="figure"><b>%s</b><span>%s</span></div>'):format(escape(each[1]), each[2])
  end
  return '<div class="figures">' .. table.concat(parts) .. "</div>"
end

local function devices(answer)
  local parts = { "<table><thead><tr><th>device</th><th>layers</th><th>memory</th><th></th><th>busy</th><th>why</th>"
    .. "</tr></thead><tbody>" }
  for _, row in ipairs((rows_of(answer))) do
    local d = row.device
    local whole = d.memory_bytes + d.free_bytes
    local share = math.max(0, math.min(1, d.memory_bytes / whole))
    local first, last = answer.model.layers[d.first_layer + 1].name, answer.model.layers[d.first_layer + d.layers].name
    parts[#parts + 1] = ('<tr><td>%s<br><span style="color: var(--soft)">%s</span></td><td>%s</td>'
      .. '<td class="number">%s<br><span style="color: var(--soft)">of %s</span></td>'
      .. '<td><div class="bar"><div style="width: %.1f%%%s"></div></div></td><td class="number">%.0f %%</td>'
      .. '<td>%s%s</td></tr>')
      :format(escape(joined(row.names)), escape(d.type), escape(first == last and first or first .. " to " .. last),
        escape(text.bytes(d.memory_bytes)), escape(text.bytes(whole)), 100 * share,
        d.free_bytes < 0 and "; background: var(--over)" or "", 100 * d.busy_share,
        d.recompute and "recomputes; " or "", escape(d.why))
  end
  parts[#parts + 1] = "</tbody></table>"
  if #answer.report.idle > 0 then
    parts[#parts + 1] = ("<p>Not used: %s</p>"):format(escape(table.concat(answer.report.idle, ", ")))
  end
  return table.concat(parts)
end

--- The page.
-- @string title
-- @tparam table answer what native.plan gives, with events
function page.html(title, answer)
  local report, model = answer.report, answer.model
  local parts = {
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
    ("<title>%s</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n"):format(escape(title), style),
    ("<h1>%s</h1>\n<p>%s: %s parameters in %d layers, %s. Layer times: %d measured, %d interpolated, "
      .. "%d extrapolated, %d estimated from data sheets.</p>\n"):format(escape(title), escape(model.name),
      escape(text.count(model.parameters)), #model.layers, escape(model.precision), report.layers_measured,
      report.layers_interpolated, report.layers_extrapolated, report.layers_estimated),
    figures(report),
    "\n<h2>One step</h2>\n<p>Compute above, communication below it, on each device.</p>\n", gantt(answer),
    "\n<h2>Devices</h2>\n", devices(answer),
    "\n<h2>The plan</h2>\n<p>For the recipe's <code>plan</code>.</p>\n<pre>", escape(answer.lua), "</pre>\n",
    "</main>\n</body>\n</html>\n",
  }
  return table.concat(parts)
end

return page
