-- Functions with a gradient of their own: by het.grad at once, and in a model under plans.
local het = require "het"
local nn, op = het.nn, het.op
local opt = het.options { own = { true, "the gradient" }, plan = { "one", "how ranks share the work" } }

local function close(a, b) assert(op.mean(op.abs(a - b)):item() < 1e-6) end
local function fails(sentence, f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok and tostring(problem):find(sentence, 1, true), tostring(problem))
end

-- x · sigmoid(x), with the gradient that its operators have, written out.
local swish = op.custom_gradient {
  forward = function(x) return x * op.sigmoid(x) end,
  backward = function(dy, y, x)
    local s = op.sigmoid(x)
    return dy * (y + s * (1 - y))
  end,
}
local x, w = het.randn({ 4, 3 }, "f32", 1), het.randn({ 4, 3 }, "f32", 2)
close(swish(x), x * op.sigmoid(x))
close(het.grad(function(a) return op.sum(swish(a) * w) end)(x),
  het.grad(function(a) return op.sum(a * op.sigmoid(a) * w) end)(x))

-- A function that returns its argument; and one within another.
local reversed = op.custom_gradient { forward = function(a) return a end, backward = function(dy) return -2 * dy end }
close(het.grad(function(a) return op.sum(reversed(a) * w) end)(x), -2 * w)
local twice = op.custom_gradient { forward = function(a) return reversed(reversed(a)) end,
  backward = function(dy) return 3 * dy end }
close(het.grad(function(a) return op.sum(twice(a) * reversed(a)) end)(x), 3 * x - 2 * x)

-- Of several arguments, and of numbers.
local product = op.custom_gradient { forward = function(a, b, n) return a * b * n end,
  backward = function(dy, _, a, _, n) return nil, dy * a * n end }
local da, db = het.grad(function(a, b) return op.sum(product(a, b, 2)) + op.sum(a) end)(x, w)
close(da, x * 0 + 1)
close(db, 2 * x)

-- The library's: log-probabilities of labels; two are ignored.
local labels, counts = het.tensor({ 2, -100, 0, -100 }, "i32"), het.tensor { 1, 0, 1, 0 }
local rows = het.tensor { 1, 2, 3, 4 }
local function plain(a)
  local logs = op.log(op.softmax(a))
  return op.sum(logs * het.tensor { { 0, 0, 1 }, { 0, 0, 0 }, { 1, 0, 0 }, { 0, 0, 0 } }, { dims = { -1 } })
end
close(op.log_probability(20 * x, labels), plain(20 * x))
close(het.grad(function(a) return op.sum(op.log_probability(a, labels) * rows) end)(x),
  het.grad(function(a) return op.sum(plain(a) * rows) end)(x))
close(op.sum(op.log_probability(x, labels)), op.sum(plain(x)))
close(op.log_probability(1000 * x, labels) * (1 - counts), 0 * rows)
fails("log_probability: labels has to be i32[4]", op.log_probability, x,
  het.tensor({ 0, 1, 2 }, "i32"))

-- The guide's.

-- What is wrong.
fails("needs the function `backward`", op.custom_gradient, { forward = function() end })
fails("has no field 'backwards'", op.custom_gradient, { forward = print, backwards = print })
local wide = op.custom_gradient { forward = function(a) return a * 2 end,
  backward = function(dy) return op.sum(dy) end }
fails("op.custom_gradient: backward: the gradient has shape [], argument 1 has shape [4, 3]", het.grad(function(a)
  return op.sum(wide(a))
end), x)
local number = op.custom_gradient { forward = function(a) return a * 2 end, backward = function() return 7 end }
fails("backward returned 7 as gradient 1", het.grad(function(a) return op.sum(number(a)) end), x)
local none = op.custom_gradient { forward = function() end, backward = function(dy) return dy end }
fails("forward returned nothing", het.grad(function(a) return op.sum(none(a)) end), x)
fails("not among its arguments", het.grad(function(a, b)
  local other = b * 2
  local captures = op.custom_gradient { forward = function(c) return c * other end,
    backward = function(dy) return dy end }
  return op.sum(captures(a))
end), x, w)
local two = op.custom_gradient { forward = function(a) return a * 2, a * 3 end, backward = function(dy) return dy end }
fails("forward returned more than one value", het.grad(function(a) return op.sum(two(a)) end), x)
fails("is used outside it", het.grad(function(a)
  local inner
  local leaking = op.custom_gradient { forward = function(b)
    inner = b * 2
    return inner + 1
  end, backward = function(dy) return dy end }
  return op.sum(leaking(a)) + op.sum(inner)
end), x)
fails("a function is needed", het.grad, 7)

local plans = {
  data = het.plan { microbatch = 1, sharded_optimizer = true,
    het.pipeline { microbatches = 3, het.stage { "a:0" } }, het.pipeline { microbatches = 1, het.stage { "a:1" } } },
  tensor = het.plan { tensor = 2, microbatch = 2, het.pipeline { microbatches = 2, het.stage { "a:0-1" } } },
  pipeline = het.plan { microbatch = 2,
    het.pipeline { microbatches = 2, het.stage { "a:0", layers = 2, recompute = true }, het.stage { "a:1" } } },
}
local function block(width, heads)
  local gate = nn.layer {
    name = "gate", parameters = { up = { 4 * width, width }, down = { width, 4 * width } },
    forward = function(self, inner)
      local hidden = op.linear(inner, self.up)
      return op.linear(opt.own and swish(hidden) or hidden * op.sigmoid(hidden), self.down)
    end,
  }
  return nn.sequential {
    nn.residual { nn.layer_norm(width), nn.attention { width = width, heads = heads, causal = true } },
    nn.residual { nn.layer_norm(width), gate },
  }
end
local corpus = het.data.text { path = "text.txt" }
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 2, heads = 2, block = block },
  data = corpus, batch = 4, steps = 5, optimizer = het.optim.sgd { lr = 0.5 }, plan = plans[opt.plan],
}
