--- Low-rank adapters (LoRA, Hu et al. 2022) of linear layers: y = W x + b + scale · B A x. A description has them as
-- `adapters`, a table by part: "" of a linear layer, "q", "k" and "v" of an attention whose projections are one layer.
-- Each is { rank, scale, dropout, inputs, outputs, beside, experts }; `beside`: its A is that of the layer of this name
-- beside it; `experts`: of "side", "up" and "down" of nn.experts, how many have one each; `shares`: its A is that of
-- this part of the layer.
local op = require "het.op"

local adapter = {}

local parts = { "", "q", "k", "v", "side", "up", "down" }

local function name_of(part, which) return part == "" and which or part .. "." .. which end

--- Names of the parameters of a part: of A and of B.
-- @string part
-- @string[opt] shares the part whose A it has (default: `part`)
function adapter.names(part, shares) return name_of(shares or part, "lora_a"), name_of(part, "lora_b") end

--- The name in a file of the layer, or of the fused parameter, that a place (het.nn.lora) is part of; of experts with
-- "*" for the number.
function adapter.name_in_file(place) return place.in_fused and place.fused or place.names[1] end

--- The names in a model of the parameters of a place's adapter (het.nn.lora): of A and of B.
-- @tparam table place { path, part, beside =, shares = }
function adapter.parameters_of(place)
  local a, b = adapter.names(place.part, place.shares)
  local at = place.beside and place.path:gsub("[^.]+$", place.beside) or place.path
  local function under(path, name) return path == "" and name or path .. "." .. name end
  return under(at, a), under(place.path, b)
end

--- Parameters of a layer, and those of its adapters. A begins as PEFT has it, B as zeros.
function adapter.with_parameters(list, adapters)
  for _, part in ipairs(parts) do
    local own = adapters[part]
    if own then
      local a, b = adapter.names(part)
      local shape_a, shape_b = { own.rank, own.inputs }, { own.outputs, own.rank }
      local stacked = own.experts ~= nil
      if stacked then
        table.insert(shape_a, 1, own.experts)
        table.insert(shape_b, 1, own.experts)
      end
      if not own.shares then
        list[#list + 1] = { a, shape_a, init = { kind = "uniform", scale = 1 / math.sqrt(own.inputs) },
          beside = own.beside, tied = own.beside ~= nil or nil, stacked = stacked }
      end
      list[#list + 1] = { b, shape_b, init = "zeros", stacked = stacked }
    end
  end
  return list
end

--- y, what a part gives for x, and what its adapter adds.
-- @param self the bound layer
-- @string part
-- @param x what comes in
-- @param y what goes out without the adapter
function adapter.add(self, part, x, y)
  local own = self.adapters and self.adapters[part]
  if not own then return y end
  local a, b = adapter.names(part, own.shares)
  x = self.builder:dropout(x, own.dropout)
  if own.experts then   -- [experts, rows, features] by [experts, outputs, features]
    local h = op.matmul(x, self[a], { transpose_b = true })
    return (op.add(y, op.matmul(op.scale(h, { factor = own.scale }), self[b], { transpose_b = true })))
  end
  local h = op.linear(x, self[a], false)
  return (op.add(y, op.linear(op.scale(h, { factor = own.scale }), self[b], false)))
end

--- What the tree says of them.
function adapter.show(adapters)
  local shown = {}
  for _, part in ipairs(parts) do
    if adapters[part] then shown[#shown + 1] = (part == "" and "" or part .. " ") .. "rank " .. adapters[part].rank end
  end
  return ", adapters of " .. table.concat(shown, ", ")
end

return adapter
