--- Operators return beside their result what only their gradient needs: op.layer_norm also the mean, op.cross_entropy
-- also the logarithm of a sum. A function of a recipe that ends with `return op.layer_norm(x)` returns these
-- statistics, and does not mean them.
local results = {}

-- By result of such an operator: { call =, at =, of = }, which call returned it as which of how many.
local marks = setmetatable({}, { __mode = "k" })
local calls = 0

--- Does an operator of this signature return statistics beside its result? What it returns as an index is none.
function results.are_statistics(signature)
  local right = signature:match "→(.*)$" or ""
  return right:gsub("%b[]", ""):find("[,]") ~= nil and not right:find "index" and not right:find "slot"
end

--- Remember what a call of such an operator returned; returns it.
function results.record(...)
  local count = select("#", ...)
  if count < 2 then return ... end
  calls = calls + 1
  for i = 1, count do
    local result = (select(i, ...))
    if result then marks[result] = { call = calls, at = i, of = count } end   -- false: it was not computed
  end
  return ...
end

-- Are these all results of one call, in their order?
local function are_of_one_call(...)
  local first = marks[(...)]
  if not first or first.of ~= select("#", ...) then return false end
  for i = 1, first.of do
    local result = (select(i, ...))
    local mark = result and marks[result]
    if result ~= false and (not mark or mark.call ~= first.call or mark.at ~= i) then return false end
  end
  return true
end

--- How many of these results of a function of the recipe are meant: none behind the last that is not nil, and where
-- all are those of one operator, the first alone.
function results.count(...)
  local count = select("#", ...)
  while count > 1 and select(count, ...) == nil do count = count - 1 end
  if count > 1 and (...) and are_of_one_call(unpack({ ... }, 1, count)) then return 1 end
  return count
end

--- Those results.
function results.meant(...)
  if select("#", ...) < 2 then return ... end
  return unpack({ ... }, 1, results.count(...))
end

return results
