--- What a run says while it trains: one line that is written over on a terminal, plain lines elsewhere, and one JSON
-- object for each report in the metrics file.
local native = require "het.native"
local errors = require "het.errors"
local text = require "het.text"

local progress = {}

local Progress = {}
Progress.__index = Progress

-- The folder of a file, made where it is missing: that of `save` is there only after the first one.
local function make_folder_of(path)
  local folder = path and path:match "^(.+)/[^/]*$"
  if folder and native.path_kind(folder) == "none" then native.make_folder(folder) end
end

--- A reporter.
-- @tparam table settings `steps`, `tokens_per_step`, `unit` (what these are: "tokens" or "samples"), `flops_per_token`,
-- `peak` (FLOP/s or nil), `metrics` (path), `quiet`, `first` (steps done before), `every` (steps between plain lines),
-- `memory` (function: bytes used; default: the process's), `leads` (whether this process speaks for the run)
function progress.new(settings)
  local self = setmetatable(settings, Progress)
  self.terminal = native.is_terminal("stderr")
  self.shown = 0
  self.train_seconds, self.steps_timed = 0, 0
  self.done = self.first or 0
  self.metrics_of_run = self.metrics   -- of the rank that speaks for the run
  if not self.leads then self.metrics = nil end
  make_folder_of(self.metrics)
  if self.metrics and self.done == 0 then native.write_text(self.metrics, "") end
  return self
end

local function finite(value) return value == value and value ~= math.huge and value ~= -math.huge end

-- Writes to the metrics file. Where that fails while the run trains, it is said once, and training goes on.
local function write_metrics(self, write, ...)
  local ok, problem = pcall(write, ...)
  if ok then return end
  local why, kind = errors.describe(problem)
  if kind == "bug" then error(problem, 0) end
  if not self.metrics_failed then
    self:finish()
    native.write("stderr", ("some metrics are missing: %s; training goes on\n"):format(why))
  end
  self.metrics_failed = true
end

--- Append an object to the metrics file.
function Progress:record(entry)
  if not self.metrics then return end
  for key, value in pairs(entry) do
    if type(value) == "number" and not finite(value) then entry[key] = native.null end
  end
  write_metrics(self, native.append, self.metrics, native.json_encode(entry) .. "\n")
end

local function clear(self)
  if self.line then
    native.write_control("stderr", "\r" .. (" "):rep(self.line) .. "\r")
    self.line = nil
  end
end

--- A message on a line by itself.
function Progress:say(message)
  if self.quiet then return end
  clear(self)
  native.write("stderr", message .. "\n")
end

-- "snapshot 1 step old on 2 hosts, replicas 1.2 MiB behind"
local function snapshot_words(snapshot)
  local behind = snapshot.behind_bytes > 0 and (", replicas %s behind"):format(text.bytes(snapshot.behind_bytes)) or ""
  return ("snapshot %s old on %s%s"):format(text.plural(snapshot.age, "step"), text.plural(snapshot.hosts, "host"),
    behind)
end

-- Adds the figures of a loss: "accuracy 0.7500".
local function add_figures(parts, figures)
  for _, name in ipairs(text.keys(figures or {})) do
    parts[#parts + 1] = ("%s %.4g"):format(name, figures[name])
  end
end

function Progress:describe(step, snapshot)
  local parts = {
    ("step %d/%d"):format(step.step, self.steps),
    ("loss %.4f"):format(step.loss),
  }
  add_figures(parts, step.figures)
  if self.rate then parts[#parts + 1] = ("%s %s/s"):format(text.count(self.rate), self.unit) end
  if self.rate and self.peak then parts[#parts + 1] = ("MFU %.0f %%"):format(100 * self:mfu(self.rate)) end
  if snapshot then parts[#parts + 1] = snapshot_words(snapshot) end
  if self.validation then parts[#parts + 1] = ("validation %.4f"):format(self.validation) end
  parts[#parts + 1] = text.bytes(self.memory and self.memory() or native.memory_peak())
  if self.rate then
    local left = (self.steps - step.step) * self.tokens_per_step / self.rate
    parts[#parts + 1] = ("%s left"):format(text.duration(left))
  end
  return table.concat(parts, "  ")
end

--- Steps a second, of those whose time was measured; nil without any.
function Progress:steps_per_second()
  return self.steps_timed > 0 and self.steps_timed / self.train_seconds or nil
end

--- Model FLOPs utilisation at a rate of tokens per second.
function Progress:mfu(rate) return self.peak and rate * self.flops_per_token / self.peak end

--- Whether this process speaks for the run: it does so from here on, or no longer. Who takes over records the last step
-- again: whoever spoke before may have been lost on the way to that.
function Progress:lead(leads)
  local takes_over = leads and not self.leads
  self.leads, self.quiet = leads, native.settings.quiet or not leads
  self.metrics = leads and self.metrics_of_run or nil
  write_metrics(self, make_folder_of, self.metrics)
  if not leads then native.be_silent() end
  if not takes_over then return end
  native.speak_for_run()
  for _, entry in ipairs(self.last or {}) do self:record(entry) end
end

--- After the ranks of the run have changed: what changed, and what it took; `ends`: they are too few to go on.
function Progress:generation(entry)
  self:record(entry)
  local from = {}
  for _, tier in ipairs { "memory", "disk", "store" } do
    local bytes = entry.bytes and entry.bytes[tier] or 0
    if bytes > 0 then from[#from + 1] = (", %s read from snapshots %s"):format(text.bytes(bytes),
      tier == "memory" and "in memory" or tier == "disk" and "on disk" or "in the store") end
  end
  local repeated = entry.steps_repeated > 0 and (", %s %s repeated"):format(
    text.plural(entry.steps_repeated, "step"), entry.steps_repeated == 1 and "is" or "are") or ""
  local joined = entry.joined > 0 and (" (%d joined)"):format(entry.joined) or ""
  local one, several = "goes on", "go on"
  if entry.ends then one, several = "ends the run", "end the run" end
  self:say(("generation %d: %s%s; %s %s after step %d, %s of state moved%s%s, %.2f s"):format(entry.generation,
    entry.reason, joined, text.plural(entry.members, "rank"), entry.members == 1 and one or several, entry.step,
    text.bytes(entry.moved_bytes), table.concat(from), repeated, entry.seconds))
end

-- "1.2 MiB from other ranks, 3.4 MiB from snapshots in memory"
local function sources_of(bytes)
  local parts = {}
  for _, source in ipairs { { "live", "from other ranks" }, { "memory", "from snapshots in memory" },
    { "disk", "from snapshots on disk" }, { "store", "from the store" } } do
    local count = bytes[source[1]] or 0
    if count > 0 then parts[#parts + 1] = text.bytes(count) .. " " .. source[2] end
  end
  return #parts > 0 and table.concat(parts, ", ") or "each rank had all it needs"
end

--- The pause that a change of ranks made, once a step is done after it, as a sentence. Seconds count from when a rank
-- noticed the loss, or from when the ranks agreed to change; `noticed_seconds`: from the end of `last_step` to that.
function progress.pause_words(entry)
  local function at(name) return native.show_seconds(entry[name .. "_seconds"]) end
  local began = "all agreed;"
  if entry.after_loss then
    began = entry.noticed_seconds and ("noticed %s after step %d;"):format(at "noticed", entry.last_step) or "noticed;"
  end
  local planned = at "planned" .. (entry.planned_ahead and " (ahead)" or "")
  local lost = entry.money_lost and (", %s of money lost"):format(text.money(entry.money_lost)) or ""
  local sentence = "%s then connected after %s, planned %s, restored %s (%s), step %d done %s; %s repeated%s"
  return sentence:format(began, at "connected", planned, at "restored", sources_of(entry.bytes), entry.first_step,
    at "first_step", text.plural(entry.steps_repeated, "step"), lost)
end

--- The same, said and recorded.
function Progress:timeline(entry)
  self:record(entry)
  self:say("  " .. progress.pause_words(entry))
end

--- At the end of a run whose ranks may change: what has become of these, and of the samples.
function Progress:account(results)
  self:record { counted_from = results.counted_from, changes = results.changes,
    ranks_gone = results.ranks_gone, ranks_joined = results.ranks_joined, at_least = results.at_least,
    steps_repeated = results.steps_repeated, samples = results.samples, samples_lost = results.samples_lost,
    samples_repeated = results.samples_repeated, paid = results.paid, money_lost = results.money_lost }
  local paid = results.paid and ("; %s of money paid, %s of it lost to changes"):format(text.money(results.paid),
    text.money(results.money_lost or 0)) or ""
  local since = results.counted_from
    and ("since the run went on after step %d: "):format(results.counted_from) or ""
  local repeated = (results.at_least and "at least " or "") .. text.plural(results.steps_repeated, "step")
  self:say(("%s%s went, %d came, %s repeated; of %s samples %d lost, %d repeated%s"):format(since,
    text.plural(results.ranks_gone, "rank"), results.ranks_joined, repeated,
    text.grouped(results.samples + results.samples_lost - results.samples_repeated), results.samples_lost,
    results.samples_repeated, paid))
end

--- After a step. step: { step, loss, lr, gradient_norm, seconds, figures }.
-- @tparam[opt] table snapshot the newest whole one in memory: { age = steps, hosts = that hold it, behind_bytes = that
-- replicas of this rank's next one lack, every = steps to the next, cost = seconds that steps lose to one, stall =
-- seconds in which this rank's host waited for snapshots, in all }
function Progress:step(step, snapshot)
  local rate
  if step.seconds > 0 then   -- else it was finished after the loss of a rank, and no time was measured
    self.train_seconds, self.steps_timed = self.train_seconds + step.seconds, self.steps_timed + 1
    rate = self.tokens_per_step / step.seconds
    -- A mean over about three seconds: the weight of a step is its share of them.
    local weight = math.min(1, math.max(0.02, step.seconds / 3))
    -- The first step, which is not typical, counts until there is another.
    self.rate = self.steps_timed > 2 and self.rate + weight * (rate - self.rate) or rate
    -- No device does more than its peak: one that is lower was measured while others used the machine.
    if self.peak then self.peak = math.max(self.peak, rate * self.flops_per_token) end
  end
  self.loss = step.loss
  self.last = { { step = step.step, loss = step.loss, lr = step.lr, gradient_norm = step.gradient_norm,
    seconds = self.train_seconds, tokens_per_s = rate, mfu = rate and self:mfu(rate),
    snapshot_age_steps = snapshot and snapshot.age, snapshot_hosts = snapshot and snapshot.hosts,
    replicas_behind_bytes = snapshot and snapshot.behind_bytes, snapshot_every_steps = snapshot and snapshot.every,
    snapshot_cost_seconds = snapshot and snapshot.cost, snapshot_stall_seconds = snapshot and snapshot.stall,
    figures = step.figures } }
  self:record(self.last[1])
  if self.quiet then return end
  local now = native.clock()
  if self.terminal then
    if now - self.shown < 0.1 and step.step < self.steps then return end
    local line = self:describe(step, snapshot):sub(1, native.terminal_width() - 1)
    native.write_control("stderr", "\r")
    native.write("stderr", line .. (" "):rep(math.max(0, (self.line or 0) - #line)))
    self.line = #line
    self.shown = now
  elseif step.step % self.every == 0 or step.step == self.steps or step.step == self.done + 1 then
    native.write("stderr", self:describe(step, snapshot) .. "\n")
  end
end

--- After an evaluation.
-- @tparam ?number best the lowest loss of an evaluation, nil without one that is finite
-- @int since how many evaluations came after the last lower loss
-- @tparam ?number patience with how many of these the run ends
-- @tparam ?table figures those of the loss
function Progress:evaluated(step, loss, best, since, patience, figures)
  self.validation = loss
  local entry = { step = step, validation_loss = loss, best_validation_loss = best, validation_figures = figures }
  if self.last then table.insert(self.last, entry) end
  self:record(entry)
  local more = {}
  add_figures(more, figures)
  if best and best ~= loss then more[#more + 1] = ("best %.4f"):format(best) end
  if patience and since > 0 then
    more[#more + 1] = ("%d of %s without a lower loss"):format(since, text.plural(patience, "evaluation"))
  end
  local shown = loss == loss and ("loss %.4f"):format(loss) or "loss nan: it is not finite, or no label counts"
  self:say(("step %d/%d  validation %s%s"):format(step, self.steps, shown,
    #more > 0 and (" (%s)"):format(table.concat(more, "; ")) or ""))
end

--- Leave the terminal's line.
function Progress:finish() clear(self) end

return progress
