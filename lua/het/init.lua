--- The library that recipes see: `local het = require "het"`. Its parts are loaded when they are first used.
local native = require "het.native"
local define = require "het.language.define"
local errors = require "het.errors"
local handle = require "het.sandbox.handle"
local mistakes = require "het.language.mistakes"
local source = require "het.language.source"
local suggest = require "het.language.suggest"
local text = require "het.text"

local het = { version = native.version() }

-- Names that stand for a module, or for a function of one.
local modules = {
  nn = "het.nn", optim = "het.optim", data = "het.data", op = "het.op", train = "het.train", snapshot = "het.snapshot",
  policy = "het.policy",
}
local members = {
  options = function()
    local options = require "het.language.options"
    return function(specs) return options.declare(specs, rawget(het, "recipe_text")) end
  end,
  plan = function() return require("het.plan").new end,
  cluster = function() return require("het.plan.cluster").new end,
  node = function() return require("het.plan.cluster").node end,
  link = function() return require("het.plan.cluster").link end,
  device_type = function() return require("het.plan.cluster").device_type end,
  pipeline = function() return require("het.plan").pipeline end,
  stage = function() return require("het.plan").stage end,
  load = function() return require("het.model.load").load end,
  plot = function() return require("het.plot") end,
  mesh = function() return require("het.mesh").new end,
  gradient = function() return require("het.mesh").gradient end,
  grad = function() return require("het.mesh").grad end,
  explain = function() return require("het.mesh").explain end,
  help = function() return require("het.program.docs").help end,
}

local function document(name, signature, sentence, example, fn)
  het[name] = define.document({ name = name, signature = signature, sentence = sentence, example = example }, fn)
end

het.tensor = define.object({
  name = "tensor", signature = "het.tensor(values [, dtype])",
  example = "het.tensor { { 1, 2 }, { 3, 4 } }",
  sentence = "A tensor from a number or nested lists of numbers. Those of het.randn, of operators and of others are "
    .. "alike: numbers of one dtype; + - * / work element by element, also with a number, and het.op has the rest.",
  members = {
    { "dtype", "tensor.dtype", 'What its numbers are: "f32", "bf16", "i64", ...' },
    { "shape", "tensor.shape", "Sizes of its dimensions, as a list." },
    { "item", "tensor:item()", "The number, of a tensor that holds one." },
    { "at", "tensor:at(row, column, ...)", "The number at a place, counted from 1; -1 is the last. tensor[row] is a "
      .. "row.", example = "x:at(1, -1)" },
    { "tolist", "tensor:tolist()", "Its numbers as nested lists." },
    { "to", "tensor:to(dtype)", "A copy in another dtype.", example = 'x:to "bf16"' },
    { "contiguous", "tensor:contiguous()", "Itself where its numbers lie packed row by row, else a copy that does." },
    { "clone", "tensor:clone()", "A copy." },
    { "numel", "tensor:numel()", "How many numbers it holds." },
    { "shard", "tensor:shard(mesh, { axis = dim, ... })", "The same tensor, which every rank has whole, lying over a "
      .. "mesh: each rank keeps its part. Cut in proportion by { dim = 1, shares = { 3, 1 } }; along axes that are not "
      .. "named every rank keeps all. Operators take it: they follow their sharding rules, and put collectives where "
      .. "ranks need more than they have (het.explain). x:redistribute({ data = 1 }) has it lie otherwise, x:gather() "
      .. "is all of it, x:local_part() what this rank has; x.placements and x.mesh say how it lies.",
      example = "x:shard(mesh, { data = 0, model = { dim = 1, shares = { 3, 1 } } })" },
    { "data", "tensor:data()", "Its own memory, not copied, as a pointer of LuaJIT's FFI: to float for f32, double, "
      .. "int32_t, int64_t, uint8_t for u8 and bool, uint16_t (the bits) for bf16 and f16. The memory stays as long as "
      .. "this pointer does; one computed from it (p + 1) does not keep it. Only with --trust.",
      example = "local p = x:data(); p[0] = 5" },
  },
}, native.tensor)

