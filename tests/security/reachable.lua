-- Walk everything that a recipe reaches: no object of the engine but tensors and values of graphs, no table of the
-- library that can be written, no metatable of the library; and call all of it with hostile arguments: what is raised is
-- never a bug of the library. Run with --trust; reachable.py starts it.
local native = require "het.native"
local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."
local world = dofile(here .. "/world.lua")

local opt = require("het").options {
  calls = { true, "call what is found with hostile arguments" },
  show  = { false, "show the errors of Lua itself, which have no place in what recipes see" },
}

local folder = world.folder()
local environment = world.environment(folder)
local seen, queue, own = {}, {}, {}
local functions, calls, unclear = {}, 0, {}

local fail, failures = world.failures()

local function visit(path, value)
  local kind = type(value)
  if kind == "nil" or kind == "number" or kind == "string" or kind == "boolean" or seen[value] then return end
  seen[value] = true
  queue[#queue + 1] = { path, value }
end

-- Metatables that the recipe makes are its own.
local set = environment.setmetatable
rawset(environment, "setmetatable", function(value, meta)
  if type(meta) == "table" then own[meta] = true end
  return set(value, meta)
end)

local function walk()
  while #queue > 0 do
    local path, value = unpack(table.remove(queue))
    local why = world.problem(value, environment, own)
    if why then fail(path, why) end
    if type(value) == "function" then functions[#functions + 1] = { path, value } end
    for _, part in ipairs(world.parts(value)) do visit(path .. "." .. part[1], part[2]) end
  end
end

-- Values with which methods are called beside hostile ones: one of each path's last name.
local objects = {}
local function keep(name, value)
  visit(name, value)
  if type(value) ~= "number" and type(value) ~= "string" then objects[#objects + 1] = { name, value } end
end

world.objects(environment, folder, keep, function() end)
walk()
native.write("stdout", ("%d objects, %d functions\n"):format(#objects, #functions))

-- It measures this machine.
local excluded = { ["het.cluster.here"] = true }

local hostile = world.hostile()
for _, value in ipairs(hostile) do own[type(value) == "table" and debug.getmetatable(value) or false] = true end

local function call(path, fn, ...)
  calls = calls + 1
  local results = { pcall(fn, ...) }
  require("het.language.mistakes").take()
  if results[1] then
    for i = 2, math.min(#results, 8) do visit(path .. " result", results[i]) end
    return
  end
  local kind, message = world.raised(results[2])
  if kind == "bug" then fail(path, "a bug: " .. message) end
  if type(results[2]) == "table" then visit(path .. " error", results[2]) end
  if type(results[2]) == "string" and message:match "^[%w_./]*het[%w_./]*:%d+:" then
    unclear[message:gsub("table: 0x%x+", "table")] = path
  end
end

local function try(path, fn, first)
  for _, value in ipairs(hostile) do
    if first ~= nil then
      call(path, fn, first, value)
      call(path, fn, first, hostile[1 + calls % #hostile], value)
    else
      call(path, fn, value)
      call(path, fn, value, hostile[1 + calls % #hostile])
    end
  end
  call(path, fn)
  if first ~= nil then call(path, fn, first) end
end

if opt.calls then
  local found, made = functions, objects
  functions, objects = {}, {}   -- functions of the recipe that are called again keep more
  for _, each in ipairs(found) do
    local path, fn = each[1], each[2]
    if path:match "^het%." and not excluded[path] then try(path, fn) end
  end
  for _, object in ipairs(made) do
    local path, value = object[1], object[2]
    if path ~= "het" and path ~= "_G" and (type(value) == "table" or type(value) == "userdata") then
      for _, part in ipairs(world.parts(value)) do
        if type(part[2]) == "function" and part[1] ~= "start" then try(path .. ":" .. part[1], part[2], value) end
      end
      if debug.getmetatable(value) and debug.getmetatable(value).__call then try(path, value) end
      pcall(tostring, value)
    end
  end
  walk()
end

local count = 0
for message, path in pairs(unclear) do
  count = count + 1
  if opt.show then native.write("stdout", ("unclear: %s: %s\n"):format(path, message)) end
end
native.write("stdout", ("%d calls; %d errors of Lua without a sentence of the library; %d failures\n"):format(calls,
  count, failures()))
os.execute("rm -rf '" .. folder .. "'")
os.exit(failures() == 0 and 0 or 1)
