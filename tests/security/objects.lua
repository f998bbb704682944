-- A recipe that makes an object of every kind that the library has, in the sandbox, and hands all it gets to `keep`:
-- what it made, what its functions are called with, the errors it catches. Used by reachable.lua and
-- ../fuzz/recipe_api.lua. `inside(name, ...)` is called within each of its functions.
local keep, folder, inside = ...
local het = require "het"
local nn, op, optim, data = het.nn, het.op, het.optim, het.data

local function called(name)
  return function(...)
    for i = 1, select("#", ...) do keep(name .. " argument " .. i, (select(i, ...))) end
    inside(name, ...)
  end
end

local function caught(name, fn, ...)
  local _, problem = pcall(fn, ...)
  keep("error of " .. name, problem)
end

local text = folder .. "/text.txt"
local corpus = keep("corpus", data.text { path = text })
keep("masked", data.masked { path = text, mask_share = 0.5 })
keep("tokens", data.tokens { path = folder .. "/tokens.bin", width = 16 })
local rows = keep("pairs", data.pairs { inputs = het.randn { 20, 4 }, labels = het.randn { 20, 4 } })
local sampler = keep("sampler", corpus:sampler { context = 8, batch = 2, split = "train" })
keep("batch", sampler:next())
keep("row sampler", rows:sampler { batch = 2, microbatch = 1 })

keep("tensor", het.randn(2, 3))
keep("whole", het.arange(6, "i64"))
keep("ids", het.tensor({ { 1, 2, 3, 4, 5, 6, 7, 0 } }, "i32"))
keep("scalar", het.tensor(1.5))
keep("empty", het.zeros(0, 4))
keep("half", het.ones({ 4, 4 }, "bf16"))

local schedule = keep("schedule", optim.cosine { peak = 1e-2, warmup = 1 })
local optimizer = keep("optimizer", optim.adamw { lr = schedule, clip = 1, decay = { { "tokens", 0 } } })
keep("sgd", optim.sgd { lr = 0.1, momentum = 0.9 })

local model = keep("model", nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 2 })
keep("llama", nn.llama { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 2 })
keep("bert", nn.bert { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 2 })
local own = keep("own layer", nn.layer {
  name = "own", parameters = { gain = { 4, init = "ones" }, other = { 4, 4, init = { kind = "normal", scale = 0.1 } } },
  layers = { inside = nn.linear(4, 4), fn = function(x)
    called "function layer"(x)
    return x
  end },
  forward = function(self, x)
    called "forward"(self, x)
    for name, value in pairs(self) do keep("self." .. tostring(name), value) end
    caught("a builder", self.builder.positions, self.builder, -1)
    return self.fn(self.inside(op.mul(x, self.gain)))
  end,
})
keep("own result", own(het.randn(2, 4)))
local sequential = keep("sequential", nn.sequential { own, nn.residual { nn.layer_norm(4), nn.linear(4, 4) },
  nn.dropout(0.1), function(x)
    called "plain function"(x)
    return x
  end })
sequential:walk(called "visit")
keep("own blocks", nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 2, heads = 2,
  block = function(width, heads, index)
    called "block"(width, heads, index)
    return nn.gpt_block { width = width, heads = heads }
  end })

local plan = keep("plan", het.plan { microbatch = 2, het.pipeline { microbatches = 1, het.stage { "here:0" } } })
local node = keep("node", het.node { name = "a", type = "T4" })
local kind = keep("device type", het.device_type { name = "mine", f32 = "20 TFLOP/s", memory = "24 GiB",
  memory_bandwidth = "600 GB/s" })
local link = keep("link", het.link { from = "", to = "", bandwidth = "1 GB/s", latency = "1 us" })
local cluster = keep("cluster", het.cluster { node, kind, link })
keep("automatic plan", het.plan.auto { cluster = cluster })
keep("options", het.options { steps = { 2, "steps" } })

local function language_run(more)
  local settings = { model = model, data = corpus, batch = 2, steps = 2, optimizer = optimizer,
    evaluate = { every = 1, batches = 1 }, on_step = called "on_step", after = called "after",
    sample = { tokens = 3 } }
  for name, value in pairs(more or {}) do settings[name] = value end
  return het.train(settings)
end

