--- What the `hetrun` program does with its words: the policy half of main.cpp and prompt.cpp.
local native = require "het.native"
local errors = require "het.errors"
local sandbox = require "het.sandbox"

local program = {}

local function folder_of(path)
  return path:match "^(.*)/[^/]*$" or "."
end

-- A recipe talks to whom the command line names. What it names itself is shown and asked for, where a person can
-- answer; het.train refuses it otherwise.
local function approve_rendezvous(path, text)
  local settings = native.settings
  if settings.rendezvous or os.getenv "HETRUN_RENDEZVOUS" or native.is_alone() then return end
  local address = text:match "%f[%w_]rendezvous%s*=%s*[\"']([^\"'\n]+)[\"']"
  if not address or not native.is_terminal "stdin" or not native.is_terminal "stderr" then return end
  native.write("stderr", ("%s asks to meet other machines at %s. Allow it? [y/N] "):format(path, address))
  if (io.read "*l" or ""):lower():match "^y" then settings.approved_rendezvous = address end
end

-- Put up the walls around a recipe, with what the person named: general options, and those of commands
-- (het.program.subcommand).
local function confine(path)
  local settings, named = native.settings, native.command_paths or { read = {}, write = {} }
  local writes = { unpack(settings.allow_write) }
  for _, each in ipairs(named.write) do writes[#writes + 1] = each end
  for _, each in ipairs { settings.metrics, settings.trace } do
    if each ~= "" then writes[#writes + 1] = each end
  end
  local reads = { unpack(settings.allow_read) }
  for _, each in ipairs(named.read) do reads[#reads + 1] = each end
  native.confine(path, { words = native.words, reads = reads, writes = writes,
    replaces = settings.resume or settings.overwrite, gpu = settings.device:match "^cuda" ~= nil,
    secret_file = settings.secret_file })
end

-- Bound the memory of the process, as the person said, else by `most`.
local function limit_memory(most)
  local limit = native.settings.limit_memory
  if limit ~= "" then
    native.limit_memory(native.parse_bytes(limit))
  elseif most then
    native.limit_memory(most)
  end
end

-- The text of a Lua file that is about to run. Strangers' recipes are confined: the first file is read before.
local function read(path)
  if native.settings.trust then
    limit_memory()
    return native.read_text(path)
  end
  if native.confined() then
    native.confine(path)
    return native.read_text(path)
  end
  local text = native.read_text(path)
  approve_rendezvous(path, text)
  -- GPU drivers reserve more than they use.
  limit_memory(not native.settings.device:match "^cuda" and native.memory_available() or nil)
  confine(path)
  return text
end

-- The compiled source of a recipe or a cluster file, in its sandbox.
local function compile(path)
  local trust, text = native.settings.trust, read(path)
  local environment = sandbox.environment(trust, folder_of(path))
  local chunk, problem = sandbox.load(text, "@" .. path, environment, trust)
  if not chunk then native.fail("usage", problem) end
  return chunk, text
end

--- Run the recipe at `path` and what it returns. Returns the exit code.
function program.recipe(path)
  local chunk, text = compile(path)
  local het = require "het"
  het.begin_recipe(path, text)
  return het.run_recipe(path, chunk)
end

--- The run that the recipe at `path` describes, not started; nil when only its help was wanted.
function program.load(path)
  local chunk, text = compile(path)
  local het = require "het"
  het.begin_recipe(path, text)
  return het.load_recipe(path, chunk)
end

--- What the Lua file at `path` returns.
function program.value(path)
  local chunk, text = compile(path)
  return require("het").load_value(path, text, chunk)
end

--- What the Lua file at `path` returns; a file may also hold nothing but an expression, such as `hetrun plan --lua`
-- prints.
function program.expression(path)
  local trust, file_text = native.settings.trust, read(path)
  local is_expression = loadstring("return " .. file_text) ~= nil
  local environment = sandbox.environment(trust, folder_of(path))
  local source = is_expression and 'local het = require "het"; return ' .. file_text or file_text
  local chunk, problem = sandbox.load(source, "@" .. path, environment, trust)
  if not chunk then native.fail("usage", problem) end
  return require("het").load_value(path, file_text, chunk)
end

-- The prompt's own environment, made by program.prompt.
local environment

--- Start a prompt session.
function program.prompt(trust)
  require("het.language.mistakes").set_immediate(true)
  limit_memory()
  if trust ~= "trust" then
    native.limit_prompt { reads = native.settings.allow_read, writes = native.settings.allow_write }
  end
  environment = sandbox.prompt_environment(trust == "trust")
end

local function show(value)
  if type(value) == "string" then return (("%q"):format(value):gsub("\\\n", "\\n")) end
  if type(value) ~= "table" or getmetatable(value) then return tostring(value) end
  local parts, count = {}, #value
  for i = 1, math.min(count, 20) do parts[i] = show(value[i]) end
  if count > 20 then parts[#parts + 1] = ("... (%d in all)"):format(count) end
  local names = {}
  for name in pairs(value) do
    if type(name) == "string" then names[#names + 1] = name end
  end
  table.sort(names)
  for i = 1, math.min(#names, 20) do
    local field = value[names[i]]
    parts[#parts + 1] = names[i] .. " = " .. (type(field) == "table" and "{...}" or show(field))
  end
  if #names > 20 then parts[#parts + 1] = ("... (%d names in all)"):format(#names) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

--- Run a compiled line of the prompt and print what it gives.
function program.evaluate(chunk)
  jit.off(chunk, true)
  setfenv(chunk, environment)
  local results = { n = 0 }
  local function collect(...)
    results.n = select("#", ...)
    for i = 1, results.n do results[i] = (select(i, ...)) end
  end
  local ok, problem = xpcall(function() collect(chunk()) end, native.undisturbed(function(value)
    if type(value) ~= "string" then return value end
    value = errors.hinted((value:gsub("^[%w_/%.]*het[%./]program[%w_%.]*:%d+: ", "")))   -- where this calls the chunk
    -- The lines of the library are of no use at the prompt: keep those of the user's own chunk.
    local trace = {}
    for line in debug.traceback("", 2):gmatch "[^\n]+" do
      if line:match "^%s+prompt:" and not line:match "in function <prompt:0>" then trace[#trace + 1] = line end
    end
    return #trace > 1 and value .. "\n" .. table.concat(trace, "\n") or value
  end))
  if not ok then error(problem, 0) end
  local shown = {}
  for i = 1, results.n do
    local value = results[i]
    -- Text of several lines is there to be read.
    shown[i] = type(value) == "string" and value:find("\n", 1, true) and value or show(value)
  end
  if results.n > 0 then native.write("stdout", table.concat(shown, "\t") .. "\n") end
end

-- The value of a path of names, such as run.plan or x:to; nil when there is none.
local function resolve(path)
  local value = environment
  for name in path:gmatch "[%w_]+" do
    if type(value) ~= "table" and type(value) ~= "userdata" then return nil end
    local ok, field = pcall(function() return value[name] end)
    value = ok and field or nil
    if value == nil then return nil end
  end
  return value
end

--- `?name`: print its documentation. The session's own values go before names of the library.
function program.explain(name)
  local het = require "het"
  native.write("stdout", het.help(name:match "^%s*(.-)%s*$", resolve) .. "\n")
end

--- Names that could complete the end of `text`: globals, fields after a dot, methods after a colon.
function program.completions(text)
  local path, separator, word = text:match "([%w_][%w_%.]*)([%.:])([%w_]*)$"
  local names, seen = {}, {}
  local function offer(name)
    -- What is no name cannot be typed after a dot; keys of tables may be anything.
    if type(name) == "string" and name:match "^[%a_][%w_]*$" and name:sub(1, #word) == word and not seen[name]
      and not name:match "^__" then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  if path then
    local value = resolve(path)
    local object = require("het.language.define").object_of(value)
    for _, member in ipairs(object and object.members or {}) do
      local name = member.name:match "[^.]+$"
      if separator == "." or type(value[name]) == "function" then offer(name) end
    end
    if type(value) == "table" and not object then   -- of an object the rest is its own affair
      local metatable = debug.getmetatable(value)
      local hidden = metatable and metatable.__hidden or {}
      for name in pairs(value) do
        if not hidden[name] then offer(name) end
      end
      if metatable and type(metatable.__index) == "table" then
        for name in pairs(metatable.__index) do offer(name) end
      end
      for _, name in ipairs(metatable and metatable.__names or {}) do offer(name) end
    elseif type(value) == "userdata" then
      local metatable = debug.getmetatable(value)
      for name in pairs(metatable and metatable.methods or {}) do offer(name) end
    end
    if separator == ":" and type(value) == "string" then
      for name in pairs(string) do offer(name) end
    end
  elseif not text:match "[%)%]}\"'][%.:][%w_]*$" then   -- of what a call gives nothing is known before it is made
    word = text:match "[%w_]*$"
    for name in pairs(environment) do offer(name) end
    for name in ("and break do else elseif end false for function if in local nil not or repeat return then true until "
      .. "while"):gmatch "%a+" do
      if word ~= "" then offer(name) end
    end
  end
  table.sort(names)
  return names
end

--- `hetrun doctor`.
function program.doctor() return require("het.program.doctor").run() end
--- `hetrun bench NAME`.
function program.bench(...) return require("het.bench").run(...) end
--- `hetrun plan RECIPE`.
function program.plan(...) return require("het.plan.command").plan(program, ...) end
--- `hetrun simulate RECIPE`.
function program.simulate(...) return require("het.plan.command").simulate(program, ...) end
--- `hetrun profile RECIPE`.
function program.profile(...) return require("het.profile.command").run(program, ...) end
--- `hetrun docs FOLDER`.
function program.docs(folder) return require("het.program.docs").write(folder) end

return program
