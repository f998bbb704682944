--- A plan drawn as one self-contained page: the cluster, the step as a Gantt chart, memory, the devices and why, what
-- changing to the plan moves, what is done after a loss, the plan itself.
-- No scripts, nothing fetched; it follows the reader's light or dark setting.
local native = require "het.native"
local parts_of_step = require "het.plan.parts"
local planning = require "het.plan.planning"
local text = require "het.text"

local page = {}

local style = [[
:root { --ink: #1c2430; --soft: #5b6675; --line: #d6dbe2; --back: #ffffff; --panel: #f5f7fa;
  --forward: #3b76c4; --backward: #d98032; --weight: #e9b872; --send: #7a68b8; --reduce: #2f9484; --gather: #a8a13a;
  --exchange: #b0589a; --update: #8a94a3; --used: #3b76c4; --over: #c43c3c; --tone: 34% 47%; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9f0; --soft: #9aa6b6; --line: #36404d; --back: #14181e;
  --panel: #1c222b; --forward: #5c96e0; --backward: #e39550; --weight: #b98a4c; --send: #9d8cd9; --reduce: #4fb5a4;
  --gather: #c9c25e; --exchange: #c97bb5; --update: #76818f; --used: #5c96e0; --tone: 30% 45%; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 24px 56px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 34px 0 10px; }
p { margin: 0 0 10px; color: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: 10px; margin: 18px 0 0; }
.figure { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px;
  flex: 1 1 108px; }
.figure b { display: block; font-size: 19px; font-variant-numeric: tabular-nums; }
  .figure span { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; } svg { display: block; width: 100%; min-width: 860px; } svg text { fill: var(--ink);
  font: 12px system-ui, sans-serif; }
svg .soft { fill: var(--soft); } svg .grid { stroke: var(--line); }
.forward { fill: var(--forward); } .backward { fill: var(--backward); } .weight { fill: var(--weight); }
.send { fill: var(--send); } .reduce { fill: var(--reduce); } .gather { fill: var(--gather); }
  .exchange { fill: var(--exchange); } .update { fill: var(--update); }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; color: var(--soft); font-size: 13px; margin: 6px 0 0; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; font-size: 13px; } td.number { white-space: nowrap; }
.bar { background: var(--panel); border: 1px solid var(--line); border-radius: 4px; height: 14px; width: 150px;
  overflow: hidden; }
.bar div { height: 100%; background: var(--used); }
.parts { display: flex; height: 22px; border: 1px solid var(--line); border-radius: 4px; overflow: hidden; }
.note { margin: 14px 0 0; color: var(--ink); }
.soft { color: var(--soft); font-size: 13px; }
.zone { border: 1px solid var(--line); border-radius: 10px; padding: 10px 12px 12px; margin: 0 0 12px; }
.zone h3 { font-size: 13px; font-weight: 500; color: var(--soft); margin: 0 0 8px; }
.hosts { display: flex; flex-wrap: wrap; gap: 10px; align-items: flex-start; }
.host { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px 10px;
  max-width: 340px; }
.host p { font-size: 13px; margin: 0; }
.chips { display: flex; flex-wrap: wrap; gap: 4px; margin: 6px 0; }
.chips i, .key i { background: hsl(var(--h) var(--tone)); border-radius: 5px; color: #fff; font: 12px/24px system-ui,
  sans-serif; height: 24px; min-width: 24px; padding: 0 3px; text-align: center; }
.chips i.idle, .key i.idle { background: var(--line); }
.many .host { padding: 5px 8px 7px; font-size: 13px; } .many .chips { margin: 3px 0 0; gap: 2px; }
.many .chips i { font-size: 9px; line-height: 15px; height: 15px; min-width: 15px; padding: 0 1px; border-radius: 3px; }
.key { display: flex; flex-wrap: wrap; gap: 6px 18px; color: var(--soft); font-size: 13px; margin: 10px 0; }
.key i { display: inline-block; width: 11px; min-width: 11px; height: 11px; padding: 0; border-radius: 2px;
  margin-right: 6px; }
.pipeline { fill: hsl(var(--h) var(--tone)); }
.links { display: grid; grid-template-columns: max-content 120px max-content max-content auto; gap: 6px 12px;
  align-items: center; margin: 4px 0 0; }
.links hr { border: 0; width: 100%; margin: 0; background: var(--soft); border-radius: 4px; opacity: 0.55; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px;
  overflow-x: auto; font-size: 13px; }
]]

