--- How optimizers change a parameter: functions of a `step` that has
--   settings         the optimizer's arguments; those that are functions of the step are scalars
--   param, gradient  values in f32 of the parameter's shape; the gradient is clipped
--   lr, count        scalars: the learning rate, and the number of the step from 1 in f32
--   decay            the weight decay of this parameter
--   name, shape      of the parameter; lookup: it is a table of embeddings; parts: rows of each matrix that is stored
--                    in it; stacked: its first dimension counts matrices
--   precision        of the run
--   state(name[, shape])  a value that is kept from step to step, zeros at first, of the parameter's shape by default
-- Each returns the new values by name: `param`, and those of its state. They are written where the gradient is finite,
-- all or none; until then everything reads the old ones.
local op = require "het.op"

local updates = {}

local function scaled(x, factor) return op.scale(x, { factor = factor }) end

-- factor · x, and 1 - a, where the factor and `a` are numbers or scalars.
local function multiplied(x, factor) return type(factor) == "number" and scaled(x, factor) or op.mul(x, factor) end
local function rest_of(a) return type(a) == "number" and 1 - a or op.shift(op.neg(a), { amount = 1 }) end

-- (1 - share) · old + share · new, where the share is a scalar.
local function mixed(old, new, share)
  return op.add(op.mul(old, rest_of(share)), op.mul(new, share))
end

-- a · old + (1 - a) · new, where `a` is a number or a scalar.
local function average(a, old, new)
  if type(a) ~= "number" then return mixed(new, old, a) end
  return op.add(scaled(old, a), scaled(new, 1 - a))
end

-- The parameter after weight decay: (1 - lr · decay) · param.
local function decayed(step)
  if step.decay == 0 then return step.param end
  return op.mul(step.param, op.shift(scaled(step.lr, -step.decay), { amount = 1 }))
end

local function moved(step, direction) return op.sub(decayed(step), op.mul(direction, step.lr)) end

local function mean_square(x) return op.mean(op.square(x)) end

-- 1 - beta^count
local function debiasing(step, beta)
  return rest_of(op.exp(multiplied(step.count, type(beta) == "number" and math.log(beta) or op.log(beta))))
end

--- SGD, for a momentum that is a function of the step; as torch.optim.SGD whose `momentum` is set before each step.
function updates.sgd(step)
  local a, g = step.settings, step.gradient
  if step.decay ~= 0 then g = op.add(g, scaled(step.param, step.decay)) end
  local momentum = op.add(op.mul(step.state "momentum", a.momentum), g)
  local direction = a.nesterov and op.add(g, op.mul(momentum, a.momentum)) or momentum
  return { param = op.sub(step.param, op.mul(direction, step.lr)), momentum = momentum }
end

--- Lion (Chen et al. 2023): the sign of an average of momentum and gradient.
function updates.lion(step)
  local a, m = step.settings, step.state "m"
  return { param = moved(step, op.sign(average(a.beta1, m, step.gradient))), m = average(a.beta2, m, step.gradient) }
end

--- Adafactor (Shazeer and Stern 2018), as torch.optim.Adafactor: of a matrix the means over its rows and columns stand
-- for the second moments.
function updates.adafactor(step)
  local a, rank, g = step.settings, #step.shape, step.gradient
  local epsilon = 2 ^ -23                       -- of f32: the least second moment
  local fresh = op.exp(multiplied(op.log(step.count), a.beta2_decay))   -- 1 - beta2: count^beta2_decay
  local kept = rest_of(fresh)
  local function track(name, shape, seen)
    return op.add(op.mul(step.state(name, shape), kept), op.mul(seen, fresh))
  end
  local new, moment = {}
  if rank >= 2 then
    local by_row, by_column = { unpack(step.shape) }, { unpack(step.shape) }
    by_row[rank], by_column[rank - 1] = 1, 1
    local square = op.square(g)
    new.rows = track("rows", by_row, op.mean(square, { dims = { -1 }, keep = true }))
    new.columns = track("columns", by_column, op.mean(square, { dims = { -2 }, keep = true }))
    local level = op.clamp_min(op.mean(new.rows, { dims = { -2 }, keep = true }), { bound = epsilon })
    moment = op.div(op.mul(new.rows, new.columns), level)
  else
    new.squares = track("squares", nil, op.square(g))
    moment = new.squares
  end
  local update = op.div(g, op.sqrt(op.clamp_min(moment, { bound = epsilon ^ 2 })))
  local size = op.sqrt(mean_square(update))
  update = op.div(update, op.clamp_min(scaled(size, 1 / a.threshold), { bound = 1 }))
  local rate = op.minimum(step.lr, op.exp(scaled(op.log(step.count), -0.5)))
  rate = op.mul(rate, op.clamp_min(op.sqrt(mean_square(step.param)), { bound = a.eps }))
  new.param = op.sub(decayed(step), op.mul(update, rate))
  return new
end

