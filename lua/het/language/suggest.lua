--- The nearest thing that would have worked: names by edit distance, numbers by the rule that was broken.
local errors = require "het.errors"
local text = require "het.text"

local suggest = {}

--- Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
function suggest.distance(a, b)
  local before, last = {}, {}
  for j = 0, #b do last[j] = j end
  for i = 1, #a do
    local row = { [0] = i }
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      row[j] = math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        row[j] = math.min(row[j], before[j - 2] + 1)
      end
    end
    before, last = last, row
  end
  return last[#b]
end

--- The candidate most like `name`, or nil when none is near enough to be meant. Of equals the first by the alphabet,
-- so that all ranks of a run say the same.
-- @string name what was given
-- @tparam {string,...} candidates
function suggest.name(name, candidates)
  local best, least
  for _, candidate in ipairs(candidates) do
    local edits = suggest.distance(name:lower(), candidate:lower())
    if candidate:sub(1, #name) == name and #name > 1 then edits = math.min(edits, 1) end
    if not least or edits < least or (edits == least and candidate < best) then best, least = candidate, edits end
  end
  if best and least <= math.max(1, math.floor(math.max(#name, #best) / 3)) then return best end
end

-- A longer list is not read.
local most_listed = 16

--- "; did you mean 'x'?", or the list of what there is; of a long one the nearest.
function suggest.sentence(name, candidates)
  local near = suggest.name(name, candidates)
  if near then return ("; did you mean '%s'?"):format(near) end
  if #candidates == 0 then return "" end
  if #candidates <= most_listed then return "; there are " .. table.concat(candidates, ", ") end
  local nearest, edits = {}, {}
  for i, candidate in ipairs(candidates) do
    nearest[i], edits[candidate] = candidate, suggest.distance(name:lower(), candidate:lower())
  end
  table.sort(nearest, function(a, b)
    if edits[a] ~= edits[b] then return edits[a] < edits[b] end
    return a < b
  end)
  return "; the nearest are " .. table.concat(nearest, ", ", 1, 5)
end

--- A table whose missing names are errors with the nearest one.
-- @string path how recipes call it: "het.optim"
function suggest.module(path, module)
  return setmetatable(module, {
    __index = function(_, name)
      errors.usage("%s has no '%s'%s", path, tostring(name), suggest.sentence(tostring(name), text.keys(module)))
    end,
  })
end

--- Divisors of `whole` on either side of `value`, as text: "8, 12".
function suggest.divisors(whole, value)
  local below, above
  local function look_at(d)
    if d < value then below = math.max(below or d, d) end
    if d > value then above = math.min(above or d, d) end
  end
  for d = 1, math.min(math.sqrt(whole), 1e7) do   -- of greater numbers the divisors that are found soon
    if whole % d == 0 then
      look_at(d)
      look_at(whole / d)
    end
  end
  if below and above then return ("%.17g, %.17g"):format(below, above) end
  return ("%.17g"):format(below or above)
end

return suggest