-- A shape as f({ 2, 3 }, "f64") or f(2, 3, "f64") gives it; returns it as a list, and what follows it.
local function shape_of(name, ...)
  if type((...)) == "table" then return ... end
  local sizes = { ... }
  if #sizes > 0 and type(sizes[1]) ~= "number" then
    errors.usage('het.%s: a shape comes first, as in het.%s(2, 3) or het.%s({ 2, 3 }, "f32"); it was given %s', name,
      name, name, text.value(sizes[1]))
  end
  for i = 1, #sizes do
    if type(sizes[i]) ~= "number" then return { unpack(sizes, 1, i - 1) }, select(i, ...) end
  end
  return sizes
end

-- A maker of tensors with one value everywhere.
local function filled(name, value)
  return function(...)
    local shape, dtype = shape_of(name, ...)
    return native.full(shape, value, dtype)
  end
end

-- Drawn numbers; in a function that is traced only from a seed, for they are drawn once.
local function drawn(name, draw)
  return function(...)
    local _, _, seed = ...
    if seed == nil and require("het.nn.builder").traces then
      errors.usage("het.%s in a forward or a loss is drawn once, when the model is built, and is the same in every "
        .. "step; self.builder:%s(x) draws in every step, and fixed numbers need a seed, het.%s(shape, \"f32\", 1)",
        name, name == "randn" and "normal" or name, name)
    end
    return draw(...)
  end
end
local randn, uniform = drawn("randn", native.randn), drawn("uniform", native.uniform)

document("randn", "het.randn(rows, columns, ... [, dtype [, seed]]) or het.randn({rows, ...} [, dtype [, seed]])",
  "A tensor of normal random numbers.", "het.randn(3, 4)",
  function(...) return randn(shape_of("randn", ...)) end)
document("uniform", "het.uniform({rows, ...} [, dtype [, seed]])", "A tensor of random numbers between -1 and 1.",
  "het.uniform({ 3, 4 })", uniform)
document("full", "het.full({rows, ...}, value [, dtype])", "A tensor with one value everywhere.",
  "het.full({ 2, 3 }, 0.5)", native.full)
document("zeros", "het.zeros(rows, columns, ... [, dtype]) or het.zeros({rows, ...} [, dtype])",
  "A tensor of zeros.", "het.zeros(2, 3)", filled("zeros", 0))
document("ones", "het.ones(rows, columns, ... [, dtype]) or het.ones({rows, ...} [, dtype])",
  "A tensor of ones.", 'het.ones(2, 3, "bf16")', filled("ones", 1))
document("arange", "het.arange(count [, dtype [, start [, step]]])", "The numbers 0, 1, 2, ... as a vector.",
  "het.arange(5)", native.arange)

define.document {
  name = "options",
  signature = 'het.options { name = { default, "what it is", min =, max =, choices =, path = }, ... }',
  sentence = "The options of a recipe: `hetrun recipe.lua --name=value` sets them, --help lists them. A number is "
    .. "whole when its default is, unless fraction = true. A text that names a file or folder has path = \"read\" or "
    .. "\"write\": the recipe may read, or write, what the command line names there.",
  example = 'local opt = het.options { steps = { 2000, "optimizer steps", min = 1 } }',
}
define.document {
  name = "help", signature = 'het.help(name)', sentence = "The text of `?name`: of a name, or of a function itself.",
  example = 'print(het.help "nn.attention")',
}

-- What serves the program, not recipes.
local internal = { begin_recipe = true, load_recipe = true, load_value = true, run_recipe = true, load_all = true,
  recipe_text = true }

