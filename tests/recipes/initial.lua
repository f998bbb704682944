-- Parameters that begin with tensors and with what functions return; at so small a rate they stay as they are.
local het = require "het"
local nn, op = het.nn, het.op
local opt = het.options {
  plan = { "one", "how ranks share the work" }, save = { "runs/mine", "folder", path = "write" },
  steps = { 2, "steps" },
  rate = { 1e-30, "of SGD" }, factor = { 0.5, "of what the function returns" }, frozen = { false, "the mixing layer" },
  returns = { "f32", "dtype of what the function returns" }, precision = { "f32", "of the run" },
  checked = { true, "the parameters after the run" },
}
local width, calls = 8, 0
local function start(shape)
  calls = calls + 1
  return (het.randn(shape, "f32", 7) * opt.factor):to(opt.returns)
end
local matrix = het.randn({ width, width }, "f32", 1)
local function block()
  local mixing = nn.layer {
    name = "mixing", parameters = { mix = { width, width, init = matrix }, open = { width, init = start } },
    forward = function(self, x)
      return op.linear(x, self.mix) * op.cast(op.sigmoid(self.open), { dtype = x.dtype })
    end,
  }
  return nn.sequential {
    nn.residual { nn.layer_norm(width), nn.attention { width = width, heads = 2, causal = true } },
    nn.residual { nn.layer_norm(width), opt.frozen and nn.frozen(mixing) or mixing },
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
  model = nn.gpt { vocab = corpus.vocab, context = 8, width = width, layers = 2, heads = 2, block = block },
  data = corpus, batch = 4, steps = opt.steps, save = opt.save, optimizer = het.optim.sgd { lr = opt.rate },
  plan = plans[opt.plan], precision = opt.precision,
  after = function(run)
    local weights = run:gather()
    if not weights or not opt.checked then return end
    assert(calls == 2)   -- once for each block
    local found = 0
    for _, entry in ipairs(weights:names()) do
      local wanted = entry.name:match "%.mix$" and matrix or entry.name:match "%.open$" and start(entry.shape)
      if wanted then
        found = found + 1
        local difference = op.mean(op.abs(weights:read(entry.name):to "f32" - wanted:to "f32"))
        assert(difference:item() <= (opt.precision == "f32" and 0 or 0.01), entry.name)
      end
    end
    assert(found == 4)
  end,
}
