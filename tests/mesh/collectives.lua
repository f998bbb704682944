-- Every collective against its definition, on every rank: what each rank has is a function of its number.
local het = require "het"
local options = het.options { first = { 2, "ranks along the first axis", min = 1 },
  second = { 2, "ranks along the second axis", min = 1 } }
local mesh = het.mesh { a = options.first, b = options.second }

-- Element (i, j) of what a rank has.
local function element(rank, i, j) return 100 * rank + 10 * i + j end
local function own(rank, rows, columns)
  local values = {}
  for i = 1, rows do
    values[i] = {}
    for j = 1, columns do values[i][j] = element(rank, i, j) end
  end
  return values
end
local function rank_at(a, b) return a * options.second + b end

local function flat(value, into)
  into = into or {}
  if type(value) ~= "table" then
    into[#into + 1] = value
  else
    for _, each in ipairs(value) do flat(each, into) end
  end
  return into
end
local checked = 0
local function check(what, tensor, wanted)
  local got, right = flat(tensor:tolist()), flat(wanted)
  if #got ~= #right then error(("%s: %d numbers, %d are right"):format(what, #got, #right)) end
  for i = 1, #right do
    if got[i] ~= right[i] then error(("%s: number %d is %g, %g is right"):format(what, i, got[i], right[i])) end
  end
  checked = checked + 1
end

for _, axis in ipairs { "a", "b" } do
  local here, count = mesh:coordinate(axis), mesh.axes[axis]
  local function peer(c)   -- the rank at coordinate c of this axis
    if axis == "a" then return rank_at(c, mesh:coordinate "b") end
    return rank_at(mesh:coordinate "a", c)
  end
  if peer(here) ~= mesh.rank then error "the last axis is the fastest" end
  local rows, columns = 5, 3
  local t = het.tensor(own(mesh.rank, rows, columns))

  local sum, most = own(peer(0), rows, columns), own(peer(count - 1), rows, columns)
  for c = 1, count - 1 do
    for i = 1, rows do
      for j = 1, columns do sum[i][j] = sum[i][j] + element(peer(c), i, j) end
    end
  end
  check("all_reduce", mesh:all_reduce(t, axis), sum)
  check("all_reduce max", mesh:all_reduce(t, axis, "max"), most)

  -- Sizes that differ along the dimension that is joined.
  local uneven = het.tensor(own(mesh.rank, here + 1, columns))
  local joined = {}
  for c = 0, count - 1 do
    for _, row in ipairs(own(peer(c), c + 1, columns)) do joined[#joined + 1] = row end
  end
  check("all_gather of rows", mesh:all_gather(uneven, axis, 0), joined)
  local wide = {}
  for i = 1, rows do
    wide[i] = {}
    for c = 0, count - 1 do
      for j = 1, columns do wide[i][#wide[i] + 1] = element(peer(c), i, j) end
    end
  end
  check("all_gather of columns", mesh:all_gather(t, axis, -1), wide)

  -- Rows cut 5 = 3 + 2, or all to the first.
  local first = math.ceil(rows / count)
  local shares, kept = {}, {}
  for c = 1, count do shares[c] = c == 1 and 1 or 0 end
  if here == 0 then kept = sum end
  check("reduce_scatter to one", mesh:reduce_scatter(t, axis, 0, shares), kept)
  if count <= 2 then
    local part = {}
    for i = here == 0 and 1 or first + 1, (here == 0 and count == 2) and first or rows do part[#part + 1] = sum[i] end
    check("reduce_scatter", mesh:reduce_scatter(t, axis, 0), part)
    local exchanged = {}
    for c = 0, count - 1 do
      local theirs = own(peer(c), rows, columns)
      for i = here == 0 and 1 or first + 1, (here == 0 and count == 2) and first or rows do
        exchanged[#exchanged + 1] = theirs[i]
      end
    end
    check("all_to_all", mesh:all_to_all(t, axis, 0, 0), exchanged)
  end
  for c = 0, count - 1 do
    check("broadcast", mesh:broadcast(t, axis, c), own(peer(c), rows, columns))
    local moved = mesh:transfer(t, axis, c, count - 1 - c)
    if here == count - 1 - c then
      check("transfer", moved, own(peer(c), rows, columns))
    elseif moved then
      error "transfer: a rank that takes no part got something"
    end
  end
  mesh:barrier()
end
print(("%d checks on rank %d"):format(checked, mesh.rank))
