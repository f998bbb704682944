--- One definition for each constructor that recipes call. From it come the checks of its arguments (mistakes are
-- recorded, not raised, so that all of a recipe's come out at once), `?name`, the pages and the editor's stubs.
--
-- A definition is a table:
--
--   name      as recipes write it: "nn.attention"
--   sentence  what it is, in a sentence
--   fields    list of { name, type, doc, default =, required =, min =, max =, above =, below =, choices =,
--             fields = (of a record), instead = (of a record, as below), path = "read" or "write" (it names a file or
--             folder that is),
--             unit = { parse =, such_as =, zero = } (a text that stands for a quantity: how it is read, examples, and
--             whether it may be 0) }
--   instead   what to use in place of names that other libraries have for a field, by that name: a few words
--   positional  how many of the fields may be given in order: nn.linear(768, 3072)
--   list      { type, doc, least = }: what the list part of the argument holds
--   check     function(arguments, report): rules between fields; report(field, sentence), report() when that is done
--   check_known  function(arguments, report, given): rules about whatever is right of the arguments, also where others
--             are not; `given` has all of them as they were given
--   build     function(arguments): what the constructor returns
--   kind      what it returns, for the types of other constructors' fields: "layer", "schedule", "corpus", ...
--   example   a line of a recipe
local native = require "het.native"
local access = require "het.sandbox.access"
local errors = require "het.errors"
local handle = require "het.sandbox.handle"
local mistakes = require "het.language.mistakes"
local suggest = require "het.language.suggest"
local text = require "het.text"

local define = {}

local definitions = {}                               -- by name
local order = {}                                     -- names as they were defined
local objects = {}                                   -- what define.object was given, by kind
local of_function = setmetatable({}, { __mode = "k" })

-- Arithmetic on what is not known is not known.
local Unknown = handle.share({ __tostring = function() return "unknown" end }, "unknown")
Unknown.__index = function() return define.unknown end
Unknown.__newindex = function() end
Unknown.__call = function() return define.unknown end
for _, operation in ipairs { "add", "sub", "mul", "div", "mod", "pow", "unm", "concat" } do
  Unknown["__" .. operation] = function() return define.unknown end
end

--- What a mistaken constructor returns: it passes every check, so that one mistake is reported once.
define.unknown = setmetatable({}, Unknown)

-- Of unknown values: the name of the constructor that returned them, and its arguments that are right.
local remains = setmetatable({}, { __mode = "k" })

local function mistaken(definition, arguments)
  local value = setmetatable({}, Unknown)
  remains[value] = { name = definition.name, arguments = arguments }
  return value
end

--- Is a value the result of a mistake?
function define.is_unknown(value) return type(value) == "table" and debug.getmetatable(value) == Unknown end

--- What a mistaken call of a constructor leaves to check: the constructor's name and the arguments that are right, or
-- nothing.
function define.remains(value)
  local of = type(value) == "table" and remains[value]
  if of then return of.name, of.arguments end
end

--- The kind of an object of the library ("layer", "schedule", ...), or the type of any other value.
function define.kind_of(value)
  return type(value) == "table" and handle.kind(value) or type(value)
end

-- A table as a recipe writes it, without a metatable, whatever that says of itself.
local function is_plain(value) return type(value) == "table" and debug.getmetatable(value) == nil end

local function finite(value) return type(value) == "number" and value - value == 0 end
local function whole(value) return finite(value) and value == math.floor(value) end

-- Is a value an object of the engine, of one of these classes?
local function is_native(value, ...)
  local class = type(value) == "userdata" and getmetatable(value)
  for i = 1, select("#", ...) do
    if class == select(i, ...) then return true end
  end
  return false
end

-- The greatest whole number up to which Lua's numbers hold each one exactly.
local greatest_whole = 2 ^ 53

-- What each type accepts, and how it is called in messages. Any other type is a kind of object.
local types = {
  integer = { whole, "a whole number" },
  number = { finite, "a number" },
  boolean = { function(v) return type(v) == "boolean" end, "true or false" },
  string = { function(v) return type(v) == "string" end, "a string" },
  table = { function(v) return type(v) == "table" end, "a table" },
  list = { function(v) return type(v) == "table" end, "a list" },
  record = { is_plain, "a table of fields" },
  ["function"] = { function(v) return type(v) == "function" end, "a function" },
  layer = {
    function(v) return define.kind_of(v) == "layer" or type(v) == "function" end,
    "a layer (such as nn.linear) or a function",
  },
  model = {
    function(v) return define.kind_of(v) == "layer" end,
    "a layer (nn.layer makes one of a function and the layers that it uses)",
  },
  tensor = { function(v) return is_native(v, "tensor") end, "a tensor" },
  value = { function(v) return is_native(v, "tensor", "distributed tensor", "value") end,
    "a tensor or a value of a graph" },
  any = { function() return true end, "anything" },
}

--- The range of a field's numbers, each limit in words: { "at least 1", "below 2" }.
function define.limits(field)
  local limits = {}
  local function add(words, value)
    if value then limits[#limits + 1] = words .. " " .. text.value(value) end
  end
  add("at least", field.min)
  add("above", field.above)
  add("at most", field.max)
  add("below", field.below)
  return limits
end

--- What a type is called in messages and pages; `number|schedule` is either.
function define.type_name(type_of_field)
  local names = {}
  for name in type_of_field:gmatch("[^|]+") do
    names[#names + 1] = types[name] and types[name][2] or (name:find "^[aeiou]" and "an " or "a ") .. name
  end
  return table.concat(names, " or ")
end

-- A constructor's example where it is one line, else its name: "nn.linear(768, 3072)", "nn.gpt { ... }".
local function call_of(definition)
  local example = definition.example or ""
  if example:sub(1, #definition.name) == definition.name and not example:find "\n" then return example end
  return definition.name .. (#definition.fields == 0 and "()" or " { ... }")
end

--- Say how to call a constructor that is given without calling it: "the constructor nn.linear; call it, as in ...";
-- nil of any other value.
function define.uncalled(value)
  local definition = type(value) == "function" and define.lookup(value)
  if not definition or not definition.build then return nil end
  return ("the constructor %s; call it, as in %s"):format(definition.name, call_of(definition))
end

-- ", such as optim.adamw { ... }" for a type that the library's constructors make; "" for others.
local function example_of(type_of_field)
  for _, name in ipairs(order) do
    local definition = definitions[name]
    if definition.build and definition.kind == type_of_field then return ", such as " .. call_of(definition) end
  end
  return ""
end

local function accepts(type_of_field, value)
  for name in type_of_field:gmatch("[^|]+") do
    local known = types[name]
    if known and known[1](value) or not known and define.kind_of(value) == name then return true end
  end
  return false
end

-- What a value of the wrong type is: the subject of " is ...; a text is needed".
local function described(value, wanted)
  local kind = define.kind_of(value)
  if kind == "string" then return "a string" end
  if kind ~= "number" then return "a " .. kind end
  if not finite(value) then return "not finite" end
  return ("|" .. wanted .. "|"):find("|integer|", 1, true) and "not whole" or "a number"
end

-- What is meant where a method itself was given, by function.
local meant = setmetatable({}, { __mode = "k" })

--- Say what may be meant where a method is given without calling it: `hint` ends the sentence of the mistake.
function define.hint(method, hint) meant[method] = hint end

-- Why a text is not the quantity that a field takes.
local function misread(unit, words)
  local ok, quantity = pcall(unit.parse, words)
  if ok then
    return not unit.zero and quantity == 0 and (" has to be above 0, such as %s"):format(unit.such_as) or nil
  end
  local sentence, quoted = errors.describe(quantity), "'" .. words .. "'"
  return sentence:sub(1, #quoted) == quoted and sentence:sub(#quoted + 1) or ": " .. sentence
end

-- Why a value does not fit a field, as the end of a sentence that begins with the value; nil when it fits.
local function value_problem(field, value)
  if define.is_unknown(value) then return nil end
  local uncalled = not ("|" .. field[2] .. "|"):find("|any|", 1, true) and define.uncalled(value)
  if uncalled then return " is " .. uncalled end
  if not accepts(field[2], value) then
    local hint = meant[handle.original(value)]
    return (" is %s; %s is needed%s%s"):format(described(value, field[2]), define.type_name(field[2]),
      field.unit and ", such as " .. field.unit.such_as or example_of(field[2]), hint and "; " .. hint or "")
  end
  if field.unit then return misread(field.unit, value) end
  if field.choices and type(value) ~= "function" then
    for _, choice in ipairs(field.choices) do
      if choice == value then return nil end
    end
    local names = {}
    for i, choice in ipairs(field.choices) do names[i] = tostring(choice) end
    local near = native.nearest(tostring(value), names)
    return (" is not one of %s%s"):format(table.concat(names, ", "), near and ("; did you mean '%s'?"):format(near)
      or "")
  end
  if type(value) ~= "number" then return nil end
  if math.abs(value) > greatest_whole and field[2]:find("integer", 1, true) then
    return " is beyond 2^53 = 9007199254740992, the greatest whole number that is kept exactly"
  end
  if field.min and value < field.min then
    return (" is below %s, the least that works"):format(text.value(field.min))
  end
  if field.max and value > field.max then
    return (" is above %s, the most that works"):format(text.value(field.max))
  end
  if field.above and value <= field.above then return (" has to be above %s"):format(text.value(field.above)) end
  if field.below and value >= field.below then return (" has to be below %s"):format(text.value(field.below)) end
end
define.value_problem, define.accepts = value_problem, accepts

local function names_of(fields)
  local names = {}
  for i, field in ipairs(fields) do names[i] = field[1] end
  return names
end

-- Check `given` against `fields`; returns the arguments with defaults, whether all is well, and whether at least the
-- values of known fields are.
local function check_fields(constructor, owner, prefix, fields, given, list, instead)
  local arguments, sound, values_sound, known = {}, true, true, {}
  local function report(field, sentence)
    sound = false
    mistakes.record(constructor, field and prefix .. field, sentence)
  end
  for _, field in ipairs(fields) do known[field[1]] = field end
  for _, key in ipairs(text.keys(given)) do
    if type(key) == "string" and not known[key] then
      local other = instead and instead[key]
      report(key, other and ("unknown field '%s'; use %s"):format(key, other)
        or ("%s has no field '%s'%s"):format(owner, key, suggest.sentence(key, names_of(fields), "?" .. owner)))
    elseif type(key) ~= "string" and not list then
      local value = text.value(given[key])
      if value:find "\n" then value = value:match "^[^\n]*" .. " ..." end   -- of a model the first line
      report(nil, ("%s takes named fields; it was given %s without a name (fields: %s)"):format(owner, value,
        table.concat(names_of(fields), ", ")))
    end
  end
  for _, field in ipairs(fields) do
    local name, value = field[1], given[field[1]]
    if value == nil then
      if field.required then
        values_sound = false
        report(nil, ("%s needs '%s': %s"):format(owner, name, field[3]))
      elseif field.fields and field.default ~= nil then
        arguments[name] = check_fields(constructor, owner .. "." .. name, prefix .. name .. ".", field.fields,
                                       field.default)
      else
        arguments[name] = field.default
      end
    else
      local problem = value_problem(field, value)
      local refused = not problem and field.path and type(value) == "string"
        and access.problem(value, field.path == "write")
      if problem then
        values_sound = false
        -- The address of a function says nothing.
        local shown = type(value) == "function" and "" or " = " .. text.value(value)
        report(name, ("%s.%s%s%s"):format(owner, name, shown, problem))
      elseif refused then
        values_sound = false
        report(name, ("%s.%s: %s"):format(owner, name, refused))
      elseif field.fields and is_plain(value) then
        local inner, good, inner_sound =
          check_fields(constructor, owner .. "." .. name, prefix .. name .. ".", field.fields, value, nil,
                       field.instead)
        arguments[name], sound, values_sound = inner, sound and good, values_sound and inner_sound
      else
        arguments[name] = value
      end
    end
  end
  return arguments, sound, values_sound
end

local function check_list(definition, given, arguments)
  local list, sound, last = definition.list, true, 0
  for key in pairs(given) do
    if type(key) == "number" then last = math.max(last, key) end
  end
  for i = 1, last do
    local uncalled = define.uncalled(given[i])
    if given[i] == nil then
      mistakes.record(definition.name, nil, ("%s: item %d of %d is nil; what may be left out is added to a list with "
        .. "list[#list + 1] = item"):format(definition.name, i, last))
      sound = false
      break
    elseif uncalled or not define.is_unknown(given[i]) and not accepts(list[1], given[i]) then
      mistakes.record(definition.name, nil, ("%s: item %d is %s"):format(definition.name, i,
        uncalled or ("%s; %s is needed"):format(text.value(given[i]), define.type_name(list[1]))))
      sound = false
    end
    arguments[i] = given[i]
  end
  if #given < (list.least or 0) then
    mistakes.record(definition.name, nil, ("%s needs %s%d of %s"):format(
      definition.name, list.least > 1 and "at least " or "", list.least, list[2]))
    sound = false
  end
  return sound
end

-- What is said of argument i of `count`, for which a constructor has no place.
local function without_place(definition, count, i, value)
  local places, first = definition.positional or 0, definition.fields[1]
  if places == 0 and count == 1 then
    return ("%s takes a table of named fields%s; it was given %s"):format(definition.name,
      first and (", as in %s { %s = ... }"):format(definition.name, first[1]) or "", text.value(value))
  end
  return ("%s takes %s; argument %d was given too"):format(definition.name, places == 0
    and "one table of named fields"
    or text.plural(places, "argument") .. " and a table of named fields", i)
end

-- The arguments of a call as one table: `f{...}`, `f(a, b)`, `f(a, b, {...})`.
local function gather(definition, ...)
  local count, first = select("#", ...), ...
  if count == 0 then return {} end
  if count == 1 and is_plain(first) then return first end
  local given, places = {}, definition.positional or 0
  for i = 1, count do
    local value = select(i, ...)
    if i == count and i > 1 and is_plain(value) then
      for key, inner in pairs(value) do given[key] = inner end
    elseif i <= places then
      given[definition.fields[i][1]] = value
    else
      mistakes.record(definition.name, nil, without_place(definition, count, i, value))
    end
  end
  return given
end

local function involves_unknown(arguments)
  for _, value in pairs(arguments) do
    if define.is_unknown(value) then return true end
  end
  return false
end

--- Make a constructor from its definition (see the head of this file).
-- @tparam table definition
-- @treturn function
function define.constructor(definition)
  definition.fields = definition.fields or {}
  local function construct(...)
    local given = gather(definition, ...)
    local arguments, sound, values_sound =
      check_fields(definition.name, definition.name, "", definition.fields, given, definition.list,
        definition.instead)
    if definition.list then sound = check_list(definition, given, arguments) and sound end
    local function report(field, sentence)
      sound = false
      if sentence then mistakes.record(definition.name, field, sentence) end
    end
    -- Rules between fields are checked beside a misspelt field, not where a value is missing or of the wrong type.
    if values_sound and definition.check and not involves_unknown(arguments) then
      definition.check(arguments, report)
    end
    if definition.check_known then definition.check_known(arguments, report, given) end
    if not sound or involves_unknown(arguments) then return mistaken(definition, arguments) end
    return definition.build(arguments)
  end
  define.document(definition, construct)
  return construct
end

--- Add something to the documentation that checks its arguments itself.
-- @tparam table definition `name`, `sentence`, and optionally `signature`, `fields`, `returns`, `example`
-- @tparam[opt] function fn what it documents, so that `?` finds it by value
function define.document(definition, fn)
  if not definitions[definition.name] then order[#order + 1] = definition.name end
  definitions[definition.name] = definition
  if fn then of_function[fn] = definition end
  return fn
end

-- What recipes may do with documented objects.
local function declare_class(definition)
  local fields, methods = {}, {}
  for _, member in ipairs(definition.members) do
    local name, signature = member.name:match "[^.]+$", member.signature
    local how = signature:match ":(.*)$"
    if how then
      local fn = definition.methods and definition.methods[name] or definition.classes[1][name]
      methods[name] = { fn, member.how or how }
    else
      fields[#fields + 1] = name
    end
  end
  handle.class({ kind = definition.kind or definition.name, name = definition.name, fields = fields, methods = methods,
    call = definition.call, show = definition.show }, unpack(definition.classes))
end

--- Document the objects of a kind and what is called on them: `?run`, `?run.start`.
-- @tparam table definition `name` (what such an object is called in signatures), `kind` (default: the name),
-- `sentence`, and `members`: a list of { name, signature, sentence, fields =, example = }, or { name, definition } of
-- one that has its own. `signature` and `example` of a constructor of that name. With `classes`, a list of metatables
-- of such objects (or names of classes of the engine), the members are all that recipes may use of them: fields, and
-- methods, whose signatures have a colon. `methods` has, by name, those that differ from the first metatable's; `call`
-- and `show` are as of handle.class.
-- @tparam[opt] function constructor
function define.object(definition, constructor)
  definition.is_object = true
  objects[definition.kind or definition.name] = definition
  define.document(definition, constructor)
  for i, member in ipairs(definition.members) do
    local full = definition.name .. "." .. member[1]
    if type(member[2]) == "table" then
      definitions[full] = member[2]
    else
      define.document { name = full, of = definition, signature = member[2], sentence = member[3],
        fields = member.fields, example = member.example, how = member.how }
    end
    definition.members[i] = definitions[full]
  end
  if definition.classes then declare_class(definition) end
  return constructor
end

--- The kind of a value, with tensors and what else is no table; the names of define.object.
local function kind_of_any(value)
  local meta = type(value) == "userdata" and debug.getmetatable(value) and getmetatable(value)
  return type(meta) == "string" and meta or define.kind_of(value)
end

--- The definition of the objects that a value is one of; nil when there is none.
function define.object_of(value) return objects[kind_of_any(value)] end

--- The definition of the objects of a kind, or nil.
function define.object_named(kind) return objects[kind] end

--- The definition of a name ("nn.attention", also "het.nn.attention"; "run.start", also "run:start") or of a
-- constructor itself; or nil.
function define.lookup(what)
  if type(what) ~= "string" then return of_function[handle.original(what)] end
  local dotted = what:gsub(":", ".")
  return definitions[what] or definitions[dotted] or definitions[(dotted:gsub("^het%.", ""))]
end

--- All documented names, in the order of their definitions.
function define.names() return order end

--- Raise when an argument of a function (not a constructor) is of another type.
-- @string name the function, for the message
-- @param value
-- @string wanted a type of fields
function define.expect(name, value, wanted)
  if accepts(wanted, value) then return value end
  errors.usage("%s: %s was given; %s is needed", name, text.value(value), define.type_name(wanted))
end

return define
