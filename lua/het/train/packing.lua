--- What a run that goes on needs of rows of several examples: that its cursor counts the same rows.
local define = require "het.language.define"
local errors = require "het.errors"

local packing = {}

--- Whether examples share rows, by the arguments of a run.
function packing.packs(a) return define.kind_of(a.data) == "corpus" and a.data:packs() end

--- Tokens of the rows that examples share; nil where each has a row to itself.
-- @param run a run
function packing.context(run)
  return packing.packs(run.arguments) and run.context or nil
end

--- Of a mixture that packs, which of its sources do: "1" or "0" for each; nil of others.
-- @param run a run
function packing.sources(run)
  local packs = packing.packs(run.arguments) and run.arguments.data.native.mixed_packs
  return packs and table.concat(packs) or nil
end

local function numbers_of(sources)
  local list = {}
  for i = 1, #sources do
    if sources:sub(i, i) == "1" then list[#list + 1] = i end
  end
  return (#list == 1 and "source %s packed" or "sources %s packed"):format(table.concat(list, ", "))
end

local function counts(context)
  return context and ("packed rows of %.14g tokens"):format(context) or "samples that are not packed"
end

--- Refuse to go on with other samples.
-- @param run a run
-- @tparam table about what was saved: `packed`, what packing.context gave, and `packed_sources`, what packing.sources
-- gave
-- @string what is gone on from
function packing.require_alike(run, about, what)
  local now = packing.context(run)
  if about.packed ~= now then
    errors.usage("%s counts %s, this run %s; go on with the same `packing` and `context`", what, counts(about.packed),
      counts(now))
  end
  local theirs, ours = about.packed_sources, packing.sources(run)
  if type(theirs) == "string" and ours and theirs ~= ours then   -- nil: of an earlier version, or no mixture
    errors.usage("%s has %s of %d in its mixture, this run %s of %d; go on with the same `packing` of each", what,
      numbers_of(theirs), #theirs, numbers_of(ours), #ours)
  end
end

return packing
