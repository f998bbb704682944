--- Numbers as people read them.
local text = {}

--- "1.5 GiB"
function text.bytes(count)
  local units = { "B", "KiB", "MiB", "GiB", "TiB" }
  local unit = 1
  while count >= 1024 and unit < #units do count, unit = count / 1024, unit + 1 end
  return (unit == 1 and "%d %s" or count < 10 and "%.2f %s" or count < 100 and "%.1f %s" or "%.0f %s")
    :format(count, units[unit])
end

--- "124 M", "1.2 k"
function text.count(value)
  local units = { "", " k", " M", " G", " T", " P" }
  local unit = 1
  while value >= 1000 and unit < #units do value, unit = value / 1000, unit + 1 end
  if unit == 1 and value == math.floor(value) then return ("%d"):format(value) end
  return (value < 10 and "%.2f%s" or value < 100 and "%.1f%s" or "%.0f%s"):format(value, units[unit])
end

--- "1 step", "2 steps"
function text.plural(count, word) return ("%d %s%s"):format(count, word, count == 1 and "" or "s") end

--- "12,345,678"
function text.grouped(value)
  local digits = ("%d"):format(value)
  local result = digits:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
  return result
end

--- "0.123", "12345": a sum of money, with at least three digits.
function text.money(sum) return sum < 1000 and ("%.3g"):format(sum) or ("%.0f"):format(sum) end

--- "1:02:03", "2:03", "5 s"
function text.duration(seconds)
  if seconds ~= seconds or seconds == math.huge then return "?" end
  local whole = math.floor(seconds + 0.5)
  if whole < 60 then return ("%d s"):format(whole) end
  if whole < 3600 then return ("%d:%02d"):format(math.floor(whole / 60), whole % 60) end
  return ("%d:%02d:%02d"):format(math.floor(whole / 3600), math.floor(whole / 60) % 60, whole % 60)
end

--- A number; nil for what is no number, infinite or not a number: JSON has none of these.
function text.finite(value)
  return type(value) == "number" and value - value == 0 and value or nil
end

--- "[12, 64, 512]"
function text.shape(shape) return "[" .. table.concat(shape, ", ") .. "]" end

--- A value as a recipe would write it, on one line; tables are abridged.
function text.value(value)
  if type(value) == "string" then return ('"%s"'):format((value:gsub("\n", "\\n"):gsub("\t", "\\t"))) end
  if type(value) == "number" then return ("%.14g"):format(value) end
  if type(value) == "table" and not debug.getmetatable(value) then return "{...}" end
  -- Not their numbers: those of distributed tensors are on other ranks.
  local kind = type(value) == "userdata" and getmetatable(value)
  if kind == "tensor" or kind == "distributed tensor" then
    return ("a %s %s%s"):format(kind, value.dtype, text.shape(value.shape))
  elseif kind == "value" then
    return ("%s %s%s"):format(value.name ~= "" and value.name or "a value", value.dtype, text.shape(value.shape))
  end
  return tostring(value)
end

--- Characters (not bytes) of UTF-8 text.
function text.width(words)
  local _, continued = words:gsub("[\128-\191]", "")
  return #words - continued
end

--- Is the value one of a list's?
function text.contains(list, value)
  for _, each in ipairs(list) do
    if each == value then return true end
  end
  return false
end

--- The keys of a table, sorted.
function text.keys(map)
  local keys = {}
  for key in pairs(map) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

--- Break `words` into lines of at most `width` characters, each after `indent`.
function text.wrap(words, width, indent)
  indent = indent or ""
  local lines, line = {}, indent
  for word in words:gmatch("%S+") do
    if #line > #indent and #line + 1 + #word > width then
      lines[#lines + 1] = line
      line = indent
    end
    line = line .. (#line > #indent and " " or "") .. word
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

return text
