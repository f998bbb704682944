--- How the ranks of a run meet, what they check together before anything is computed, and how they come to one plan.
local native = require "het.native"
local access = require "het.sandbox.access"
local digest = require "het.train.digest"
local elastic = require "het.train.elastic"
local errors = require "het.errors"
local fault = require "het.train.fault"
local files = require "het.model.folder"
local places = require "het.train.places"
local plan = require "het.plan"
local ranks = require "het.plan.ranks"
local saving = require "het.train.saving"
local text = require "het.text"
local together = require "het.train.together"

local meeting = {}

-- Has the planner begin, in a separate thread, to look for the plan that a het.plan.auto asks for. Returns a function
-- that waits for what it answers; in together.by_first_in_time the others wait too.
local function begin_plan(self, wanted, cluster)
  if wanted.profile then access.check(wanted.profile) end
  local wait, is_done = require("het.plan.planning").begin(self, cluster, wanted)
  return function()
    while not is_done() do together.wait(self) end
    local answer = wait()
    if not answer.feasible then errors.usage("no plan fits:\n  %s", table.concat(answer.problems, "\n  ")) end
    return answer
  end
end

-- The plan of an answer, logged by the first rank.
local function take_plan(self, written, answer)
  local found, fallbacks = require("het.plan.planning").from_lua(written)
  self.plan, self.fallbacks = plan.resolve(found, self.arguments.batch), fallbacks
  if answer and not native.settings.quiet and (not self.cluster or self.cluster:rank() == 0) then
    native.write("stderr", require("het.plan.planning").text_of(answer))
  end
end

-- The fastest plan may leave ranks out. They are there to train, so all share the batch, as with --elastic.
local function use_all(self)
  local a, count, devices = self.arguments, self.cluster:size(), #plan.devices(self.plan)
  if devices >= count then return end
  self.plan, self.fallbacks = plan.replicas(count, a.batch, a.microbatch), nil
  if self.cluster:rank() == 0 and not native.settings.quiet then
    native.write("stderr", ("the fastest plan uses %d of the %d ranks; all of them share the batch instead. "
      .. "Start %s to train by the plan above\n"):format(devices, count, text.plural(devices, "rank")))
  end
end

local function refuse_ranks(devices, count)
  errors.usage("the plan is for %s, %s; start the recipe with --workers %d", text.plural(devices, "device"),
    count == 1 and "this process is alone" or ("%d ranks are here"):format(count), devices)
end

--- A plan for several devices needs as many ranks; ranks without a plan are replicas that share the batch evenly.
function meeting.settle_plan(self)
  local a, count = self.arguments, self.cluster and self.cluster:size() or 1
  if self.plan then
    local devices = #plan.devices(self.plan)
    if devices ~= count and self.member then
      errors.usage("the plan is for %s, %d ranks are here (run.ranks)", text.plural(devices, "device"), count)
    elseif devices ~= count then
      refuse_ranks(devices, count)
    end
  elseif count > 1 then
    self.plan = plan.replicas(count, a.batch, a.microbatch)
  end
end

-- Where ranks meet, as the command line says. A recipe's own wish counts where the person agreed to it.
local function rendezvous_of(a)
  local settings, wish = native.settings or {}, a.rendezvous
  if settings.rendezvous or not wish then return settings.rendezvous end
  local agreed = settings.trust or not native.confined() or wish == settings.approved_rendezvous
  if agreed or native.is_alone() or os.getenv "HETRUN_RENDEZVOUS" then return agreed and wish or nil end
  errors.usage("the recipe asks to meet other machines at %s; a recipe may only talk to what the command line names: "
    .. "--rendezvous=%s", wish, wish)
end

-- A model that the run would replace is not its own: an error that says so.
local function refuse(self, field, held)
  local a, folder = self.arguments, self.arguments[field]
  if a.overwrite and not self.resume then
    errors.usage("%s holds %s; the recipe asks to replace it, and --overwrite lets it; another folder for `%s` keeps "
      .. "both", folder, files.describe_held(held), field)
  elseif self.resume then
    errors.usage("%s holds %s that this run has not written: its best step is %s; another folder for `%s` keeps both",
      folder, files.describe_held(held), self.best_step and ("%d"):format(self.best_step) or "not known", field)
  end
  errors.usage("%s holds %s; %s, --overwrite replaces it, another folder for `%s` keeps both", folder,
    files.describe_held(held), held.training and "--resume (resume = true) goes on with it"
      or ("from = %q begins with its weights"):format(folder), field)
end

-- A folder that the run saves in, named by a field of het.train.
local function check_folder(self, field)
  local a, folder = self.arguments, self.arguments[field]
  if native.path_kind(folder) == "file" then
    errors.usage("cannot save in %s: it is a file; %s = names a folder", folder, field)
  end
  access.check(folder, true)
  native.try_folder(folder)
  local problem = files.problem(folder, a.model)
  if problem then errors.usage("%s", problem) end
  local there = files.held(folder)
  if there and there.foreign and self.overwrite then
    errors.usage("%s holds %s, which a save would leave beside the files it writes; another folder for `%s` works",
      folder, there.foreign, field)
  elseif there and there.model and not there.training and self.resume then
    local why = there.foreign == "training.safetensors" and "an earlier version of hetrun saved its training state"
      or "no training.snapshot"
    errors.usage("%s holds a model but nothing to go on from (%s); from = %q begins with its weights", folder, why,
      folder)
  end
  local held = not self.resume and not self.overwrite and there and saving.is_of_others(self, folder, there) and there
  if held then refuse(self, field, held) end
end

