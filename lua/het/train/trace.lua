--- One step of a run with a clock on every instruction: a Chrome trace over all ranks (chrome://tracing and Perfetto
-- open it) and a report of who computed and who waited.
local native = require "het.native"
local plan = require "het.plan"
local text = require "het.text"

local trace = {}

local function milliseconds(seconds) return ("%.2f ms"):format(1e3 * seconds) end

-- An await is a bubble of the pipeline where it is for a message between stages; collectives are waited for.
local function kind_of(span)
  if span.op ~= "await" then return "compute" end
  return (span.awaited == "send" or span.awaited == "receive") and "bubble" or "wait"
end

local function title(span)
  if span.op == "await" then return (kind_of(span) == "bubble" and "bubble: " or "wait for ") .. span.label end
  if span.label then return ("%s: %s"):format((span.op:gsub("_", "-")), span.label) end
  return span.op
end

-- What one rank sends the others: its events, with times in seconds by the first rank's clock, and its sums, in seconds
-- too: `compute` with its part `barrier` before the update, `bubble` and `wait`.
local function events_of(run, spans, offset)
  local rank, list, trains = run.rank, {}, false
  local sums = { rank = rank, device = run.plan and plan.devices(run.plan)[run.place + 1], events = list, compute = 0,
    bubble = 0, wait = 0, sent = 0, first = math.huge, last = 0 }
  for i, span in ipairs(spans) do
    local begin, arrived = span.begin + offset, span.arrived and span.arrived + offset
    local event = { name = title(span), ts = begin, pid = rank, tid = 0, args = { instruction = i } }
    if span.microbatch and span.microbatch > 0 then event.args["micro-batch"] = span.microbatch end
    if span.scope and span.scope ~= "" then event.args.layer = span.scope end
    if span.begin > 0 then
      sums.first, sums.last = math.min(sums.first, begin), math.max(sums.last, begin + span.seconds)
      if arrived then
        -- Viewers join what has one category and one number, also across processes.
        event.args.bytes, event.args.sent_bytes = span.bytes, span.sent_bytes
        event.cat, event.id = "communication", rank * 2 ^ 24 + i
        event.ph, event.tid = "b", 1
        list[#list + 1] = event
        list[#list + 1] = { name = event.name, ts = math.max(begin, arrived), pid = rank, tid = 1, id = event.id,
          cat = "communication", ph = "e" }
        sums.sent = sums.sent + span.sent_bytes
      else
        local kind = kind_of(span)
        event.ph, event.dur = "X", span.seconds
        event.cat = kind == "compute" and span.phase or kind
        list[#list + 1] = event
        -- What begins a step may be an update's too: parameters in the precision that is computed in.
        if trains and span.phase == "update" then sums.barrier = sums.barrier or sums.compute end
        trains = trains or span.phase == "forward"
        sums[kind] = sums[kind] + span.seconds
      end
    end
  end
  sums.barrier = sums.barrier or sums.compute
  return sums
end

-- Sentences about one step.
local function report(ranks, say)
  local slowest = ranks[1]
  local first, last = math.huge, 0
  for _, rank in ipairs(ranks) do
    first, last = math.min(first, rank.first), math.max(last, rank.last)
    if rank.compute > slowest.compute then slowest = rank end
  end
  local step = last - first
  say(("one step, %s:"):format(milliseconds(step)))
  for _, rank in ipairs(ranks) do
    local others = ", bubbles %s (%.0f %% of the step), waited for collectives %s (%.0f %%), sent %s"
    others = others:format(milliseconds(rank.bubble), 100 * rank.bubble / step, milliseconds(rank.wait),
      100 * rank.wait / step, text.bytes(rank.sent))
    say(("  rank %d  computed %s (%s before the update)%s"):format(rank.rank, milliseconds(rank.compute),
      milliseconds(rank.barrier), #ranks > 1 and others or ""))
  end
  if #ranks > 1 then say(("  rank %d (%s) computed longest"):format(slowest.rank, slowest.device)) end
end

--- Gather the ranks' spans of one step; the first rank writes the file and reports. All ranks call it at the same
-- place.
-- @tparam table run with `cluster`, `rank` and `plan`
-- @tparam table spans of executor:timings()
-- @string path
-- @tparam function say called with each line of the report
function trace.write(run, spans, path, say)
  local own = events_of(run, spans, run.cluster and run.cluster:clock_offset() or 0)
  local texts = run.cluster and run.cluster:all_gather(native.json_encode(own)) or { native.json_encode(own) }
  if run.rank > 0 then return end
  local ranks, all, origin = {}, {}, math.huge
  for i, words in ipairs(texts) do
    ranks[i] = native.json_decode(words)
    origin = math.min(origin, ranks[i].first)
  end
  for _, rank in ipairs(ranks) do
    local name = rank.device and ("rank %d, %s"):format(rank.rank, rank.device) or ("rank %d"):format(rank.rank)
    all[#all + 1] = { name = "process_name", ph = "M", pid = rank.rank, args = { name = name } }
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
