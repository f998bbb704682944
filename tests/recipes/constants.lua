-- nn.constant: a parameter of any size that stays as it begins, beside those that are trained.
local het = require "het"
local nn, op = het.nn, het.op
local opt = het.options {
  plan = { "one", "how ranks share the work" }, save = { "runs/mine", "folder", path = "write" },
  from = { "", "folder of a saved model", path = "read" }, precision = { "f32", "of the run" },
  steps = { 3, "steps" }, factor = { 1, "of the constant in this recipe" }, saved = { 1, "of that in the run" },
}
local width = 300   -- 90,000 numbers are more than a constant of the graph has
local mix = het.randn({ width, width }, "f32", 1) * 0.1
local function block()
  local mixing = nn.layer {
    name = "mixing", parameters = { mix = nn.constant(mix * opt.factor), gain = { width, init = "ones" } },
    forward = function(self, x) return op.linear(x, self.mix) * op.cast(self.gain, { dtype = x.dtype }) end,
  }
  return nn.sequential {
    nn.residual { nn.layer_norm(8), nn.attention { width = 8, heads = 2, causal = true } },
    nn.residual { nn.layer_norm(8), nn.linear(8, width), mixing, nn.linear(width, 8) },
  }
end
local plans = {
  data = het.plan { microbatch = 1, sharded_optimizer = true,
    het.pipeline { microbatches = 3, het.stage { "a:0" } }, het.pipeline { microbatches = 1, het.stage { "a:1" } } },
  tensor = het.plan { tensor = 2, microbatch = 2, het.pipeline { microbatches = 2, het.stage { "a:0-1" } } },
  pipeline = het.plan { microbatch = 2,
    het.pipeline { microbatches = 2, het.stage { "a:0", layers = 2 }, het.stage { "a:1" } } },
}
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 2, heads = 2, block = block },
  data = corpus, batch = 4, steps = opt.steps, evaluate = { every = 0 },
  save = opt.save, from = opt.from ~= "" and opt.from or nil, plan = plans[opt.plan], precision = opt.precision,
  optimizer = het.optim.adamw { lr = 0.1, weight_decay = 0.1 },
  after = function(run)
    local weights, changed = run:gather(), 0
    for _, entry in ipairs(weights and weights:names() or {}) do
      local now = weights:read(entry.name):to "f32"
      if entry.name:match "%.mix$" then
        local difference = op.max(op.reshape(op.abs(now - mix * opt.saved), { shape = { width * width } }), { dim = 0 })
        assert(difference:item() <= (opt.precision == "f32" and 0 or 0.01), difference:item())
        changed = changed + 1
      elseif entry.name:match "%.gain$" then
        assert(op.mean(op.abs(now - 1)):item() > 0.01)
        changed = changed + 1
      end
      assert(not entry.name:match "adamw.*%.mix$", entry.name)   -- no state of the optimizer
    end
    assert(not weights or changed == 8, changed)   -- of two blocks gain and its moments, and the constant
  end,
}
