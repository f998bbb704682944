-- Samples of several inputs by name: token ids, a mask of padding and numbers beside them.
local het = require "het"
local nn, op = het.nn, het.op
local opt = het.options { plan = { "one", "how ranks share the work" }, named = { true, "or all in one tensor" },
  save = { "", "folder", path = "write" }, steps = { 6, "" }, apart = { false, "evaluate on other data" } }
local vocab, tokens, rows = 8, 6, 30
local ids, mask, extra, whole, labels = {}, {}, {}, {}, {}
for i = 1, rows do
  ids[i], mask[i], extra[i] = {}, {}, { math.sin(i), math.cos(i) }
  for t = 1, tokens do ids[i][t], mask[i][t] = (i * t) % vocab, t <= 2 + i % 5 and 1 or 0 end
  whole[i], labels[i] = {}, { math.sin(3 * i) }
  for _, list in ipairs { ids[i], mask[i], extra[i] } do
    for _, number in ipairs(list) do whole[i][#whole[i] + 1] = number end
  end
end
local function part(list, from, to)
  local found = {}
  for i = from, to do found[#found + 1] = list[i] end
  return found
end
local function pairs_of(from, to, holdout)
  local function tensor(list, dtype) return het.tensor(part(list, from, to), dtype) end
  local inputs = { ids = tensor(ids, "i32"), mask = tensor(mask), extra = tensor(extra) }
  return het.data.pairs { inputs = opt.named and inputs or tensor(whole), labels = tensor(labels), holdout = holdout }
end
local model = nn.layer {
  parameters = { table = { vocab, 8 } },
  layers = { first = nn.bert_block { width = 8, heads = 2 }, second = nn.bert_block { width = 8, heads = 2 },
    beside = nn.linear(2, 8), head = nn.linear(8, 1) },
  forward = function(self, x)
    if not opt.named then
      local function columns(from, count) return op.slice(x, { dim = 1, start = from, length = count }) end
      x = { ids = op.cast(columns(0, tokens), { dtype = "i32" }), mask = columns(tokens, tokens),
        extra = columns(2 * tokens, 2) }
    end
    self.builder:begin_layer "first"
    local y = self.first(op.embedding(x.ids, self.table), x.mask)
    self.builder:begin_layer "second"
    y = self.second(y, x.mask)
    y = op.slice(y, { dim = 1, start = 0, length = 1 })
    return self.head(op.reshape(y, { shape = { y.shape[1], 8 } }) + self.beside(x.extra))
  end,
}
local plans = {
  data = het.plan { microbatch = 1, sharded_optimizer = true,
    het.pipeline { microbatches = 3, het.stage { "a:0" } }, het.pipeline { microbatches = 1, het.stage { "a:1" } } },
  tensor = het.plan { tensor = 2, microbatch = 2, het.pipeline { microbatches = 2, het.stage { "a:0-1" } } },
  pipeline = het.plan { microbatch = 2,
    het.pipeline { microbatches = 2, het.stage { "a:0", layers = 1 }, het.stage { "a:1" } } },
}
return het.train {
  model = model, data = opt.apart and pairs_of(1, 20) or pairs_of(1, rows, 1 / 3), batch = 4, steps = opt.steps,
  optimizer = het.optim.adamw { lr = 1e-2 }, plan = plans[opt.plan], save = opt.save ~= "" and opt.save or nil,
  evaluate = { every = 2, data = opt.apart and pairs_of(21, rows) or nil },
  after = opt.plan == "one" and function(run)
    local inputs = opt.named and { ids = het.tensor({ ids[1] }, "i32"), mask = het.tensor { mask[1] },
      extra = het.tensor { extra[1] } } or het.tensor { whole[1] }
    print("first", run:model()(inputs):item())
  end or nil,
}
