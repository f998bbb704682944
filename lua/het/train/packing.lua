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

local function counts(context)
  return context and ("packed rows of %.14g tokens"):format(context) or "samples that are not packed"
end

--- Refuse to go on with other samples.
-- @param run a run
-- @tparam table about what was saved: `packed`, what packing.context gave
-- @string what is gone on from
function packing.require_alike(run, about, what)
  local now = packing.context(run)
  if about.packed ~= now then
    errors.usage("%s counts %s, this run %s; go on with the same `packing` and `context`", what, counts(about.packed),
      counts(now))
  end
end

return packing