local run = keep("run before", language_run())
keep("graph", run:graph_of_sample())
keep("results", run:start())
keep("run after", run)
keep("state", run:gather())
keep("text", run:generate({ tokens = 3 }, called "emit"))
run:save(folder .. "/saved")
local loaded = keep("loaded", het.load(folder .. "/saved"))
keep("loaded text", loaded:generate { tokens = 2 })
keep("logits", loaded(het.tensor({ { 1, 2, 3 } }, "i32")))

local planned = keep("planned", language_run { plan = plan })
planned:start()
keep("plan of a run", planned.plan)
keep("row run", het.train {
  model = sequential, data = rows, batch = 2, steps = 2, optimizer = optim.sgd { lr = 0.01 },
  loss = function(output, labels, scale)
    called "loss"(output, labels, scale)
    return op.reshape(op.mul(op.reshape(op.sum(op.square(op.sub(output, labels))), { shape = { 1 } }), scale),
      { shape = {} })
  end,
  on_step = called "on_step of rows",
}):start()

-- What the library hands to an optimizer of one's own, to a policy and to a gradient of one's own.
local stepped = called "optim.custom.update"
keep("own optimizer", language_run {
  optimizer = optim.custom {
    lr = function(step, steps)
      called "lr"(step, steps)
      return 0.1
    end,
    update = function(step)
      stepped(step)
      return { param = step.param - step.gradient * step.lr, last = step.state "last" * 0.9 }
    end,
  },
}):start()
keep("plan of a policy", language_run { plan = het.plan.auto { cluster = cluster, policy = called "policy" } })
local doubled = op.custom_gradient {
  forward = function(x)
    called "custom_gradient.forward"(x)
    return op.mul(x, x)
  end,
  backward = function(dy, y, x)
    called "custom_gradient.backward"(dy, y, x)
    return op.mul(dy, op.add(x, x))
  end,
}
keep("gradients", het.grad(function(x)
  called "grad"(x)
  return op.sum(op.reshape(doubled(x), { shape = { 6 } }))
end)(het.randn(2, 3)))

-- A run that fails, and one whose function fails.
local failing = keep("failing run", language_run { on_step = function() error "as asked" end })
caught("a failing run", failing.start, failing)
local lossy = keep("lossy run", het.train { model = nn.linear(4, 4), data = rows, batch = 2, steps = 1,
  optimizer = optimizer, loss = function() return nil end })
caught("a loss of nothing", lossy.prepare, lossy)
caught("full", het.full, -1)
caught("an operator", op.softmax, 3)
caught("a name", function() return het.nowhere end)
caught("a member", function() return run.state end)
caught("a method called with a dot", function() return run.start() end)

-- Tables of the recipe's own with metamethods, where the library looks at tables and values.
local spied = {}
for _, name in ipairs { "index", "newindex", "call", "tostring", "eq", "lt", "le", "concat", "len", "unm", "add" } do
  spied["__" .. name] = function(...)
    called("__" .. name)(...)
    return name == "tostring" and "spy" or nil
  end
end
local function spy() return setmetatable({}, spied) end
for name, fn in pairs { gpt = nn.gpt, sequential = nn.sequential, train = het.train, cosine = optim.cosine,
  plan = het.plan.auto, text = data.text, load = het.load, tensor = het.tensor, softmax = op.softmax, own = nn.layer,
  options = het.options, help = het.help, cluster = het.cluster.here } do
  caught("a spy in " .. name, fn, spy())
  caught("spies in " .. name, fn, { spy(), name = spy(), path = spy(), model = spy(), parameters = spy(), steps = spy(),
    vocab = spy(), block = spy() })
end
for _, name in ipairs { "start", "generate", "save", "evaluate", "prepare", "gather", "graph_of_sample" } do
  caught("a spy in run." .. name, run[name], spy())
  caught("a spy in run:" .. name, run[name], run, spy(), spy())
end
caught("a spy in encode", corpus.encode, corpus, spy())
caught("a spy in sampler", corpus.sampler, corpus, spy())
caught("a spy in walk", model.walk, model, spy())
caught("a spy in a layer", model, spy())
caught("a spy raised", language_run { on_step = function() error(spy()) end }.start, run)

keep("het", het)
keep("_G", _G)
return run
