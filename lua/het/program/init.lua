--- What the `hetrun` program does with its words: the policy half of main.cpp and prompt.cpp.
local native = require "het.native"
local errors = require "het.errors"
local sandbox = require "het.sandbox"

local program = {}

local function folder_of(path)
  return path:match "^(.*)/[^/]*$" or "."
end

-- A recipe may only talk to what the command line names. What it names itself is shown and asked for, where a
-- person can answer; het.train refuses it otherwise.
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
    secret_file = settings.secret_file, elastic = settings.elastic })
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

--- The function that the Lua file at `path` returns, or what it returns instead. What goes wrong in the function is
-- reported with lines of that file.
function program.callback(path)
  local chunk, text = compile(path)
  local value = require("het").load_value(path, text, chunk)
  if type(value) ~= "function" then return value end
  return function(...)
    local arguments, results = { ... }, nil
    require("het").load_value(path, text, function() results = { value(unpack(arguments)) } end)
    return unpack(results, 1, table.maxn(results))
  end
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

--- Start a prompt session.
function program.prompt(trust)
  limit_memory()
  if trust ~= "trust" then
    native.limit_prompt { reads = native.settings.allow_read, writes = native.settings.allow_write }
  end
  require("het.prompt").begin(trust == "trust")
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
--- `hetrun generate FOLDER`.
function program.generate(...) return require("het.model.command").generate(program, ...) end
--- `hetrun eval FOLDER`.
function program.eval(...) return require("het.model.command").eval(program, ...) end
--- `hetrun merge ADAPTERS MODEL`.
function program.merge(...) return require("het.model.convert").merge(...) end
--- `hetrun convert FOLDER TO`.
function program.convert(...) return require("het.model.convert").convert(...) end
--- `hetrun snapshot WORD PLACE`.
function program.snapshot(...) return require("het.snapshot.command").run(...) end
--- `hetrun status`.
function program.status(...) return require("het.program.control").status(...) end
--- `hetrun attach [WORD]`.
function program.attach(...) return require("het.program.control").attach(...) end
--- `hetrun solve FILE`.
function program.solve(...) return require("het.solve.command").run(...) end
--- `hetrun docs FOLDER`.
function program.docs(folder) return require("het.program.docs").write(folder) end

-- Errors of Lua say what may have been meant, whoever called the function of the recipe that raised them.
local function hinted(problem) return type(problem) == "string" and errors.hinted(problem) or problem end
for name, command in pairs(program) do
  program[name] = function(...)
    local results = { xpcall(command, hinted, ...) }
    if not results[1] then error(results[2], 0) end
    return unpack(results, 2, table.maxn(results))
  end
end

return program