--- Of a run that goes on from a save: an error where `keep_best` holds another run's model. One of a later step than
-- the save may be of this run, which then failed: it stays, and the best ones are saved beside it.
function meeting.check_best(self)
  local folder = self.arguments.keep_best
  if self.restores then return end   -- what was best until the snapshots is not known yet
  local held = saving.held_by_others(self, folder)
  if held and not (self.step > 0 and held.training and (held.steps or 0) > self.step) then
    refuse(self, "keep_best", held)
  end
end

-- What will be written, looked at before anything is computed: by the rank that writes it.
function meeting.check_places(self)
  local a, settings = self.arguments, native.settings or {}
  if a.save then check_folder(self, "save") end
  if a.keep_best then check_folder(self, "keep_best") end
  if a.save and a.keep_best and native.resolve(a.save) == native.resolve(a.keep_best) then
    errors.usage("`save` and `keep_best` are the same folder, %s; another one keeps both", a.save)
  end
  if not a.save and self.resume and not (a.snapshot and a.snapshot.folder) then
    errors.usage("--resume needs the folder to go on from: this run has no `save` and no `snapshot.folder`")
  end
  if a.snapshot and a.snapshot.folder then
    access.check(a.snapshot.folder, true)
    native.try_folder(a.snapshot.folder)
    local store = a.snapshot.store
    local folder = store and (store:match "^file://(/.*)$" or not store:match "^%w+://" and store)
    if folder then
      access.check(folder, true)
    elseif store and native.confined() then
      errors.usage("the recipe asks to send snapshots to %s; a recipe may not send data elsewhere: --trust lets it",
        store)
    end
    local problem = places.problem(self)
    if problem then errors.usage("%s", problem) end
  end
  local folder = settings.trace and settings.trace:match("^(.*)/[^/]*$")
  if folder and folder ~= "" and native.path_kind(folder) ~= "folder" then
    errors.usage("there is no folder %s for --trace=%s", folder, settings.trace)
  end
end

--- The other ranks of the run, when there are any. Returns a function that gives the run the plan that all of them
-- follow: until it is called, one that the planner looks for is looked for beside what else the start takes.
function meeting.join(self)
  local a, settings = self.arguments, native.settings or {}
  local automatic = a.plan and a.plan.automatic
  local answer, begun
  if settings.elastic then
    if automatic and automatic.cluster then
      errors.usage("het.plan.auto.cluster describes devices that stay; with --elastic ranks come and go, and the plan "
        .. "is found for as many as are there: leave `cluster` out")
    elseif a.pace then
      errors.usage("train.pace slows the ranks of one plan; with --elastic plans change: leave one of them out")
    end
  end
  if a.alone then
    self.rank, self.place, self.ranks = 0, 0, 1
    self.resume = a.resume   -- what the command line says is of the other run
    meeting.check_places(self)
    return function() end
  end
  if native.is_alone() and (settings.rendezvous or "") ~= "" and not settings.elastic then
    errors.usage("--rendezvous=%s is where ranks meet; set RANK (from 0) and WORLD_SIZE for each process",
      settings.rendezvous)
  end
  if native.is_alone() then meeting.check_places(self) end   -- before a planner begins
  -- Of a cluster that is written down every rank plans at once, while it joins; of this machine the first one does.
  if automatic and automatic.cluster then
    begun = begin_plan(self, automatic, automatic.cluster)
  elseif not automatic then
    self.plan = plan.resolve(a.plan, a.batch)
  end
  if a.pace and begun then   -- whose links the ranks join by
    answer = begun()
    self.plan = plan.resolve(require("het.plan.planning").from_lua(answer.lua), a.batch)
  end
  if a.pace then
    local devices = plan.devices(self.plan or errors.usage("train.pace needs the devices before the ranks meet: %s",
      automatic and "give the planner the cluster, as in het.plan.auto { cluster = cluster }" or "a `plan` names them"))
    local count = tonumber(os.getenv "WORLD_SIZE" or "1")
    if not settings.elastic and #devices ~= count then refuse_ranks(#devices, count) end
    self.pace = native.pace(a.pace, devices)
  end
  local joining = {
    rendezvous = rendezvous_of(a), interface = settings.interface, run = a.name,
    secret_file = settings.secret_file, timeout = settings.timeout, warn_after = settings.warn_after,
    links = self.pace and self.pace.links,
    device = self.device, memory = native.device(self.device):available_bytes(),
  }
  for name, words in pairs(digest.of_run(a)) do joining[name] = words end
  fault.in_phase "start"
  if settings.elastic then
    elastic.join(self, joining)
  else
    self.cluster = native.join(joining)
  end
  self.rank, self.ranks = self.cluster and self.cluster:rank() or 0, self.cluster and self.cluster:size() or 1
  self.place = self.rank   -- among the ranks of the plan
  if self.member then return function() end end   -- each generation has a separate plan
  if self.cluster then together.by_first(self, meeting.check_places, self) end
  if not automatic then
    together.call(self, meeting.settle_plan, self)
    return function() end
  end
  local shared = not automatic.cluster and self.cluster   -- the first rank plans for all
  if not automatic.cluster then
    local cluster = self.cluster and ranks.cluster(self) or require("het.plan.cluster").here(1)
    if self.rank == 0 then begun = begin_plan(self, automatic, cluster) end
  end
  return function()
    local function find()
      answer = answer or begun()
      return require("het.plan.planning").to_lua(answer)
    end
    local written
    if shared then
      written = together.by_first_in_time(self, find)
    else   -- ranks have planned while they joined; should two differ, the first one's plan counts
      local own = together.in_time(self, find)
      written = together.by_first(self, function() return own end)
    end
    take_plan(self, written, answer)
    if shared then use_all(self) end
    together.call(self, meeting.settle_plan, self)
    if shared and not ranks.arrange(self, plan.devices(self.plan)) then
      errors.usage("the plan names other devices than those of the %d ranks", self.ranks)
    end
  end
end

return meeting
