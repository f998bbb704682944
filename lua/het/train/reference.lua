--- The reference of a run: a frozen model whose output the recipe's loss gets beside that of the model that is trained.
-- It is either the base of a model with adapters (nn.lora), whose parameters it shares, or a model from a folder, whose
-- parameters stand in the state beside those of the model, under names that begin with `prefix`.
local builder = require "het.nn.builder"
local loader = require "het.model.load"

local reference = {}

local prefix = builder.reference_name .. "."

--- Whether the reference is the model without its adapters.
-- @tparam table a what has `model` and `reference`
function reference.is_shared(a)
  local lora = type(a.model) ~= "function" and rawget(a.model, "lora")
  return lora and rawequal(lora.base, a.reference) or false
end

--- Whether a parameter or a part of the state is the reference's alone.
function reference.has(name) return name:sub(1, #prefix) == prefix end

--- What a reference that shares no parameters begins with.
-- @tparam table a a run's arguments
-- @tparam function put put(name, stored tensor)
function reference.read(a, put)
  if not a.reference or reference.is_shared(a) then return end
  loader.set_initial_weights(a.reference.folder, a.reference, {
    set_initial = function(_, name, tensor) put(prefix .. name, tensor) end,
  })
end

--- A state without the reference's part, which is not saved: its folder has it.
-- @param state what has names() and read(name)
function reference.without(state)
  local names = {}
  for _, entry in ipairs(state:names()) do
    if not reference.has(entry.name) then names[#names + 1] = entry end
  end
  return { names = function() return names end, read = function(_, name) return state:read(name) end }
end

return reference