local function escape(words)
  words = native.visible(tostring(words))
  return (words:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local kinds = { -- as the simulator names them, with what the legend says
  { "forward", "forward" }, { "backward", "backward" }, { "weight gradient", "backward of weights, put off" },
  { "send", "between stages" }, { "reduce", "gradients summed" }, { "update", "update" },
  { "gather", "parameters shared" }, { "exchange", "activations exchanged" },
}
local on_wire = planning.on_wire

-- Above so many rows pipelines that are alike share theirs, and charts are drawn without a word for every block.
local most_rows = 64
-- No more are drawn than can be read; --json has all.
local most_drawn = 128

-- Colours of neighbours in number are far apart: the golden angle.
local function hue(pipeline) return ("--h:%.0f"):format((268 + (pipeline - 1) * 137.508) % 360) end

-- "1, 4-9" of ascending whole numbers; of many parts the first.
local function ranges(numbers)
  local parts, i = {}, 1
  while i <= #numbers do
    local last = i
    while numbers[last + 1] == numbers[last] + 1 do last = last + 1 end
    parts[#parts + 1] = last == i and ("%d"):format(numbers[i]) or ("%d-%d"):format(numbers[i], numbers[last])
    i = last + 1
  end
  if #parts > 6 then return ("%s, ... (%d in all)"):format(table.concat(parts, ", ", 1, 5), #numbers) end
  return table.concat(parts, ", ")
end

-- "a:0-3, b:1" of a:0, a:1, a:2, a:3, b:1.
local function joined(names)
  local hosts, devices = {}, {}
  for _, name in ipairs(names) do
    local host, device = name:match "^(.*):(%d+)$"
    if not devices[host] then hosts[#hosts + 1], devices[host] = host, {} end
    table.insert(devices[host], tonumber(device))
  end
  for i, host in ipairs(hosts) do hosts[i] = host .. ":" .. ranges(devices[host]) end
  return table.concat(hosts, ", ")
end

-- What two pipelines have in common that share rows.
local function signature(pipeline, rows)
  local parts = { pipeline.microbatches }
  for _, row in ipairs(rows) do
    parts[#parts + 1] = row.device.type
    for _, chunk in ipairs(row.device.chunks) do
      parts[#parts + 1] = ("%d+%d%s"):format(chunk.first_layer, chunk.layers, chunk.recompute and "r" or "")
    end
  end
  for _, stage in ipairs(pipeline.stages) do parts[#parts + 1] = stage.optimizer_share end
  return table.concat(parts, " ")
end

-- The row of a device or an event. Devices that share layers by a sharding program have a row each.
local function key_of(plan, of)
  return of.rank and ("rank %d"):format(of.rank)
    or ("%d/%d"):format(of.pipeline, of.start and planning.group_of(plan, of) or of.stage)
end

-- Groups of devices of the report, a row each: { pipeline, stage, names, device, pipelines }. `pipelines`: the numbers
-- of those that share the row; it shows the first.
local function rows_of(answer)
  local all, by_pipeline, by_key = {}, {}, {}
  for _, device in ipairs(answer.report.devices) do
    local key = key_of(answer.plan, device)
    if not by_key[key] then
      local row = { key = key, pipeline = device.pipeline, stage = device.stage, names = {}, device = device,
        pipelines = { device.pipeline } }
      by_key[key], all[#all + 1] = row, row
      by_pipeline[device.pipeline] = by_pipeline[device.pipeline] or {}
      table.insert(by_pipeline[device.pipeline], row)
    end
    table.insert(by_key[key].names, device.device)
  end
  if #all <= most_rows then return all end
  local shown, first = {}, {}
  for p, rows in ipairs(by_pipeline) do
    local alike = signature(answer.plan.pipelines[p], rows)
    if not first[alike] then
      first[alike] = rows
      for _, row in ipairs(rows) do shown[#shown + 1] = row end
    else
      for _, row in ipairs(first[alike]) do row.pipelines[#row.pipelines + 1] = p end
    end
  end
  return shown
end

local function pipelines_of(row)
  return ("pipeline%s %s"):format(#row.pipelines > 1 and "s" or "", ranges(row.pipelines))
end

-- Events of one lane from left to right; those that are too narrow to be seen apart are one. Calls draw(first, last).
local function each_block(events, scale, narrow, draw)
  table.sort(events, function(a, b) return a.start < b.start end)
  local i = 1
  while i <= #events do
    local first, last = events[i], events[i]
    while events[i + 1] and events[i + 1].kind == first.kind
      and (events[i + 1].start - last["end"]) * scale < narrow and (last["end"] - last.start) * scale < 5 * narrow do
      i = i + 1
      last = events[i]
    end
    draw(first, last)
    i = i + 1
  end
end

-- Rectangles of one lane, each with what it is.
local function lane(events, scale, left, top, height, parts)
  each_block(events, scale, 0.4, function(first, last)
    local label = first ~= last and first.kind or first.name and escape(first.name)
      or ("%s of %s %d"):format(first.kind, on_wire[first.kind] and first.kind ~= "send" and "layer" or "micro-batch",
        first.item)
    parts[#parts + 1] = ('<rect class="%s" x="%.2f" y="%d" width="%.2f" height="%d"><title>%s, %s to %s</title></rect>')
      :format(first.kind, left + first.start * scale, top, math.max((last["end"] - first.start) * scale, 0.3), height,
        label, escape(native.show_seconds(first.start)), escape(native.show_seconds(last["end"])))
  end)
end

-- The same in few bytes: a path for each kind, without words; of what is narrower than a point not all.
local function dense_lane(events, scale, left, top, height, parts)
  local paths, drawn = {}, {}
  each_block(events, scale, 0.8, function(first, last)
    local kind, start, width = first.kind, first.start * scale, (last["end"] - first.start) * scale
    if width < 1 and drawn[kind] and start - drawn[kind] < 2 then return end
    drawn[kind] = start
    paths[kind] = paths[kind] or {}
    table.insert(paths[kind], ("M%.1f %dh%.1fv%dh-%.1f"):format(left + start, top, math.max(width, 0.4), height,
      math.max(width, 0.4)))
  end)
  for _, kind in ipairs(text.keys(paths)) do
    parts[#parts + 1] = ('<path class="%s" d="%s"/>'):format(kind, table.concat(paths[kind]))
  end
end

local function gantt(answer, rows)
  local drawn, by, blocks = math.min(#rows, most_drawn), {}, 0
  for i = 1, drawn do by[rows[i].key] = { compute = {}, wire = {} } end
  for _, event in ipairs(answer.events) do
    local lanes = by[key_of(answer.plan, event)]
    if lanes then
      blocks = blocks + 1
      table.insert(on_wire[event.kind] and lanes.wire or lanes.compute, event)
    end
  end
  local dense = drawn > most_rows / 2 or blocks > 6000
  local left, width, row_height = dense and 250 or 156, dense and 858 or 952, dense and 19 or 36
  local total = answer.report.step_seconds
  local scale = width / total
  local height = 26 + drawn * row_height + 8
  local parts = { ('<svg viewBox="0 0 %d %d" role="img" aria-label="One step, device by device">'):format(
    left + width + 12, height) }
  for tick = 0, 5 do
    local x = left + width * tick / 5
    parts[#parts + 1] = ('<line class="grid" x1="%.1f" x2="%.1f" y1="18" y2="%d"/><text class="soft" x="%.1f" y="12" '
      .. 'text-anchor="%s">%s</text>'):format(x, x, height, x, tick == 5 and "end" or tick == 0 and "start" or "middle",
        escape(native.show_seconds(total * tick / 5)))
  end
  for i = 1, drawn do
    local row, top = rows[i], 22 + (i - 1) * row_height
    local lanes = by[row.key]
    local name, whose = escape(joined(row.names)), escape(("%s, %s"):format(row.device.type, pipelines_of(row)))
    parts[#parts + 1] = ('<g class="row"><rect class="pipeline" style="%s" x="0" y="%d" width="4" height="%d" rx="2"/>')
      :format(hue(row.pipeline), top + 3, row_height - 10)
    if dense then
      parts[#parts + 1] = ('<text x="10" y="%d">%s <tspan class="soft">%s</tspan></text>'):format(top + 12, name, whose)
    else
      parts[#parts + 1] = ('<text x="10" y="%d">%s</text><text class="soft" x="10" y="%d">%s</text>'):format(top + 13,
        name, top + 27, whose)
    end
    local draw = dense and dense_lane or lane
    draw(lanes.compute, scale, left, top + 3, dense and 10 or 18, parts)
    draw(lanes.wire, scale, left, top + (dense and 14 or 23), dense and 3 or 6, parts)
    parts[#parts + 1] = "</g>"
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

-- What is said above the rows: that pipelines share them, that there are more.
local function about_rows(rows)
  local shared, words = false, {}
  for _, row in ipairs(rows) do shared = shared or #row.pipelines > 1 end
  if shared then words[1] = " Pipelines that are alike share their rows, which show the first of them." end
  if #rows > most_drawn then
    words[#words + 1] = (" %d more rows are not drawn; --json has all."):format(#rows - most_drawn)
  end
  return table.concat(words)
end

local function figures(report)
  local list = {
    { native.show_seconds(report.step_seconds), "a step" },
    { native.show_seconds(report.exposed_seconds), "exposed communication" },
  }
  if report.bubble then   -- a simulation of layers
    table.insert(list, 2, { text.count(report.tokens_per_second), report.unit .. " a second" })
    table.insert(list, 3, { ("%.1f %%"):format(100 * report.bubble), "idle, of all devices" })
    list[#list + 1] = { ("%.1f %%"):format(100 * report.gap), "above what no plan can beat" }
  end
  if (report.price_per_hour or 0) > 0 then
    list[#list + 1] = { ("%.2f"):format(report.price_per_hour), "an hour" }
    list[#list + 1] = { ("%.2f"):format(report.price_per_billion_tokens), "for a billion " .. report.unit }
  end
  local parts = {}
  for _, each in ipairs(list) do
    parts[#parts + 1] = ('<div class="figure"><b>%s</b><span>%s</span></div>'):format(escape(each[1]), each[2])
  end
  return '<div class="figures">' .. table.concat(parts) .. "</div>"
end

-- What is hardly meant as it was asked.
local function notes(answer)
  local parts = {}
  for i, note in ipairs(answer.notes or {}) do parts[i] = ('<p class="note">Note: %s.</p>'):format(escape(note)) end
  return table.concat(parts)
end

local function rate(bytes_per_second) return text.count(bytes_per_second) .. "B/s" end

-- A machine with its devices: `at` says for each device's name where it is in the plan.
local function host_box(node, name, at, many)
  local chips, words = {}, {}
  for device = 0, node.devices - 1 do
    local full = ("%s:%d"):format(name, device)
    local place = at[full]
    chips[#chips + 1] = place and ('<i style="%s" title="%s, stage %d">%d</i>'):format(hue(place.pipeline),
      escape(full), place.stage, place.pipeline) or ('<i class="idle" title="%s, not used"></i>'):format(escape(full))
  end
  if node.devices > 1 then words[#words + 1] = rate(node.inside.bandwidth) .. " inside" end
  if node.price_per_hour > 0 then words[#words + 1] = ("%.2f an hour"):format(node.price_per_hour) end
  if node.preemptions_per_hour > 0 then
    words[#words + 1] = ("%.3g preemptions an hour"):format(node.preemptions_per_hour)
  end
  local kind = ("%d x %s, %s"):format(node.devices, node.type, text.bytes(node.memory_bytes))
  local more = escape(table.concat(words, ", "))
  if many then
    return ('<div class="host" title="%s; %s"><b>%s</b> <span class="soft">%s</span><div class="chips">%s</div></div>')
      :format(escape(kind), more, escape(name), escape(node.type), table.concat(chips))
  end
  return ('<div class="host"><b>%s</b> <span class="soft">%s</span><div class="chips">%s</div><p>%s</p></div>'):format(
    escape(name), escape(kind), table.concat(chips), more)
end

local sources = { measured = "measured", stated = "as the cluster states it", assumed = "assumed: not stated" }
local most_links = 40

local function zone_name(zone) return zone == "" and "no zone" or zone end

-- Links between machines, each a line as thick as it is fast.
local function links(answer, zones)
  local parts, list = {}, {}
  local function add(from, to, link, source)
    list[#list + 1] = { from = from, to = to, link = link, source = source }
  end
  -- Two zones, or several machines of one, that have no link of their own take the cluster's.
  local several, left = {}, #zones * (#zones - 1) / 2
  for _, zone in ipairs(zones) do
    several[zone.name] = #zone.hosts > 1
    if several[zone.name] then left = left + 1 end
  end
  for _, link in ipairs(answer.report.links or {}) do
    add(zone_name(link.from), zone_name(link.to), link, link.source)
    if link.from ~= link.to or several[link.from] then left = left - 1 end
  end
  local between = answer.cluster.between
  if left > 0 then
    add(#list == 0 and "any machine" or "any other", #list == 0 and "any machine" or "any other", between, "stated")
  end
  for i = 1, math.min(#list, most_links) do
    local each = list[i]
    local gbits = each.link.bandwidth * 8 / 1e9
    parts[#parts + 1] = ('<span>%s</span><hr style="height:%.1fpx"><span>%s</span><b>%s</b>'
      .. '<span class="soft">%s, %s</span>'):format(escape(each.from),
        math.max(1, math.min(8, 2 + 2 * math.log10(math.max(gbits, 0.1)))), escape(each.to),
        escape(native.show_bandwidth(each.link.bandwidth)), escape(native.show_seconds(each.link.latency)),
        sources[each.source])
  end
  local more = #list > most_links and ("<p>and %d more links</p>"):format(#list - most_links) or ""
  return #list > 0 and ('<div class="links">%s</div>%s'):format(table.concat(parts), more) or ""
end

local function cluster(answer)
  local at, zones, by_zone, hosts = {}, {}, {}, 0
  for _, device in ipairs(answer.report.devices) do at[device.device] = device end
  for _, node in ipairs(answer.cluster.nodes) do
    if not by_zone[node.zone] then
      by_zone[node.zone] = { name = node.zone, hosts = {} }
      zones[#zones + 1] = by_zone[node.zone]
    end
    for _, name in ipairs(node.hosts) do
      hosts = hosts + 1
      table.insert(by_zone[node.zone].hosts, { node, name })
    end
  end
  local many, parts = hosts > 24, {}
  for _, zone in ipairs(zones) do
    local boxes = {}
    for i, host in ipairs(zone.hosts) do boxes[i] = host_box(host[1], host[2], at, many) end
    local inner = ('<div class="hosts%s">%s</div>'):format(many and " many" or "", table.concat(boxes, "\n"))
    parts[#parts + 1] = #zones == 1 and zone.name == "" and inner
      or ('<div class="zone"><h3>%s</h3>%s</div>'):format(escape(zone_name(zone.name)), inner)
  end
  local key, count = {}, #answer.plan.pipelines
  for p = 1, count <= 12 and count or 0 do
    key[p] = ('<span><i style="%s"></i>pipeline %d</span>'):format(hue(p), p)
  end
  if count > 12 then key[1] = "<span>a colour and a number for each pipeline</span>" end
  if #answer.report.idle > 0 then key[#key + 1] = '<span><i class="idle"></i>not used</span>' end
  return ('%s<div class="key">%s</div>%s'):format(table.concat(parts), table.concat(key), links(answer, zones))
end

-- The layers of a device, and which of them it computes again.
local function layers_of(answer, device)
  local named, again = {}, {}
  for i, chunk in ipairs(device.chunks) do
    local first, last = answer.model.layers[chunk.first_layer + 1].name,
      answer.model.layers[chunk.first_layer + chunk.layers].name
    named[i] = first == last and first or first .. " to " .. last
    if chunk.recompute then again[#again + 1] = named[i] end
  end
  local recomputes = #again == 0 and "" or #again == #named and "recomputes; "
    or ("recomputes %s; "):format(table.concat(again, ", "))
  return table.concat(named, ", "), recomputes
end

local function devices(answer, rows)
  local parts = { "<table><thead><tr><th>device</th><th>layers</th><th>memory</th><th></th><th>busy</th><th>why</th>"
    .. "</tr></thead><tbody>" }
  for i = 1, math.min(#rows, most_drawn) do
    local row = rows[i]
    local d = row.device
    local whole = d.memory_bytes + d.free_bytes
    local share = math.max(0, math.min(1, d.memory_bytes / whole))
    local layers, recomputes = layers_of(answer, d)
    parts[#parts + 1] = ('<tr><td>%s<br><span class="soft">%s%s</span></td><td>%s</td>'
      .. '<td class="number">%s<br><span class="soft">of %s</span></td>'
      .. '<td><div class="bar"><div style="width: %.1f%%%s"></div></div></td><td class="number">%.0f %%</td>'
      .. '<td>%s%s</td></tr>')
      :format(escape(joined(row.names)), escape(d.type),
        #row.pipelines > 1 and ", " .. escape(pipelines_of(row)) or "", escape(layers),
        escape(text.bytes(d.memory_bytes)), escape(text.bytes(whole)), 100 * share,
        d.free_bytes < 0 and "; background: var(--over)" or "", 100 * d.busy_share, escape(recomputes), escape(d.why))
  end
  parts[#parts + 1] = "</tbody></table>"
  if #rows > most_drawn then parts[#parts + 1] = ("<p>and %d more rows</p>"):format(#rows - most_drawn) end
  local idle = answer.report.idle
  if #idle > 0 then
    parts[#parts + 1] = ("<p>Not used: %s</p>"):format(#idle > most_rows and #idle .. " devices, grey in the cluster"
      or escape(joined(idle)))
  end
  return table.concat(parts)
end

-- With an old plan: what changing to this one moves, and where to.
local function moves(answer)
  local moved = answer.report.moved
  if not moved then return "" end
  if moved.bytes <= 0 then
    return "\n<h2>Changing to it</h2>\n<p>No state moves: every device holds what it needs.</p>\n"
  end
  local unavailable = moved.unavailable_bytes > 0
    and ("; %s of it are held by no device that is left, a snapshot must have them")
      :format(escape(text.bytes(moved.unavailable_bytes))) or ""
  local most, parts = 0, {}
  for _, device in ipairs(moved.devices) do most = math.max(most, device.weight_bytes + device.optimizer_bytes) end
  for i = 1, math.min(#moved.devices, most_rows) do
    local device = moved.devices[i]
    local bytes = device.weight_bytes + device.optimizer_bytes
    parts[i] = ('<tr><td>%s</td><td class="number">%s</td><td style="width: 72%%"><div class="bar">'
      .. '<div style="width: %.1f%%"></div></div></td></tr>')
      :format(escape(device.device), escape(text.bytes(bytes)), 100 * bytes / most)
  end
  if #moved.devices > most_rows then
    parts[#parts + 1] = ('<tr><td colspan="3">and %d more</td></tr>'):format(#moved.devices - most_rows)
  end
  return ("\n<h2>Changing to it</h2>\n<p>%s of state move%s%s.</p>\n<table><thead><tr><th>to</th><th>weights and "
    .. "optimizer state</th><th></th></tr></thead><tbody>%s</tbody></table>\n"):format(escape(text.bytes(moved.bytes)),
      moved.bytes > moved.unavailable_bytes and " in " .. escape(native.show_seconds(moved.seconds)) or "",
      unavailable,
      table.concat(parts))
end

-- The plans that were made ahead.
local function fallbacks(answer)
  if not answer.fallbacks then return "" end
  local parts = {}
  for i, fallback in ipairs(answer.fallbacks) do
    local rest
    if fallback.feasible then
      local moved = fallback.report.moved
      rest = ('<td class="number">%s</td><td class="number">%+.1f %%</td><td>%s%s%s</td>'):format(
        escape(native.show_seconds(fallback.report.step_seconds)),
        100 * (fallback.report.step_seconds / answer.report.step_seconds - 1),
        escape(text.bytes(moved.bytes - moved.unavailable_bytes)), " in " .. escape(native.show_seconds(moved.seconds)),
        moved.unavailable_bytes > 0
          and (", and %s from a snapshot"):format(escape(text.bytes(moved.unavailable_bytes))) or "")
    else
      rest = ('<td colspan="3">no plan: %s</td>'):format(escape(table.concat(fallback.problems, "; ")))
    end
    parts[i] = ('<tr><td>%s</td><td class="number">%.3g</td>%s</tr>'):format(escape(fallback.lost),
      fallback.preemptions_per_hour, rest)
  end
  return "\n<h2>After a loss</h2>\n<p>Plans made ahead for the likeliest losses.</p>\n<table><thead><tr><th>lost</th>"
    .. "<th>preemptions an hour</th><th>step</th><th></th><th>to move</th></tr></thead><tbody>" .. table.concat(parts)
    .. "</tbody></table>\n"
end

-- Of a synthesised program: what it runs and exchanges, what it was compared with, and the bound.
local function program(answer)
  if not answer.program_text then return "" end
  return ("\n<h2>The program</h2>\n<pre>%s</pre>\n"):format(escape(answer.program_text))
end

-- Where the seconds come from.
local function times_of(report)
  if not report.layers_measured then return "Simulated from the programs of all ranks, instruction by instruction." end
  local calibrated = {}
  for _, source in ipairs(report.sources) do
    if source.layers_calibrated > 0 then
      calibrated[#calibrated + 1] = (", %d of %s from its data sheet calibrated by %s"):format(source.layers_calibrated,
        source.type, source.calibrated_by)
    end
  end
  return ("Layer times: %d measured, %d interpolated, %d extrapolated%s, %d estimated from data sheets."):format(
    report.layers_measured, report.layers_interpolated, report.layers_extrapolated, table.concat(calibrated),
    report.layers_estimated)
end

--- The page.
-- @string title
-- @tparam table answer what native.plan or native.simulate_programs gives, with events
function page.html(title, answer)
  local report, model = answer.report, answer.model
  local rows = rows_of(answer)
  local parts = {
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
    ("<title>%s</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n"):format(escape(title), style),
    ("<h1>%s</h1>\n<p>%s: %s parameters in %d layers, %s. %s</p>\n"):format(escape(title), escape(model.name),
      escape(text.count(model.parameters)), #model.layers, escape(model.precision), times_of(report)),
    figures(report), notes(answer), parts_of_step.html(report, escape),
    "\n<h2>Cluster</h2>\n", cluster(answer),
    "\n<h2>One step</h2>\n<p>Compute above, communication below it, on each device.", about_rows(rows), "</p>\n",
    gantt(answer, rows),
    "\n<h2>Devices</h2>\n", devices(answer, rows), moves(answer), fallbacks(answer), program(answer),
    "\n<h2>The plan</h2>\n<p>For the recipe's <code>plan</code>.</p>\n<pre>", escape(answer.lua), "</pre>\n",
    "</main>\n</body>\n</html>\n",
  }
  return table.concat(parts)
end

return page
