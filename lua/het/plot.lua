--- `het.plot`: curves drawn with characters, for a terminal.
local define = require "het.language.define"

local marks = { "o", "-", "+", "x", "~", "^" }   -- of the curves in turn
local both = "*"

-- The curves' values by column: of those that share one, the mean. Columns between two values have none.
local function columns_of(values, count, width)
  local sums, counts = {}, {}
  for i, value in ipairs(values) do
    if value - value == 0 then
      local column = count == 1 and 1 or 1 + math.floor((i - 1) / (count - 1) * (width - 1) + 0.5)
      sums[column], counts[column] = (sums[column] or 0) + value, (counts[column] or 0) + 1
    end
  end
  local means = {}
  for column, sum in pairs(sums) do means[column] = sum / counts[column] end
  return means
end

-- A number for an axis, as wide as others.
local function label(value) return ("%9.4g"):format(value) end

local function draw(a)
  local count, curves, least, most = 1, {}, math.huge, -math.huge
  for _, curve in ipairs(a) do count = math.max(count, #curve[2]) end
  local width = math.min(a.width, math.max(2, count))
  for i, curve in ipairs(a) do
    curves[i] = columns_of(curve[2], count, width)
    for _, value in pairs(curves[i]) do least, most = math.min(least, value), math.max(most, value) end
  end
  if least > most then least, most = 0, 0 end
  local rows = {}
  for row = 1, a.height do rows[row] = {} end
  for i, columns in ipairs(curves) do
    for column, value in pairs(columns) do
      local row = most == least and 1 or 1 + math.floor((most - value) / (most - least) * (a.height - 1) + 0.5)
      rows[row][column] = rows[row][column] and both or marks[(i - 1) % #marks + 1]
    end
  end
  local lines = {}
  for row = 1, a.height do
    local cells = {}
    for column = 1, width do cells[column] = rows[row][column] or " " end
    local at = row == 1 and label(most) or row == a.height and most > least and label(least) or (" "):rep(#label(0))
    lines[row] = ("%s |%s"):format(at, (table.concat(cells):gsub("%s+$", "")))
  end
  local last = tostring(count)
  lines[#lines + 1] = (" "):rep(#label(0)) .. " +" .. ("-"):rep(width)
  local until_last = count == 1 and "" or (" "):rep(math.max(1, width - 1 - #last)) .. last
  lines[#lines + 1] = (" "):rep(#label(0) + 2) .. "1" .. until_last
  local names = {}
  for i, curve in ipairs(a) do names[i] = ("%s %s"):format(marks[(i - 1) % #marks + 1], curve[1]) end
  if #names > 1 then names[#names + 1] = both .. " together" end
  lines[#lines + 1] = (" "):rep(#label(0) + 2) .. table.concat(names, "   ")
  return table.concat(lines, "\n")
end

return define.constructor {
  name = "plot",
  sentence = "Curves drawn with characters, as a text: each is { name, list of numbers }.",
  example = 'print(het.plot { { "loss", { 4.1, 3.2, 2.9 } }, height = 8 })',
  list = { "table", "curves", least = 1 },
  fields = {
    { "width", "integer", "columns", default = 64, min = 2, max = 1000 },
    { "height", "integer", "rows", default = 12, min = 2, max = 200 },
  },
  check = function(a, report)
    for i, curve in ipairs(a) do
      local right = type(curve[1]) == "string" and type(curve[2]) == "table"
      for _, value in ipairs(right and curve[2] or {}) do right = right and type(value) == "number" end
      if not right then
        report(nil, ("plot: curve %d is no { name, list of numbers }, as { \"loss\", { 4.1, 3.2 } }"):format(i))
      end
    end
  end,
  build = draw,
}
