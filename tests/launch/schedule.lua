-- What --chaos draws, and what a run counts of its samples: hetrun --trust schedule.lua
local chaos = require "het.train.chaos"
local ledger = require "het.train.ledger"

local function check(is_right, what, ...)
  if not is_right then error(what:format(...), 2) end
end

-- Never fewer than the least, never two faults at once, each process at most twice; and the same again.
local function check_schedule(seed, processes, least, steps)
  local asked = { seed = seed, processes = processes, least = least, steps = steps }
  local where = ("seed %d, %d processes, at least %d, %d steps"):format(seed, processes, least, steps)
  local schedule, again, before, faults, kinds = chaos.draw(asked), chaos.draw(asked), 1, {}, {}
  check(#schedule > 0, "%s: no faults", where)
  for i, event in ipairs(schedule) do
    check(event.step > before + 1 and event.back > event.step + 1 and event.back < steps, "%s: step %d to %d", where,
      event.step, event.back)
    check(#event.victims >= 1 and #event.victims <= processes - least, "%s: %d victims", where, #event.victims)
    local at_once = {}
    for j, victim in ipairs(event.victims) do
      local number = victim.process
      check(number >= 0 and number < processes and not at_once[number], "%s: process %d", where, number)
      check(victim.at >= 0 and victim.at < 1, "%s: at %g", where, victim.at)
      check(again[i].victims[j].process == number and again[i].victims[j].at == victim.at, "%s: not the same", where)
      at_once[number], faults[number] = true, (faults[number] or 0) + 1
      check(faults[number] <= 2, "%s: process %d is hit again and again", where, number)
    end
    check(again[i].step == event.step and again[i].back == event.back and again[i].how == event.how,
      "%s: not the same", where)
    before, kinds[event.how] = event.back, true
  end
  check(#schedule == 1 or kinds.kill and kinds.notice, "%s: one kind of faults alone", where)
end

local drawn = {}
for seed = 0, 199 do
  for _, asked in ipairs { { 4, 2, 300 }, { 2, 1, 60 }, { 3, 1, 1000 }, { 8, 2, 120 }, { 4, 3, 10 } } do
    check_schedule(seed, unpack(asked))
  end
  drawn[chaos.draw({ seed = seed, processes = 4, least = 2, steps = 300 })[1].step] = true
end
local different = 0
for _ in pairs(drawn) do different = different + 1 end
check(different > 20, "200 seeds draw %d first steps", different)
check(not pcall(chaos.draw, { seed = 1, processes = 4, least = 2, steps = 9 }), "9 steps have no room")

-- Samples: what is left out is lost, what overlaps is repeated, and what was trained again after going back is neither.
local function totals(step, counts)
  local all = ledger.new(0, 0)
  for _, count in ipairs(counts) do ledger.count(all, unpack(count)) end
  local found = ledger.totals(all, step, 10)
  return ("%d %d %d"):format(found.counted, found.lost, found.repeated)
end
for _, case in ipairs {
  { 3, { { 1, 0, 10 }, { 2, 10, 20 }, { 3, 20, 30 } }, "30 0 0" },
  { 3, { { 1, 0, 10 }, { 2, 20, 30 }, { 3, 30, 40 } }, "30 10 0" },
  { 3, { { 1, 0, 10 }, { 2, 5, 15 }, { 3, 15, 25 } }, "30 5 5" },
  { 3, { { 1, 0, 10 }, { 2, 10, 20 } }, "20 10 0" },
  { 3, { { 1, 0, 10 }, { 2, 10, 20 }, { 3, 20, 30 }, { 2, 10, 20 }, { 3, 20, 30 } }, "30 0 0" },
  { 3, { { 1, 0, 10 }, { 2, 10, 20 }, { 2, 20, 30 }, { 3, 30, 40 } }, "30 10 0" },
} do
  local steps, counts, right = unpack(case)
  check(totals(steps, counts) == right, "totals are %s, not %s", totals(steps, counts), right)
end
local spans = ledger.new(4, 40)
for step = 5, 1000 do ledger.count(spans, step, 10 * (step - 1), 10 * step) end
check(#spans.spans == 1 and ledger.last_step(spans) == 1000, "regular steps are one span")
ledger.restore(spans, 500, 5000)
check(spans.begun == 4 and ledger.last_step(spans) == 500, "an earlier step of the run drops what came later")
for _, other in ipairs { { 800, 8000 }, { 300, 7 }, { 2, 20 } } do   -- later ones, other samples, before it began
  local step, cursor = unpack(other)
  spans.changes = 3
  ledger.restore(spans, step, cursor)
  for more = 1, 5 do ledger.count(spans, step + more, cursor + 10 * (more - 1), cursor + 10 * more) end
  local found = ledger.totals(spans, step + 5, 10)
  check(found.counted == 50 and found.lost == 0 and found.repeated == 0,
    "after step %d %d are counted, %d lost, %d repeated", step, found.counted, found.lost, found.repeated)
  check(spans.changes == 3, "the changes of ranks are those of the run")
end
-- What is kept of it goes on after a step that it has; what was said of the run later counts, too.
local native = require "het.native"
local whole = ledger.new(0, 0)
for step = 1, 30 do ledger.count(whole, step, 10 * (step - 1), 10 * step) end
whole.gone, whole.came, whole.paid = 2, 1, 0.5
local kept = native.json_decode(native.json_encode(ledger.kept(whole)))
check(ledger.is_kept(kept), "what is kept can be read")
local again = ledger.new(20, 200, kept)
check(again.gone == 2 and again.begun == 0 and ledger.last_step(again) == 20, "it goes on after step 20")
whole.gone = 5
ledger.learn(again, 20, 200, ledger.kept(whole))
check(again.gone == 5 and again.came == 1 and ledger.last_step(again) == 20, "ranks that went later count")
ledger.learn(again, 20, 200, ledger.kept(ledger.new(25, 250)))
check(again.gone == 5 and again.begun == 0, "what knows less changes nothing")
for name, lie in pairs { age = -1, spans = 3, gone = 0.5, came = "1", steps_repeated = 2 ^ 60, paid = "much",
  at_least = 1 } do
  local lied = native.json_decode(native.json_encode(ledger.kept(whole)))
  lied[name] = lie
  check(not ledger.is_kept(lied), "%s = %s is believed", name, tostring(lie))
end
check(not ledger.is_kept { age = 0, begun = 0, start = 0, changes = 0, gone = 0, came = 0, steps_repeated = 0,
  spans = { { step = 1 } } }, "a span without its fields is believed")
print "right"
os.exit(0)
