-- Rows of numbers: each once in an epoch, in a separate order, the same however they are grouped.
local het = require "het"
local opt = het.options { batch = { 6, "samples" }, seed = { 1, "of the order" } }

local rows = 25
local numbers = {}
for i = 1, rows do numbers[i] = { i } end
local function pairs_of(holdout)
  return het.data.pairs { inputs = het.tensor(numbers), labels = het.tensor(numbers, "i32"), holdout = holdout }
end

-- The first `count` rows that a sampler hands out.
local function order(count, settings)
  local sampler, list = pairs_of(0):sampler(settings), {}
  while #list < count do
    local batch = sampler:next()
    for i, inputs in ipairs(batch.inputs) do
      for row = 1, inputs.shape[1] do
        assert(inputs[row][1] == batch.labels[i][row][1])
        list[#list + 1] = inputs[row][1]
      end
    end
  end
  return table.concat(list, " ", 1, count)
end

local function each_once(words)
  local seen, count = {}, 0
  for word in words:gmatch "%S+" do
    assert(not seen[word])
    seen[word], count = true, count + 1
  end
  return count == rows
end

local two = order(2 * rows, { split = "train", batch = 5, seed = 1 })
local first, second = order(rows, { batch = 5, seed = 1 }), order(rows, { batch = 5, seed = 1, start = rows })
assert(two == first .. " " .. second)
assert(each_once(first) and each_once(second))
assert(first ~= second and first ~= order(rows, { batch = 5, seed = 2 }))
local sorted = {}
for i = 1, rows do sorted[i] = i end
assert(first ~= table.concat(sorted, " "))
assert(two == order(2 * rows, { batch = 8, microbatch = 2, seed = 1 }))   -- also where a batch reaches over the end
assert(second == order(rows, { batch = 10, seed = 1, start = rows }))
-- Two ranks; the second has the larger share.
local one = pairs_of(0):sampler { batch = 5, microbatch = 1, count = 2, seed = 1 }
local other = pairs_of(0):sampler { batch = 5, microbatch = 1, first = 2, count = 3, seed = 1 }
local together = {}
for _ = 1, 5 do
  for _, sampler in ipairs { one, other } do
    for _, inputs in ipairs(sampler:next().inputs) do together[#together + 1] = inputs[1][1] end
  end
end
assert(table.concat(together, " ") == first)
-- What is held out comes as it stands, once; the last batch is filled with copies of the last row.
local held = pairs_of(0.2):sampler { split = "holdout", batch = 3, seed = 1 }
assert(held:next().inputs[1][1][1] == 21)
local last = held:next()
assert(last.inputs[1][1][1] == 24 and last.inputs[1][3][1] == 25 and last.filled == 1 and last.count == 3)
assert(last.copies.inputs[1][1][1] == 25 and last.copies.inputs[1][3][1] == 25 and held:next().count == 0)

return het.train {
  model = het.nn.linear(1, 1), batch = opt.batch, steps = 12, seed = opt.seed, optimizer = het.optim.sgd { lr = 1e-3 },
  data = het.data.pairs { inputs = het.randn({ rows, 1 }, "f32", 1), labels = het.randn({ rows, 1 }, "f32", 2),
    holdout = 0 },
}
