--- Frequencies of rotary positions that are scaled to contexts longer than the first training's, as `rope_scaling` of
-- a config.json describes them.
local errors = require "het.errors"
local text = require "het.text"

local rope = {}

-- What each kind needs, and may have.
local kinds = {
  default = {},
  linear = { "factor" },
  dynamic = { "factor" },
  llama3 = { "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings" },
  yarn = { "factor", "original_max_position_embeddings" },
  longrope = { "original_max_position_embeddings", "short_factor", "long_factor" },
}

--- What is wrong with a scaling, as a sentence; nil when it can be computed.
-- @tparam table scaling `rope_type` and the numbers that it needs
function rope.problem(scaling)
  local kind = scaling.rope_type
  if not kinds[kind] then
    return ("rotary positions scaled as '%s' are not supported; there are %s"):format(tostring(kind),
      table.concat(text.keys(kinds), ", "))
  end
  for _, name in ipairs(kinds[kind]) do
    local wanted = name:match "^%a+_factor$" and kind == "longrope" and "table" or "number"
    if type(scaling[name]) ~= wanted then
      return ("rotary positions scaled as '%s' need '%s', a %s"):format(kind, name,
        wanted == "table" and "list of numbers" or wanted)
    end
  end
end

-- Peng et al., "YaRN" (2023): pairs that turn often within the first context keep their frequency, those that turn
-- less than once are slowed down by the factor, those between are mixed.
local function yarn_keeps(base, size, scaling)
  local function pair_that_turns(times)
    return size * math.log(scaling.original_max_position_embeddings / (times * 2 * math.pi)) / (2 * math.log(base))
  end
  local low, high = pair_that_turns(scaling.beta_fast or 32), pair_that_turns(scaling.beta_slow or 1)
  if scaling.truncate ~= false then low, high = math.floor(low), math.ceil(high) end
  low, high = math.max(low, 0), math.min(high, size - 1)
  if low == high then high = high + 0.001 end
  return function(i) return 1 - math.min(math.max((i - low) / (high - low), 0), 1) end
end

-- Llama 3.1: by how often a pair turns within the first context.
local function llama3_keeps(scaling)
  local low, high = scaling.low_freq_factor, scaling.high_freq_factor
  return function(_, frequency)
    local turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    return math.min(math.max((turns - low) / (high - low), 0), 1)
  end
end

-- What queries and keys are multiplied by.
local function factor_of(scaling, context)
  if scaling.attention_factor then return scaling.attention_factor end
  local function grown(factor, share) return factor <= 1 and 1 or 0.1 * share * math.log(factor) + 1 end
  if scaling.rope_type == "yarn" then
    local one, all = scaling.mscale, scaling.mscale_all_dim
    if one and all and one ~= 0 and all ~= 0 then return grown(scaling.factor, one) / grown(scaling.factor, all) end
    return grown(scaling.factor, 1)
  end
  local first = scaling.original_max_position_embeddings
  local factor = scaling.factor or (scaling.max_position_embeddings or context) / first
  return factor <= 1 and 1 or math.sqrt(1 + math.log(factor) / math.log(first))
end

--- Tokens of the longest sequence with the frequencies of short ones: LongRoPE (Ding et al. 2024) has others for
-- sequences that are longer than the first training's, as transformers does.
-- @tparam ?table scaling
function rope.most_short(scaling)
  return scaling and scaling.rope_type == "longrope" and scaling.original_max_position_embeddings or math.huge
end

--- The frequencies of the pairs of a head, and what queries and keys are multiplied by.
-- @number base
-- @int size features of a head that are turned
-- @tparam table scaling what `rope.problem` finds nothing wrong with
-- @int context tokens that the model sees at once
-- @int tokens of the sequence
-- @treturn ?{number,...} nil: base^(-2i / size)
-- @treturn number
function rope.frequencies(base, size, scaling, context, tokens)
  local kind = scaling.rope_type
  -- Within the model's context NTK's dynamic scaling changes nothing.
  if kind == "default" or kind == "dynamic" then return nil, 1 end
  local keeps
  if kind == "linear" then keeps = function() return 0 end end
  if kind == "yarn" then keeps = yarn_keeps(base, size, scaling) end
  if kind == "llama3" then keeps = llama3_keeps(scaling) end
  local list = {}
  local divisors = kind == "longrope" and (tokens > rope.most_short(scaling) and scaling.long_factor
    or scaling.short_factor)
  if divisors and #divisors ~= size / 2 then
    errors.usage("longrope has %d factors; %d features of a head have %d pairs", #divisors, size, size / 2)
  end
  for i = 0, size / 2 - 1 do
    local frequency = base ^ (-2 * i / size)
    if divisors then
      list[i + 1] = frequency / divisors[i + 1]
    else
      local keep = keeps(i, frequency)
      list[i + 1] = frequency * keep + frequency / scaling.factor * (1 - keep)
    end
  end
  return list, (kind == "yarn" or kind == "longrope") and factor_of(scaling, context) or 1
end

return rope
