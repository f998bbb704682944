--- Tensors of a model from a family's names and layouts to ours, and back.
local native = require "het.native"
local errors = require "het.errors"
local families = require "het.families"
local op = require "het.op"
local text = require "het.text"

local tensors = {}

local function list_of(names) return type(names) == "table" and names or { names } end

local function same_shape(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

--- Shapes of a model's parameters by name.
function tensors.shapes_of(model)
  local shapes = {}
  model:walk(function(inner, path)
    for _, parameter in ipairs(inner:own_parameters()) do
      if not parameter.beside then shapes[path == "" and parameter[1] or path .. "." .. parameter[1]] = parameter[2] end
    end
  end)
  return shapes
end

--- Are two lists of sizes equal?
tensors.same_shape = same_shape

-- A tensor of a checkpoint by its name, also where that differs as the family says; and the name that it has.
local function find(stored, name, alternatives)
  if stored[name] then return stored[name], name end
  for _, alternative in ipairs(alternatives or {}) do
    local other = name:gsub(alternative[1], alternative[2])
    if stored[other] then return stored[other], other end
  end
end

local function head_size(a) return a.head_size or a.width / a.heads end

-- Rows of a head's queries, keys and values, one after the other, as all queries, all keys and all values: of each
-- head the first row, and how many there are.
local function parts_by_head(a)
  local d, parts = head_size(a), {}
  for part = 0, 2 do
    for head = 0, a.heads - 1 do parts[#parts + 1] = { (3 * head + part) * d, d } end
  end
  return parts
end

-- Rows of a stored tensor in theirs' order, head by head, in ours.
local function from_heads(a, stored)
  local rows = {}
  for i, part in ipairs(parts_by_head(a)) do rows[i] = stored:rows(part[1], part[2]) end
  return native.stored_joined(rows)
end

-- The tensor of one of our names, of `found`, theirs.
local function ours_of(row, a, found)
  if row.transpose then return found[1]:transposed() end
  if not row.by_heads then
    local joined = native.stored_joined(found)
    if not row.experts then return joined end
    local shape = joined.shape
    return joined:reshaped { #found, shape[1] / #found, shape[2] }
  end
  return from_heads(a, found[1])
end

-- Of a family's tensor that has the rows of several of ours: the sizes of these.
local function sizes_of(names, shapes)
  local sizes, sum = {}, 0
  for i, name in ipairs(names) do
    sizes[i] = shapes[name][1]
    sum = sum + sizes[i]
  end
  return sizes, sum
end

-- Refuse weights of more layers than the model has: those of a configuration with too few.
local function refuse_more_layers(stored, used, folder)
  local last = {}   -- by how names of layers begin: the greatest number used
  local function numbered(name)
    local stem, number = name:match "^(.-%.)(%d+)%."
    return stem, tonumber(number)
  end
  for name in pairs(used) do
    local stem, number = numbered(name)
    if stem then last[stem] = math.max(last[stem] or 0, number) end
  end
  for _, name in ipairs(text.keys(stored)) do
    local stem, number = numbered(name)
    if stem and last[stem] and number > last[stem] then
      errors.usage("%s holds '%s', but config.json says %d layer%s", folder, name, last[stem] + 1,
        last[stem] == 0 and "" or "s")
    end
  end
end

-- Tensors that say nothing beside the configuration and the other weights: masks, positions and frequencies that older
-- versions of transformers saved, and a classifier that is the table of tokens.
local function is_no_weight(name, a)
  for _, pattern in ipairs { "inv_freq$", "masked_bias$", "position_ids$", "%.attn%.bias$", "%.attention%.bias$" } do
    if name:find(pattern) then return true end
  end
  return a.tied ~= false and (name:find "^lm_head%." or name:find "%.decoder%.") ~= nil
end

--- Their tensors under our names.
-- @tparam table family
-- @param model the description
-- @tparam table stored theirs by name
-- @string folder for messages
-- @tparam function set_initial called with the name and the stored tensor of each parameter
-- @treturn {string,...} their names of weights that the model has no place for
function tensors.read(family, model, stored, folder, set_initial)
  local a, shapes, used = model.arguments, tensors.shapes_of(model), {}
  for _, row in ipairs(families.rows(family, a)) do
    for _, name in ipairs(row.zeros and list_of(row[1]) or {}) do used[name] = true end
    if not row.zeros then
      local theirs, ours, found = list_of(row[1]), list_of(row[2]), {}
      for i, name in ipairs(theirs) do
        used[name] = true
        local has
        found[i], has = find(stored, name, family.alternatives)
        used[has or name] = true
        if not found[i] then
          errors.usage("%s holds no tensor '%s', which its config.json calls for", folder, name)
        end
      end
      local function check(given, wanted)
        if not same_shape(given, wanted) then
          errors.usage("%s: '%s' gives %s for '%s', the model of %s needs %s", folder, theirs[1], text.shape(given),
            table.concat(ours, "' and '"), rawget(model, "folder") and "config.json" or "the recipe",
            text.shape(wanted))
        end
      end
      if #ours == 1 then
        local wanted = shapes[ours[1]]
        if row.by_heads and found[1].shape[1] ~= wanted[1] then check(found[1].shape, wanted) end
        local tensor = ours_of(row, a, found)
        check(tensor.shape, wanted)
        set_initial(ours[1], tensor)
      else
        local sizes, sum = sizes_of(ours, shapes)
        local wanted = { unpack(shapes[ours[1]]) }
        wanted[1] = sum
        check(found[1].shape, wanted)
        local first = 0
        for i, name in ipairs(ours) do
          set_initial(name, found[1]:rows(first, sizes[i]))
          first = first + sizes[i]
        end
      end
    end
  end
  refuse_more_layers(stored, used, folder)
  local left = {}
  for _, name in ipairs(text.keys(stored)) do
    if not used[name] and not is_no_weight(name, a) then left[#left + 1] = name end
  end
  return left
end

-- Parts of a tensor's rows, in this order.
local function rows_of(tensor, parts)
  local list = {}
  for i, part in ipairs(parts) do list[i] = op.slice(tensor, { dim = 0, start = part[1], length = part[2] }) end
  list[#list + 1] = { dim = 0 }
  return (op.concat(unpack(list)))
end

-- Rows of a tensor in our order as theirs, head by head.
local function to_heads(a, tensor)
  local d, parts = head_size(a), {}
  for head = 0, a.heads - 1 do
    for part = 0, 2 do parts[#parts + 1] = { (part * a.heads + head) * d, d } end
  end
  return rows_of(tensor, parts)
end

--- Rows of queries, keys and values: all of one kind after the other (ours), and those of one head after the other
-- (theirs, of `by_heads`). `a`: the model's arguments.
tensors.from_heads, tensors.to_heads = from_heads, to_heads

--- Our tensors under their names.
-- @tparam table family
-- @param model the description
-- @param state what has read(name)
function tensors.written(family, model, state)
  local a, shapes, result = model.arguments, tensors.shapes_of(model), {}
  for _, row in ipairs(families.rows(family, a)) do
    local theirs, ours = list_of(row[1]), list_of(row[2])
    if row.zeros then
      local weight = shapes[(ours[1]:gsub("%.bias$", ".weight"))]
      result[theirs[1]] = native.full({ weight[1] }, 0, "f32")
    elseif row.experts then
      local tensor = state:read(ours[1])
      for i, name in ipairs(theirs) do
        local part = op.slice(tensor, { dim = 0, start = i - 1, length = 1 })
        result[name] = op.reshape(part, { shape = { tensor.shape[2], tensor.shape[3] } })
      end
    elseif #theirs > 1 then
      local d, kv_heads = head_size(a), a.kv_heads or a.heads
      local parts = { op.split(state:read(ours[1]), { dim = 0, sizes = { a.heads * d, kv_heads * d, kv_heads * d } }) }
      for i, name in ipairs(theirs) do result[name] = parts[i] end
    elseif #ours > 1 then
      local parts = {}
      for i, name in ipairs(ours) do parts[i] = state:read(name) end
      parts[#parts + 1] = { dim = 0 }
      result[theirs[1]] = op.concat(unpack(parts))
    else
      local tensor = state:read(ours[1])
      if row.transpose then tensor = op.transpose(tensor, { order = { 1, 0 } }) end
      if row.by_heads then tensor = to_heads(a, tensor) end
      result[theirs[1]] = tensor
    end
  end
  return result
end

return tensors
