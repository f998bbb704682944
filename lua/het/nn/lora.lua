--- Models that are trained in part: nn.frozen, and nn.lora with low-rank adapters (het.nn.adapter) of linear layers.
local define = require "het.language.define"
local errors = require "het.errors"
local families = require "het.families"
local layer_adapter = require "het.nn.adapter"
local suggest = require "het.language.suggest"
local text = require "het.text"

local lora = {}

local name_in_file = layer_adapter.name_in_file

local function freeze(copy) copy.frozen = true end

--- nn.frozen(layer)
lora.frozen = define.constructor {
  name = "nn.frozen",
  sentence = "The same layer, whose parameters are not trained: they have no gradient and no state of the optimizer.",
  example = "nn.sequential { nn.frozen(nn.linear(64, 64)), nn.gelu(), nn.linear(64, 8) }",
  kind = "layer", positional = 1,
  fields = { { "layer", "model", "the layer", required = true } },
  build = function(a) return a.layer:copied(freeze) end,
}

-- The layers of a model by path.
local function layers_of(model)
  local found = {}
  model:walk(function(inner, path) found[path] = inner end)
  return found
end

local function is_linear(inner) return inner ~= nil and inner.class.name == "nn.linear" end

-- A linear layer, or part of one, that may have an adapter: { path, part, inputs, outputs, names = { theirs, ours } };
-- `classifier` of the one that gives logits; `experts`: how many have one each; names have "*" for their number.
local function place_of(path, inner, theirs, part)
  return { path = path, part = part or "", inputs = inner.arguments.inputs, outputs = inner.arguments.outputs,
    names = { theirs or path, path } }
end

-- The place of a part of nn.experts: "side", "up" or "down". A family's also has `fused`, the name of the parameter
-- that transformers has it in since version 5, with those of all experts.
local function place_of_experts(path, inner, theirs, part)
  local a = inner.arguments
  local width, hidden = a.width, a.hidden or 4 * a.width
  local ours = path == "" and part or path .. "." .. part
  return { path = path, part = part, experts = a.experts, inputs = part == "down" and hidden or width,
    outputs = part == "down" and width or hidden, names = { theirs or ours, ours } }
end

local function without_weight(name) return (name:gsub("%.weight$", "")) end

