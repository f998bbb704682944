--- One step of a run with a clock on every instruction: a Chrome trace over all ranks (chrome://tracing and Perfetto
-- open it) and a report of who computed and who waited.
local native = require "het.native"
local text = require "het.text"

local trace = {}

local function milliseconds(seconds) return ("%.2f ms"):format(1e3 * seconds) end

local function title(span)
  if span.op == "await" then return "wait for " .. span.label end
  if span.label then return ("%s: %s"):format((span.op:gsub("_", "-")), span.label) end
  return span.op
end

-- What one rank tells the others: its events, with times in seconds by the first rank's clock, and its sums.
local function events_of(rank, spans, offset)
  local list = {}
  local computed, waited, sent, first, last = 0, 0, 0, math.huge, 0
  for i, span in ipairs(spans) do
    local begin, arrived = span.begin + offset, span.arrived and span.arrived + offset
    local event = { name = title(span), ts = begin, pid = rank, tid = 0, args = { instruction = i } }
    if span.microbatch and span.microbatch > 0 then event.args["micro-batch"] = span.microbatch end
    if span.scope and span.scope ~= "" then event.args.layer = span.scope end
    if span.begin > 0 then
      first, last = math.min(first, begin), math.max(last, begin + span.seconds)
      if arrived then
        event.args.bytes, event.cat, event.id, event.ph, event.tid = span.bytes, "communication", i, "b", 1
        list[#list + 1] = event
        list[#list + 1] = { name = event.name, ts = math.max(begin, arrived), pid = rank, tid = 1, id = i,
          cat = "communication", ph = "e" }
        sent = sent + (span.op ~= "receive" and span.bytes or 0)
      else
        event.ph, event.dur = "X", span.seconds
        event.cat = span.op == "await" and "wait" or span.phase
        list[#list + 1] = event
        if span.op == "await" then waited = waited + span.seconds else computed = computed + span.seconds end
      end
    end
  end
  return { rank = rank, events = list, computed = computed, waited = waited, sent = sent, first = first, last = last }
end

-- Sentences about one step.
local function report(ranks, say)
  local slowest = ranks[1]
  local first, last = math.huge, 0
  for _, rank in ipairs(ranks) do
    first, last = math.min(first, rank.first), math.max(last, rank.last)
    if rank.computed > slowest.computed then slowest = rank end
  end
  say(("one step, %s:"):format(milliseconds(last - first)))
  for _, rank in ipairs(ranks) do
    say(("  rank %d  computed %s, waited %s (%.0f %% of the step), handed %s to others"):format(rank.rank,
      milliseconds(rank.computed), milliseconds(rank.waited), 100 * rank.waited / (last - first),
      text.bytes(rank.sent)))
  end
  if #ranks > 1 then say(("  rank %d computed longest"):format(slowest.rank)) end
end

--- Gather the ranks' spans of one step; the first rank writes the file and reports. All ranks call it at the same
-- place.
-- @tparam table run with `cluster` and `rank`
-- @tparam table spans of executor:timings()
-- @string path
-- @tparam function say called with each line of the report
function trace.write(run, spans, path, say)
  local own = events_of(run.rank, spans, run.cluster and run.cluster:clock_offset() or 0)
  local told = run.cluster and run.cluster:tell(native.json_encode(own)) or { native.json_encode(own) }
  if run.rank > 0 then return end
  local ranks, all, origin = {}, {}, math.huge
  for i, words in ipairs(told) do
    ranks[i] = native.json_decode(words)
    origin = math.min(origin, ranks[i].first)
  end
  for _, rank in ipairs(ranks) do
    all[#all + 1] = { name = "process_name", ph = "M", pid = rank.rank, args = { name = "rank " .. rank.rank } }
    all[#all + 1] = { name = "thread_name", ph = "M", pid = rank.rank, tid = 0, args = { name = "computation" } }
    for _, event in ipairs(rank.events) do
      event.ts = (event.ts - origin) * 1e6
      event.dur = event.dur and event.dur * 1e6
      all[#all + 1] = event
    end
  end
  native.json_write(path, { traceEvents = all, displayTimeUnit = "ms" })
  report(ranks, say)
  say(("trace written to %s; chrome://tracing and ui.perfetto.dev open it"):format(path))
end

return trace