local lazy = {}
for name in pairs(modules) do lazy[#lazy + 1] = name end
for name in pairs(members) do lazy[#lazy + 1] = name end
table.sort(lazy)

--- Load every part, so that all of it is documented.
function het.load_all()
  for _, name in ipairs(lazy) do local _ = het[name] end
  require "het.model.generate"
  require "het.plan.policy"
end

--- A recipe begins: its name and source serve the messages.
function het.begin_recipe(path, recipe_text)
  require("het.language.options").reset()
  het.recipe_text = recipe_text
  source.set(path, recipe_text)
  native.name_recipe(path)
end

-- Line of the mistakes, or why the recipe stopped.
local function explain(path, problem)
  local message, kind = errors.describe(problem)
  if kind == "interrupted" or kind == "ended" then return problem end
  if kind == "environment" and type(problem) == "string" then return errors.new(kind, path .. ": " .. message) end
  local found = mistakes.take()
  local line = errors.is_own(problem) and problem.place
  if line then message = ("%s:%d: %s"):format(path, line, message) end
  if not found then
    if not line and (type(problem) ~= "table" or errors.is_own(problem)) then return problem end
    return errors.new(kind, message)
  end
  -- Mistakes made before an error usually are its cause: they come first.
  if errors.is_own(problem) and kind == "usage" or message:find(path, 1, true) then
    return errors.new("usage", found .. "\n" .. message)
  end
  return errors.new("usage", found)
end

-- Handler of what a recipe raises, where it is raised: errors of the library begin with the recipe's line.
local function locate(problem)
  if type(problem) == "string" then return errors.hinted(problem) end
  local line = errors.is_own(problem) and not problem.has_places and source.current_line()
  if line then problem.place = line end
  return problem
end

-- Does a recipe declare options? One that fails before it does so cannot have its help printed.
local function recipe_text_declares(recipe_text) return recipe_text:find("%f[%w_]options%f[^%w_]") ~= nil end

--- Run a recipe's chunk; returns the run that it describes, or nil when only its help was wanted.
-- @string path of the recipe
-- @tparam function chunk its compiled source
function het.load_recipe(path, chunk)
  local options = require "het.language.options"
  local ok, result = xpcall(chunk, locate)
  -- A recipe without options has its help at once, also where its data is not there yet.
  local plain_help = native.settings.help and not recipe_text_declares(het.recipe_text)
  if plain_help then mistakes.take() end
  if not ok then
    if result == options.help_wanted or plain_help then
      native.write("stdout", options.help_text(path, het.recipe_text))
      return nil
    end
    error(explain(path, result), 0)
  end
  options.check_undeclared()
  mistakes.raise()
  if native.settings.help then
    native.write("stdout", options.help_text(path, het.recipe_text))
    return nil
  end
  if result == nil then
    if require("het.mesh").used() then return nil end   -- it has done its work
    errors.usage("%s returns nothing; a recipe ends with `return het.train { ... }`", path)
  end
  if define.kind_of(result) ~= "run" then
    errors.usage("%s returns %s; a recipe ends with `return het.train { ... }`", path, text.value(result))
  end
  return handle.inner(result)
end

--- What a file beside the recipe returns, such as that of a cluster, with the objects of the library behind its
-- handles; its mistakes are reported with the lines of that file.
-- @string path of the file
-- @string file_text its source
-- @tparam function chunk its compiled source
function het.load_value(path, file_text, chunk)
  local before = source.set(path, file_text)
  local ok, result = xpcall(chunk, locate)
  if not ok then
    result = explain(path, result)
  else
    local found = mistakes.take()
    if found then ok, result = false, errors.new("usage", found) end
  end
  source.restore(before)
  if not ok then error(result, 0) end
  return (handle.import(result))
end

--- Run a recipe's chunk and what it returns. Returns the exit code.
-- @string path of the recipe
-- @tparam function chunk its compiled source
function het.run_recipe(path, chunk)
  local run = het.load_recipe(path, chunk)
  local results = run and run:start()
  require("het.mesh").leave()
  if not run then return 0 end
  if native.settings.json then
    -- What a run had no reason to measure is null: who reads the line finds every key.
    for _, name in ipairs { "validation_loss", "best_validation_loss", "best_validation_step", "train_loss", "mfu",
      "tokens_per_s", "samples_per_s" } do
      if not text.finite(results[name]) then results[name] = native.null end
    end
    native.write("stdout", native.json_encode(results) .. "\n")
  end
  return results.interrupted and errors.exit_codes.interrupted or 0
end

return setmetatable(het, {
  __names = lazy,
  __hidden = internal,
  __has = function(name)
    return not internal[name] and (modules[name] or members[name] or rawget(het, name) ~= nil) and true or false
  end,
  __index = function(_, name)
    local value
    if modules[name] then value = require(modules[name]) elseif members[name] then value = members[name]() end
    if value == nil then
      local names = { unpack(lazy) }
      for _, each in ipairs(text.keys(het)) do
        if not internal[each] and not modules[each] and not members[each] then names[#names + 1] = each end
      end
      errors.usage("het has no '%s'%s", tostring(name), suggest.sentence(tostring(name), names, "?het"))
    end
    rawset(het, name, value)
    return value
  end,
})
