--- `het` as recipes get it: `local het = require "het"`. Its functions take and return handles (het.sandbox.handle),
-- and its tables are read-only, so that no recipe changes what another one, or the library, sees.
local errors = require "het.errors"
local handle = require "het.sandbox.handle"
local het = require "het"
local text = require "het.text"

-- Functions that take numbers, texts, lists and tensors, and return tensors: the engine checks them.
local plain = { tensor = true, randn = true, uniform = true, full = true, zeros = true, ones = true, arange = true }

local function names_of(module)
  local names = {}
  for _, name in ipairs(text.keys(module)) do
    if type(name) == "string" then names[#names + 1] = name end
  end
  return names
end

-- het.plan { ... } and het.plan.auto { ... }
local function callable(path, new)
  local module = debug.getmetatable(new)
  return handle.module(path, new, { names = names_of(new),
    call = handle.export_function(function(_, ...) return module.__call(nil, ...) end) })
end

local get

local parts = {
  nn = function()
    local function missing(name)
      local has_operator = type(name) == "string" and debug.getmetatable(get "op").__has(name)
      if has_operator then
        errors.usage("het.nn has no '%s'; op.%s computes it, in a list of layers as function(x) return op.%s(x) end",
          name, name, name)
      end
    end
    return handle.module("het.nn", het.nn, { names = names_of(het.nn), missing = missing })
  end,
  optim = function() return handle.module("het.optim", het.optim, { names = names_of(het.optim) }) end,
  data = function() return handle.module("het.data", het.data, { names = names_of(het.data) }) end,
  op = function()
    local op = het.op
    local function raw(name) return op[name] end
    return handle.module("het.op", op, { names = names_of(op), get = raw, missing = raw })
  end,
  snapshot = function() return handle.module("het.snapshot", het.snapshot, { names = { "open" } }) end,
  policy = function() return handle.module("het.policy", het.policy, { names = { "on_change", "on_notice" } }) end,
  plan = function() return callable("het.plan", het.plan) end,
  cluster = function() return callable("het.cluster", het.cluster) end,
  options = function()
    return function(specs)
      for name in pairs(type(specs) == "table" and specs or {}) do
        if type(name) ~= "string" then
          errors.usage("het.options: an option has the name %s; options are name = { default, \"what it is\" }",
            text.value(name))
        end
      end
      local values = het.options(handle.import(specs))
      debug.getmetatable(values).__metatable = "options"
      return values
    end
  end,
  help = function()
    return function(name) return require("het.program.docs").help(name) end
  end,
}

local made = {}

function get(name)
  if made[name] == nil then
    if parts[name] then made[name] = parts[name]() elseif plain[name] then made[name] = het[name] end
  end
  return made[name]
end

local names = { "version" }
for _, name in ipairs(debug.getmetatable(het).__names) do names[#names + 1] = name end
for name in pairs(plain) do names[#names + 1] = name end
table.sort(names)

return handle.module("het", het, { names = names, get = get })