-- The nearest matrix with equal singular values, about: Newton-Schulz iterations of degree 5 with Jordan's coefficients
-- (2024). `x` is [n, m], or [count, n, m] of several matrices; products are computed in `precision`.
local function orthogonal(x, iterations, precision)
  local n, m = x.shape[#x.shape - 1], x.shape[#x.shape]
  local norm = op.sqrt(op.sum(op.square(x), { dims = { -2, -1 }, keep = true }))
  x = op.cast(op.div(x, op.clamp_min(norm, { bound = 1e-7 })), { dtype = precision })
  local wide = n <= m
  for _ = 1, iterations do
    local gram = wide and op.matmul(x, x, { transpose_b = true }) or op.matmul(x, x, { transpose_a = true })
    local poly = op.add(scaled(gram, -4.7750), scaled(op.matmul(gram, gram), 2.0315))
    x = op.add(scaled(x, 3.4445), wide and op.matmul(poly, x) or op.matmul(x, poly))
  end
  return op.cast(x, { dtype = "f32" })
end

-- AdamW (Loshchilov and Hutter 2019).
local function adamw(step, lr)
  local a, m, v = step.settings, step.state "m", step.state "v"
  local new = { m = average(a.beta1, m, step.gradient), v = average(a.beta2, v, op.square(step.gradient)) }
  local root = op.shift(op.sqrt(op.div(new.v, debiasing(step, a.beta2))), { amount = a.eps })
  local rate = op.div(lr, debiasing(step, a.beta1))
  new.param = op.sub(decayed(step), op.div(op.mul(new.m, rate), root))
  return new
end

--- AdamW, for betas that are functions of the step; as torch.optim.AdamW whose `betas` are set before each step.
function updates.adamw(step) return adamw(step, step.lr) end

-- Is it one of the hidden matrices, or several?
local function is_hidden(a, step)
  if #step.shape ~= (step.stacked and 3 or 2) or step.lookup then return false end
  for _, pattern in ipairs(a.others) do
    if step.name:find(pattern) then return false end
  end
  return true
end

-- What Muon changes a matrix by at a rate of 1, or each of a stack of matrices.
local function muon_direction(a, x, precision)
  local n, m = x.shape[#x.shape - 1], x.shape[#x.shape]
  local size = a.adjust == "adamw" and 0.2 * math.sqrt(math.max(n, m)) or math.sqrt(math.max(1, n / m))
  return scaled(orthogonal(x, a.iterations, precision), size)
end

--- Muon (Jordan et al. 2024), as torch.optim.Muon: momentum with equal singular values. AdamW for the rest.
function updates.muon(step)
  local a = step.settings
  if not is_hidden(a, step) then return adamw(step, scaled(step.lr, a.others_rate)) end
  local momentum = average(a.momentum, step.state "momentum", step.gradient)
  local ahead = a.nesterov and average(a.momentum, momentum, step.gradient) or momentum
  local directions = a.split and step.parts and { op.split(ahead, { dim = 0, sizes = step.parts }) } or { ahead }
  for i, part in ipairs(directions) do directions[i] = muon_direction(a, part, step.precision) end
  local direction = directions[1]
  if #directions > 1 then
    directions[#directions + 1] = { dim = 0 }
    direction = op.concat(unpack(directions))
  end
  return { param = moved(step, direction), momentum = momentum }
end

-- Of schedule-free optimizers: how much of x the last point z is, from the sum of the squared rates of all steps and
-- the square of the last one. Before the first step the parameter is x.
local function share_of_last(sum, last)
  return op.add(op.div(last, op.clamp_min(sum, { bound = 1e-30 })), op.equal(sum, 0))
end

--- The weight of the parameter y in the average x after a step: x' = (1 - w) x + w y, where y = (1 - beta1) z
-- + beta1 x' and x' = (1 - c) x + c z.
-- @param beta1 of that step
-- @param sum, last what the optimizer keeps for the parameter: the squared rates of all steps, and of the last
function updates.schedule_free_weight(beta1, sum, last)
  local c, rest = share_of_last(sum, last), rest_of(beta1)
  local toward_x = multiplied(c, beta1)
  return op.div(c, type(rest) == "number" and op.shift(toward_x, { amount = rest }) or op.add(toward_x, rest))
end

--- Schedule-free AdamW (Defazio et al. 2024): gradients are taken at y, between z, which moves as by Adam, and x,
-- the average of all z. The parameter is y; z follows from it and x, so that what is kept is as much as of AdamW. A
-- beta1 that is a function is kept from the step that made y: 0 at first, where y is z.
function updates.schedule_free(step)
  local a, old = step.settings, step.state "x"
  local sum, last, y = step.state("sum", {}), step.state("last", {}), step.param
  local is_number = type(a.beta1) == "number"
  local beta1 = is_number and a.beta1 or step.state("beta1", {})   -- of the last step
  local x = mixed(old, y, updates.schedule_free_weight(beta1, sum, last))
  local z = op.sub(y, multiplied(x, beta1))
  z = is_number and scaled(z, 1 / (1 - beta1)) or op.div(z, rest_of(beta1))
  local rate = op.mul(step.lr, op.sqrt(debiasing(step, a.beta2)))
  local new = { x = x, v = average(a.beta2, step.state "v", op.square(step.gradient)), last = op.square(rate),
    beta1 = not is_number and a.beta1 or nil }
  new.sum = op.add(sum, new.last)
  local direction = op.div(step.gradient, op.shift(op.sqrt(new.v), { amount = a.eps }))
  if step.decay ~= 0 then direction = op.add(direction, scaled(y, step.decay)) end
  z = op.sub(z, op.mul(direction, rate))
  new.param = average(a.beta1, mixed(x, z, share_of_last(new.sum, new.last)), z)
  return new
end

return updates
