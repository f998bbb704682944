--- `het.snapshot`: the state of a run after one step, in files that are read under any plan.
local native = require "het.native"
local access = require "het.sandbox.access"
local define = require "het.language.define"
local errors = require "het.errors"
local text = require "het.text"

local snapshot = {}

local Snapshot = {}
Snapshot.__index = Snapshot

Snapshot.__tostring = function(self)
  return ("snapshot of step %d%s: %s in %s%s"):format(self.step, self.run == "" and "" or " of " .. self.run,
    text.bytes(self.bytes), text.plural(#self.files, "file"), self.whole and "" or ", not complete")
end

-- What the files of a snapshot say of it.
local function of_native(handle)
  local about = handle:summary()
  local self = { native = handle, run = about.run, step = about.step, generation = about.generation, plan = about.plan,
    ranks = about.ranks, cursor = about.cursor, seed = about.seed, history = about.history, files = {}, bytes = 0,
    about = about.about == "" and {} or native.json_decode(about.about), holders = {} }
  self.model = self.about.config
  for i, file in ipairs(about.files) do
    self.files[i] = file.path
    self.bytes = self.bytes + file.bytes
    self.holders[i] = { rank = file.rank, file = file.path, bytes = file.bytes, parts = file.units }
  end
  self.whole = #handle:missing() == 0
  return setmetatable(self, Snapshot)
end

--- The same as snapshot.open, for the library; and a sentence for every newer one that is not whole.
function snapshot.open_newest(place, step)
  local handle, passed_over = native.snapshot_open(place, step)
  return of_native(handle), passed_over
end

snapshot.open = define.document({
  name = "snapshot.open",
  sentence = "A snapshot: what a file, or the files of one step in a folder or a store (s3://...), hold of a run's "
    .. "state. Without a step it is the latest complete one in the folder. Tensors are read when they are used, and "
    .. "checked.",
  signature = "het.snapshot.open(place [, step])",
  example = 'local before = het.snapshot.open "runs/shakespeare/snapshots"',
}, function(place, step)
  define.expect("het.snapshot.open", place, "string")
  if step ~= nil then define.expect("het.snapshot.open", step, "integer") end
  if not place:match "^%w+://" then
    access.check(place)
  elseif native.confined() then
    errors.usage("the recipe asks to read snapshots in %s; a recipe may read files here alone: --trust lets it", place)
  end
  local opened, passed_over = snapshot.open_newest(place, step)
  for _, sentence in ipairs(passed_over) do native.write("stderr", sentence .. "; an older one is opened\n") end
  return opened
end)

--- The tensors of the state, as a list.
function Snapshot:tensors()
  local list = self.native:tensors()
  for _, tensor in ipairs(list) do
    local held = 0
    for _, part in ipairs(tensor.parts) do held = held + part.bytes end
    tensor.held_bytes = held
  end
  return list
end

--- A tensor, or one slice of it.
function Snapshot:read(name, slice)
  define.expect("snapshot:read", name, "string")
  if slice ~= nil then define.expect("snapshot:read", slice, "string") end
  return self.native:read(name, slice)
end

--- What differs between two snapshots.
function Snapshot:diff(other)
  if define.kind_of(other) ~= "snapshot" then
    errors.usage("snapshot:diff compares with another snapshot, as het.snapshot.open returns it")
  end
  local differences, theirs = {}, {}
  for _, tensor in ipairs(other.native:tensors()) do theirs[tensor.name] = tensor end
  for _, tensor in ipairs(self.native:tensors()) do
    local twin = theirs[tensor.name]
    theirs[tensor.name] = nil
    if not twin then
      differences[#differences + 1] = { name = tensor.name, only = "here" }
    elseif twin.dtype ~= tensor.dtype or text.shape(twin.shape) ~= text.shape(tensor.shape) then
      differences[#differences + 1] = { name = tensor.name,
        type = ("%s%s, there %s%s"):format(tensor.dtype, text.shape(tensor.shape), twin.dtype, text.shape(twin.shape)) }
    elseif tensor.bytes > 0 then
      local most = self.native:difference(tensor.name, other.native)
      if most ~= 0 then differences[#differences + 1] = { name = tensor.name, most = most } end
    end
  end
  for _, name in ipairs(text.keys(theirs)) do differences[#differences + 1] = { name = name, only = "there" } end
  return differences
end

--- Check all data; returns a sentence for each damaged chunk.
function Snapshot:verify() return self.native:verify() end

--- What no file has, as a list of { name, slice }.
function Snapshot:missing() return self.native:missing() end

define.object {
  name = "snapshot", classes = { Snapshot },
  sentence = "The state of a run after one step, as het.snapshot.open finds it in files.",
  members = {
    { "run", "snapshot.run", "The name of the run." },
    { "step", "snapshot.step", "The step whose update the state has had." },
    { "generation", "snapshot.generation", "The generation of the run that decided this step." },
    { "plan", "snapshot.plan", "The plan that the run had, as a recipe writes it." },
    { "model", "snapshot.model", "The configuration of its model, as its config.json would say; nil where it is not "
      .. "known." },
    { "ranks", "snapshot.ranks", "How many ranks wrote it." },
    { "holders", "snapshot.holders", "Who holds it: a list of { rank, file, bytes, parts }, of the rank that wrote "
      .. "each file." },
    { "cursor", "snapshot.cursor", "The next training sample." },
    { "files", "snapshot.files", "Paths of its files." },
    { "bytes", "snapshot.bytes", "Bytes of its files." },
    { "whole", "snapshot.whole", "Whether the files have all of the state." },
    { "tensors", "snapshot:tensors()", "A list of { name, dtype, shape, trained, bytes, held_bytes, parts }; parts is "
      .. "a list of { slice, file, bytes }." },
    { "read", "snapshot:read(name [, slice])", "A tensor, checked; or the part that a slice takes, packed. A tensor "
      .. "that one file has whole is not copied.", example = 'before:read("tokens.weight", "[0:64, :]")' },
    { "missing", "snapshot:missing()", "What no file has: a list of { name, slice }." },
    { "diff", "snapshot:diff(other)", "What differs: a list of { name, most }, the greatest difference of an element; "
      .. "{ name, only } of a tensor that only one has; { name, type } where types differ." },
    { "verify", "snapshot:verify()", "Checks all data: a list with a sentence for each damaged chunk." },
  },
}

--- The snapshots in a folder, the newest first: { step, generation, files, bytes, problem }.
function snapshot.list(folder)
  local list = native.snapshot_list(folder)
  for _, listed in ipairs(list) do
    local ok, opened = pcall(native.snapshot_open, folder, listed.step)
    if not ok then
      if select(2, errors.describe(opened)) ~= "usage" then error(opened, 0) end
      listed.problem = errors.describe(opened)
    else
      local found = of_native(opened)
      listed.bytes = found.bytes
      local missing = opened:missing()
      if missing[1] then
        listed.problem = ("no file has %s %s"):format(missing[1].name, missing[1].slice)
          .. (missing[2] and (", nor %d other slices"):format(#missing - 1) or "")
      end
    end
  end
  return list
end

return snapshot
