--- Mistakes of a recipe, collected, so that all of them are raised at once. At the prompt each is
-- raised where it is made.
local errors = require "het.errors"
local source = require "het.language.source"

local mistakes = {}

local found = {}          -- in order, each { line, text }
local seen = {}
local immediate = false

--- Raise mistakes as they are made (the prompt), or keep them (recipes).
function mistakes.set_immediate(value) immediate = value end

--- Keep a mistake.
-- @string constructor what was called: "nn.attention"
-- @string|nil field the field at fault
-- @string sentence what is wrong and what would work
function mistakes.record(constructor, field, sentence)
  if immediate then errors.usage(sentence) end
  local place, line = source.locate(constructor, field)
  local text = place and place .. ": " .. sentence or sentence
  if seen[text] then return end
  seen[text] = true
  found[#found + 1] = { line = line or 0, text = text, order = #found }
end

--- How many there are.
function mistakes.count() return #found end

--- Take all of them, in the order of the recipe's lines, as one text; nil when there is none.
function mistakes.take()
  if #found == 0 then return nil end
  table.sort(found, function(a, b)
    if a.line ~= b.line then return a.line < b.line end
    return a.order < b.order
  end)
  local lines = {}
  for i, mistake in ipairs(found) do lines[i] = mistake.text end
  found, seen = {}, {}
  return table.concat(lines, "\n")
end

--- Raise all of them as one error, if there are any. It has their places.
function mistakes.raise()
  local text = mistakes.take()
  if not text then return end
  local raised = errors.new("usage", text)
  raised.has_places = true
  error(raised, 0)
end

return mistakes