-- Places of the layers that a family stores, under their names.
local function places_of_family(family, model)
  local a, layers, places = model.arguments, layers_of(model), {}
  local function push(place) places[#places + 1] = place end
  for _, row in ipairs(families.rows(family, a)) do
    local theirs, ours = row[1], row[2]
    if type(theirs) == "string" and type(ours) == "string" then
      local path = without_weight(ours)
      if theirs:find "%.weight$" and is_linear(layers[path]) then
        local place = place_of(path, layers[path], without_weight(theirs))
        place.by_heads, place.classifier = row.by_heads, path == "head"
        push(place)
      end
    elseif row.experts then
      local path, part = ours:match "^(.*)%.([^.]+)$"
      local name = without_weight(theirs[1]):gsub("experts%.0%.", "experts.*.")
      local place = place_of_experts(path, layers[path], name, part)
      place.fused = name:gsub("[^.]+%.experts%..*$", "mlp.experts.")
        .. (part == "down" and "down_proj" or "gate_up_proj")
      push(place)
    elseif type(theirs) == "table" and theirs[1]:find "%.weight$" then   -- queries, keys, values
      local path = without_weight(ours):match "^(.*)%.qkv$"
      local s = layers[path].arguments
      local d = s.head_size or s.width / s.heads
      for i, part in ipairs { "q", "k", "v" } do
        push { path = path, part = part, inputs = s.width, outputs = (i == 1 and s.heads or s.kv_heads or s.heads) * d,
          names = { without_weight(theirs[i]), path .. "." .. part } }
      end
    elseif type(ours) == "table" and ours[1]:find "%.weight$" then   -- theirs is several of ours
      local first = 0
      for i, name in ipairs(ours) do
        local path = without_weight(name)
        local place = place_of(path, layers[path], without_weight(theirs))
        place.first, place.beside = first, i > 1 and without_weight(ours[1]):match "[^.]+$" or nil
        first = first + place.outputs
        push(place)
      end
    end
  end
  return places
end

-- Places of the layers of any model, under our names.
local function places_of(model)
  local family = families.of(model)
  if family then return places_of_family(family, model) end
  local places = {}
  model:walk(function(inner, path)
    if is_linear(inner) then
      local place = place_of(path, inner)
      place.classifier = model.class.last ~= nil and path == "head"
      places[#places + 1] = place
    elseif inner.class.name == "nn.experts" then
      for _, part in ipairs { "side", "up", "down" } do
        if part ~= "side" or inner.arguments.gated then
          places[#places + 1] = place_of_experts(path, inner, nil, part)
        end
      end
    end
  end)
  return places
end

-- A target may name one of the experts, as PEFT does when it names all: then it is that of all.
local function matches(place, target)
  if place.experts then target = target:gsub("experts%.%d+%.", "experts.*.") end
  for _, name in ipairs(place.names) do
    if name == target or name:sub(-#target - 1) == "." .. target then return true end
  end
  return false
end

-- Does a target name the classifier of a model that multiplies by the table of its tokens there?
local function is_tied(model, target)
  if not model.class.last or not (target == "lm_head" or target == "head") then return false end
  local has_head = false
  for _, child in ipairs(model:children()) do has_head = has_head or child[1] == "head" end
  return not has_head
end

local function last_name(name) return name:match "[^.]+$" end

-- Last names of the places, each once.
local function names_of(places)
  local known, list = {}, {}
  for _, place in ipairs(places) do
    local name = last_name(place.names[1])
    if not known[name] then known[name], list[#list + 1] = true, name end
  end
  return list
end

-- Names of the fused parameters of places, from the block on, each once: "mlp.experts.down_proj".
local function names_of_fused(places)
  local known, list = {}, {}
  for _, place in ipairs(places) do
    local name = place.fused and place.fused:match "mlp%.experts%..+$"
    if name and not known[name] then known[name], list[#list + 1] = true, name end
  end
  return list
end

-- Names by which places with adapters may be named: last ones, and those of fused parameters.
local function names_with_adapters(list)
  local layers, fused = {}, {}
  for _, place in ipairs(list) do table.insert(place.in_fused and fused or layers, place) end
  local names = names_of(layers)
  for _, name in ipairs(names_of_fused(fused)) do names[#names + 1] = name end
  return names
end

-- Names of chosen parameters as PEFT writes them: from the block on where these choose the same, else whole ones; nil
-- where there are none.
local function names_of_parameters(places, fused)
  if #fused == 0 then return nil end
  local short, count, known, whole = names_of_fused(fused), 0, {}, {}
  for _, place in ipairs(places) do
    if place.fused and text.contains(short, place.fused:match "mlp%.experts%..+$") then count = count + 1 end
  end
  if count == #fused then return short end
  for _, place in ipairs(fused) do
    if not known[place.fused] then known[place.fused], whole[#whole + 1] = true, place.fused end
  end
  return whole
end

-- The places in the fused parameters that are named; those of one parameter have one A.
local function chosen_parameters(places, parameters, report)
  local list, taken = {}, {}
  for _, wanted in ipairs(parameters or {}) do
    local found = false
    for _, place in ipairs(places) do
      local name = place.fused
      if name and (name == wanted or name:sub(-#wanted - 1) == "." .. wanted) then
        found = true
        if not taken[place] then
          taken[place] = true
          list[#list + 1] = setmetatable({ in_fused = true, shares = place.part == "up" and "side" or nil },
            { __index = place })
        end
      end
    end
    if not found then
      local known = names_of_fused(places)
      report("parameters", ("nn.lora.parameters: %s names no parameter that has all experts of a layer; %s"):format(
        text.value(wanted), #known > 0 and "there are " .. table.concat(known, ", ") or "the model has none"))
    end
  end
  return list
end

-- The places that targets choose; those that choose none are reported.
local function chosen(model, places, targets, parameters, report)
  local list, hit = {}, {}
  if not targets and parameters then return list end
  if not targets then
    for _, place in ipairs(places) do
      if not place.classifier then list[#list + 1] = place end
    end
    return list
  end
  for _, place in ipairs(places) do
    local is_chosen = false
    for _, target in ipairs(targets) do
      if matches(place, target) then is_chosen, hit[target] = true, true end
    end
    if is_chosen then list[#list + 1] = place end
  end
  for _, target in ipairs(targets) do
    if not hit[target] and is_tied(model, target) then
      report("targets", ("nn.lora.targets: %s is tied to the embedding, and can have no adapter")
        :format(text.value(target)))
    elseif not hit[target] then
      report("targets", ("nn.lora.targets: no linear layer that can have an adapter is named %s%s"):format(
        text.value(target), suggest.sentence(tostring(target), names_of(places))))
    end
  end
  return list
end

-- Targets as PEFT writes them: last names where these choose the same layers, else whole names.
local function targets_of(places, list)
  local short, whole, known = names_of(list), {}, {}
  for _, place in ipairs(list) do
    for expert = 0, (place.experts or 1) - 1 do
      local name = place.names[1]:gsub("experts%.%*%.", "experts." .. expert .. ".")
      if not known[name] then known[name], whole[#whole + 1] = true, name end
    end
  end
  local count = 0
  for _, place in ipairs(places) do
    for _, name in ipairs(short) do
      if last_name(place.names[1]) == name then count = count + 1 end
    end
  end
  return count == #list and short or whole
end

-- Does a name end so, of a place or of the parameter that it is in? After "^" it is the whole name in a file.
local function is_named(place, wanted)
  local whole = wanted:match "^%^(.*)"
  if whole then return name_in_file(place) == whole end
  local name = place.in_fused and place.fused
  if not name then return matches(place, wanted) end
  return name == wanted or name:sub(-#wanted - 1) == "." .. wanted
end

-- What the values of a.ranks and a.alphas are, as fields.
local own_fields = { ranks = { "ranks", "integer", min = 1 }, alphas = { "alphas", "number", above = 0 } }

-- Why a key of `own` cannot be taken; nil where it can.
local function own_problem(own, wanted, field, what)
  if type(wanted) ~= "string" then
    return (": %s is no name; { v_proj = 4 } names layers"):format(text.value(wanted))
  end
  local problem = define.value_problem(own_fields[field], own[wanted])
  if problem then
    local shown = type(own[wanted]) == "function" and "" or " = " .. text.value(own[wanted])
    return (": %s%s%s"):format(wanted, shown, problem)
  end
  if wanted:find "experts%.%d+%." then
    return (': %s names one expert; all of a layer have one %s: "%s" names them'):format(text.value(wanted), what,
      (wanted:gsub("experts%.%d+%.", "experts.*.")))
  end
end

-- Gives the places that `own` (a.ranks, a.alphas) names what it says, as `what`.
local function set_own(list, own, field, what, report)
  local by, layers = {}, {}   -- which name a place has it from; the first place of each layer
  for _, wanted in ipairs(text.keys(own or {})) do
    local problem = own_problem(own, wanted, field, what)
    if problem then return report(field, "nn.lora." .. field .. problem) end
    local value, is_hit = own[wanted], false
    if define.is_unknown(value) then return end
    for _, place in ipairs(list) do
      if is_named(place, wanted) then
        if by[place] and own[by[place]] ~= value then
          return report(field, ("nn.lora.%s: %s and %s give %s different values"):format(field, by[place], wanted,
            name_in_file(place)))
        end
        place[what], by[place], is_hit = value, wanted, true
      end
    end
    if not is_hit then
      report(field, ("nn.lora.%s: no layer with an adapter is named %s%s"):format(field, text.value(wanted),
        suggest.sentence(wanted, names_with_adapters(list))))
    end
  end
  for _, place in ipairs(list) do
    local name = name_in_file(place)
    layers[name] = layers[name] or place
    if layers[name][what] ~= place[what] then
      return report(field, ("nn.lora.%s: %s and %s are one layer in the file (%s): give both the same %s"):format(field,
        layers[name].names[2], place.names[2], name, what))
    end
  end
end

-- Ranks and scales of the places.
local function set_ranks(a, list, report)
  for _, place in ipairs(list) do place.rank, place.alpha = a.rank, a.alpha end
  set_own(list, a.ranks, "ranks", "rank", report)
  set_own(list, a.alphas, "alphas", "alpha", report)
  for _, place in ipairs(list) do place.scale = place.alpha / place.rank end
end

-- What is wrong with `parameters`, beside the places that `targets` choose.
local function check_parameters(a, places, list, report)
  if not a.parameters then return end
  if #a.parameters == 0 then
    return report("parameters", "nn.lora.parameters is empty; name parameters, or leave it out")
  end
  for _, name in ipairs(a.parameters) do
    if type(name) ~= "string" then
      return report("parameters", ("nn.lora.parameters: %s is no name"):format(text.value(name)))
    end
  end
  if a.dropout > 0 then
    report("dropout", "nn.lora.dropout: adapters of `parameters` have none, as in PEFT; leave it out")
  end
  local by_targets = {}
  for _, place in ipairs(list) do by_targets[place.names[2]] = true end
  for _, place in ipairs(chosen_parameters(places, a.parameters, report)) do
    if by_targets[place.names[2]] then
      return report("parameters", ("nn.lora.parameters: %s has adapters by `targets`"):format(place.fused))
    end
  end
end

--- The places of a model's layers that have adapters: those that targets choose, and those in fused parameters. What is
-- wrong with targets and parameters nn.lora says.
function lora.lora_places(model, targets, parameters)
  local places = places_of(model)
  local function pass() end
  local list = chosen(model, places, targets, parameters, pass)
  for _, place in ipairs(chosen_parameters(places, parameters, pass)) do list[#list + 1] = place end
  return list
end

--- nn.lora { model = , rank = , alpha = , ranks = , alphas = , targets = , parameters = }
lora.lora = define.constructor {
  name = "nn.lora",
  sentence = "A model whose parameters stay as they are, with low-rank adapters (Hu et al. 2022) of its linear layers, "
    .. "which are trained: W x + alpha / rank · B A x. It begins as the model does: B is 0. A run saves it as PEFT "
    .. "does; het.load reads it again, and PEFT's.",
  example = 'nn.lora { model = het.load "folder", rank = 8, alpha = 16, targets = { "q_proj", "v_proj" } }',
  kind = "layer",
  fields = {
    { "model", "model", "a model, also one that het.load returns", required = true },
    { "rank", "integer", "rows of A and columns of B", default = 8, min = 1 },
    { "alpha", "number", "times what the adapters add, over the rank", default = 16, above = 0 },
    { "ranks", "table", "of layers that have another rank, by the ends of their names, as PEFT's rank_pattern: "
      .. '{ v_proj = 4 }; after "^" by the whole name in the file' },
    { "alphas", "table", "of layers that have another alpha, likewise, as PEFT's alpha_pattern" },
    { "targets", "list", 'which layers: ends of their names, as PEFT\'s target_modules ("q_proj") or ours ("mlp.up") '
      .. "(default: every linear layer but the classifier; none with `parameters`)" },
    { "parameters", "list", "which parameters with the weights of all experts of a layer, as PEFT's target_parameters: "
      .. '"mlp.experts.gate_up_proj", "mlp.experts.down_proj"; gate and up have one A then' },
    { "dropout", "number", "of what goes into the adapters, while training", default = 0, min = 0, below = 1 },
  },
  check = function(a, report)
    if rawget(a.model, "lora") then
      report("model", "nn.lora.model has adapters already")
    elseif is_linear(a.model) or a.model.class.name == "nn.experts" then
      local name = a.model.class.name
      report("model", ("nn.lora.model is a single %s, and adapters are of layers by name; nn.sequential { %s } has it "
        .. "as '%s'"):format(name, name, name:match "[^.]+$"))
    elseif a.targets and #a.targets == 0 then
      report("targets", "nn.lora.targets is empty; name layers, or leave it out")
    else
      local places = places_of(a.model)
      if #places == 0 then report("model", "nn.lora.model has no linear layer that can have an adapter") end
      for _, target in ipairs(a.targets or {}) do
        if type(target) ~= "string" then
          return report("targets", ("nn.lora.targets: %s is no name"):format(text.value(target)))
        end
      end
      check_parameters(a, places, chosen(a.model, places, a.targets, a.parameters, report), report)
      local list = lora.lora_places(a.model, a.targets, a.parameters)
      if #list > 0 then set_ranks(a, list, report) end
    end
  end,
  build = function(a)
    local places = places_of(a.model)
    local function refuse(_, sentence) errors.usage("%s", sentence) end
    local list = chosen(a.model, places, a.targets, a.parameters, refuse)
    local fused = chosen_parameters(places, a.parameters, refuse)
    local targets, parameters = targets_of(places, list), names_of_parameters(places, fused)
    for _, place in ipairs(fused) do list[#list + 1] = place end
    set_ranks(a, list, refuse)
    local by_path = {}
    for _, place in ipairs(list) do
      by_path[place.path] = by_path[place.path] or {}
      by_path[place.path][place.part] = { rank = place.rank, scale = place.scale, dropout = a.dropout,
        inputs = place.inputs, outputs = place.outputs, beside = place.beside, experts = place.experts,
        shares = place.shares }
    end
    local model = a.model:copied(function(copy, path)
      copy.frozen, copy.adapters = true, by_path[path]
    end)
    rawset(model, "lora", { rank = a.rank, alpha = a.alpha, dropout = a.dropout, targets = targets,
      parameters = parameters, places = list, base = a.model })
    if rawget(model, "folder") then rawset(model, "base_folder", model.folder) end
    rawset(model, "found_precision", nil)   -- the base's; new adapters are f32
    return model
  end,
}

return lora
