-- Ways out of the sandbox, each with what is met on it.
local ways = {
  { "debug", function() return debug.getregistry() end },
  { "ffi", function() return require "ffi" end },
  { "loadstring of bytecode", function() return loadstring("\27LJ\2") end },
  { "load of bytecode", function() return assert(load("\27LJ\2")) end },
  { "string.dump", function() return string.dump(print) end },
  { "newproxy", function() return newproxy(true) end },
  { "io.popen", function() return io.popen "true" end },
  { "os.remove", function() return os.remove "text.txt" end },
  { "setfenv", function() return setfenv(0, {}) end },
  { "getfenv", function() return getfenv(0) end },
  { "package.loadlib", function() return package.loadlib("libc.so.6", "system") end },
  { "the metatable of strings", function() getmetatable("").__index = nil end },
  { "native", function() return require "het.native" end },
  { "dofile outside", function() return dofile "../outside/text.txt" end },
}
local met = {}
for _, way in ipairs(ways) do
  local ok, result = pcall(way[2])
  met[#met + 1] = ("%s: %s"):format(way[1], ok and "OPEN" or result:gsub(" %(recipes can.*%)", ""))
end
error(table.concat(met, "\n"), 0)
