--- The nearest thing that would have worked: names by edit distance, numbers by the rule that was broken.
local native = require "het.native"
local errors = require "het.errors"
local text = require "het.text"

local suggest = {}

-- A longer list is not read.
local most_listed = 16

--- "; did you mean 'x'?", or the list of what there is; of a long one how to see it.
-- @string[opt] listing what lists all of them: "?op"
function suggest.sentence(name, candidates, listing)
  local near = native.nearest(name, candidates)
  if near then return ("; did you mean '%s'?"):format(near) end
  if #candidates == 0 then return "" end
  if #candidates > most_listed then return listing and ("; `%s` at the prompt lists all"):format(listing) or "" end
  return "; there are " .. table.concat(candidates, ", ")
end

--- A table whose missing names are errors with the nearest one.
-- @string path how recipes call it: "het.optim"
function suggest.module(path, module)
  return setmetatable(module, {
    __index = function(_, name)
      errors.usage("%s has no '%s'%s", path, tostring(name),
        suggest.sentence(tostring(name), text.keys(module), "?" .. path:gsub("^het%.", "")))
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
