--- Operators composed of the engine's: their gradients, costs and sharding rules follow from those of the parts.
-- Operands may be tensors or values of a graph; where an operator of the engine takes a number, so do they.
local define = require "het.language.define"
local errors = require "het.errors"
local native = require "het.native"
local text = require "het.text"

local function check_options(name, options, known)
  if options == nil then return {} end
  if type(options) ~= "table" or getmetatable(options) ~= nil then
    errors.usage("op.%s: its last argument is a table of options, { %s = }", name, table.concat(known, " =, "))
  end
  local is_known = {}
  for _, key in ipairs(known) do is_known[key] = true end
  for key in pairs(options) do
    if not is_known[key] then
      errors.usage("op.%s has no option '%s'; it has %s", name, tostring(key), table.concat(known, ", "))
    end
  end
  return options
end

local function check_value(name, value, what)
  if not define.accepts("value", value) then
    errors.usage("op.%s: %s is %s; a tensor or a value of a graph is needed", name, what, text.value(value))
  end
end

local function check_whole(name, option, value)
  if type(value) ~= "number" or value ~= math.floor(value) then
    errors.usage("op.%s: %s = %s has to be a whole number", name, option, text.value(value))
  end
end

-- The dimension as a number from 0; -1 is the last.
local function dim_of(name, x, dim)
  check_whole(name, "dim", dim)
  local rank = #x.shape
  if dim < -rank or dim >= rank then
    errors.usage("op.%s: dim = %d; %s has the dimensions %d to %d", name, dim, text.shape(x.shape), -rank, rank - 1)
  end
  return dim % rank
end

-- The order of dimensions that swaps one with the last, which is its own inverse; nil: it is the last.
local function swap_with_last(rank, dim)
  if dim == rank - 1 then return nil end
  local order = {}
  for d = 1, rank do order[d] = d - 1 end
  order[dim + 1], order[rank] = rank - 1, dim
  return order
end

local function without(shape, dim)
  local left = {}
  for d, size in ipairs(shape) do
    if d ~= dim + 1 then left[#left + 1] = size end
  end
  return left
end

return function(op)
  local function add(name, signature, sentence, example, fn)
    op[name] = define.document({ name = "op." .. name, signature = signature, sentence = sentence, example = example },
      fn)
  end

  add("where", "condition:T, a:T, b:T → T", "a where the condition is not 0, else b, broadcasting; what is not taken "
    .. "may be anything, NaN too.", "op.where(op.less(x, 0), 0, x)", function(condition, a, b)
    check_value("where", condition, "the condition")
    return op.add(op.mask(condition, a), op.mask_out(condition, b))
  end)
  add("greater", "a:T, b:T → T", "1 where a > b, else 0.", "op.greater(x, 0)", function(a, b) return op.less(b, a) end)
  add("greater_equal", "a:T, b:T → T", "1 where a ≥ b, else 0.", "op.greater_equal(x, 0)",
    function(a, b) return op.less_equal(b, a) end)

  local dropout = op.dropout
  op.dropout = define.document(define.lookup "op.dropout", function(x, counter, ...)
    if type(counter) == "number" or type(counter) == "table" and debug.getmetatable(counter) == nil then
      errors.usage("op.dropout draws by a counter: nn.dropout(0.1) among `layers` and self.builder:dropout(x, 0.1) "
        .. "have the one of the run")
    end
    return dropout(x, counter, ...)
  end)

  local pow = op.pow
  add("pow", "x:T, y?:T → T", "x to the power of y, broadcasting, or of the constant `exponent`; the gradient goes to "
    .. "both. x ^ y is the same.", "op.pow(x, y)", function(x, y)
    if y == nil or type(y) == "table" and debug.getmetatable(y) == nil then return pow(x, y) end
    for which, value in pairs { x = x, y = y } do
      if type(value) ~= "number" then check_value("pow", value, which) end
    end
    if type(x) == "number" and type(y) == "number" then return op.power(x, y) end
    return x ^ y
  end)

  add("clamp", "x:T → T", "x, no less than `min` and no more than `max`.", "op.clamp(x, { min = -1, max = 1 })",
    function(x, options)
      options = check_options("clamp", options, { "min", "max" })
      if not options.min and not options.max then errors.usage("op.clamp needs `min`, `max` or both") end
      if options.min then x = op.clamp_min(x, { bound = options.min }) end
      if options.max then x = op.clamp_max(x, { bound = options.max }) end
      return x
    end)

  -- The largest along a dimension, and where it is.
  local function largest(name, x, options)
    options = check_options(name, options, { "dim", "keep" })
    check_value(name, x, "x")
    local rank, dim = #x.shape, dim_of(name, x, options.dim or -1)
    local order = swap_with_last(rank, dim)
    local value, index = op.top_k(order and op.transpose(x, { order = order }) or x, { k = 1 })
    if order then
      value, index = op.transpose(value, { order = order }), op.transpose(index, { order = order })
    end
    if options.keep then return value, index end
    local shape = without(x.shape, dim)
    return op.reshape(value, { shape = shape }), op.reshape(index, { shape = shape })
  end
  add("max", "x → values:T, index:i32", "The largest along `dim` (-1, the last), kept as size 1 with `keep`, and where "
    .. "it is; of equal ones the first. The gradient goes there.", "local values = op.max(x, { dim = 1 })",
    function(x, options) return largest("max", x, options) end)
  add("min", "x → values:T, index:i32", "The smallest along `dim`, as op.max.", "local values = op.min(x, { dim = 1 })",
    function(x, options)
      check_value("min", x, "x")
      local value, index = largest("min", op.neg(x), options)
      return op.neg(value), index
    end)
  add("argmax", "x → index:i32", "Where the largest along `dim` (-1, the last) is.", "op.argmax(logits)",
    function(x, options) return (select(2, largest("argmax", x, options))) end)

  add("index_select", "x:T, index[k]:i32 → T", "Slices of x along `dim` (0) by index, as PyTorch's index_select.",
    "op.index_select(x, index, { dim = 1 })", function(x, index, options)
      options = check_options("index_select", options, { "dim" })
      check_value("index_select", x, "x")
      check_value("index_select", index, "the index")
      if #index.shape ~= 1 then
        errors.usage("op.index_select: the index is %s; a vector is needed", text.shape(index.shape))
      end
      local dim, count = dim_of("index_select", x, options.dim or 0), index.shape[1]
      local order, shape = { dim }, { count }
      for d, size in ipairs(x.shape) do
        if d ~= dim + 1 then order[#order + 1], shape[#shape + 1] = d - 1, size end
      end
      local back = {}
      for place, d in ipairs(order) do back[d + 1] = place - 1 end
      local rows = op.reshape(op.transpose(x, { order = order }), { shape = { x.shape[dim + 1], -1 } })
      return op.transpose(op.reshape(op.embedding(index, rows), { shape = shape }), { order = back })
    end)

  add("one_hot", "ids[...]:i32 → [..., classes]:f32", "1 at each id, else 0.", "op.one_hot(ids, { classes = 10 })",
    function(ids, options)
      options = check_options("one_hot", options, { "classes", "dtype" })
      check_value("one_hot", ids, "the ids")
      check_whole("one_hot", "classes", options.classes)
      local column = { unpack(ids.shape) }
      column[#column + 1] = 1
      local known = op.reshape(op.cast(ids, { dtype = "f32" }), { shape = column })
      local hot = op.equal(known, native.arange(options.classes, "f32"))
      return options.dtype and op.cast(hot, { dtype = options.dtype }) or hot
    end)

  add("log_probability", "logits[..., v]:T, labels[...]:i32 → [...]:f32", "log softmax(logits) of each label; 0 where "
    .. "it is -100.", "op.sum(op.log_probability(logits, labels), { dims = { -1 } })",
    function(logits, labels) return (native.op("log_probability", { logits, labels })) end)

  -- A score is lowered by so much where a key is masked: exp of what is left is 0. Where all keys are masked, this much
  -- in f32 leaves scores that are exact to 2^-10; with -1e6 it would be 1/32.
  local hidden = -3e4

  -- x with columns behind its last dimension: a number, or a value that broadcasts, in each. They are made of x, so
  -- that they are cut among devices as it is.
  local function widened(x, columns, value)
    local first = op.slice(x, { dim = -1, start = 0, length = 1 })
    local made = op.mul(op.equal(first, first), op.fill { value = type(value) == "number" and value or 1,
      shape = { columns }, dtype = x.dtype })
    if type(value) ~= "number" then made = op.mul(made, value) end
    return op.concat(x, made, { dim = -1 })
  end

  add("masked_attention", "q[b, t, hq, d]:T, k[b, s, hk, d]:T, v[b, s, hk, d]:T, mask[b, s] → out[b, t, hq, d]:T",
    "op.attention in which no query sees a key whose mask is 0, such as padding (an `attention_mask`); with `causal`, "
    .. "`scale` and `window`. A query whose keys are all masked sees them all, with scores rounded to about 0.002. It "
    .. "is op.attention of heads of the next multiple of 8: 64 elements become 72, 121 to 127 become 128, 128 become "
    .. "136. On a GPU heads of 64 take the time of those of 128, and heads of 128 in bf16 the kernel without tensor "
    .. "cores. Heads of 512 are refused.",
    "op.masked_attention(q, k, v, mask)", function(q, k, v, mask, options)
      options = check_options("masked_attention", options, { "causal", "scale", "window" })
      for name, value in pairs { q = q, k = k, v = v, ["the mask"] = mask } do
        check_value("masked_attention", value, name)
      end
      if #q.shape ~= 4 or #k.shape ~= 4 then
        errors.usage("op.masked_attention: q is %s and k %s; [samples, tokens, heads, elements] are needed",
          text.shape(q.shape), text.shape(k.shape))
      end
      local samples, keys, size = k.shape[1], k.shape[2], q.shape[4]
      if text.shape(mask.shape) ~= text.shape { samples, keys } then
        errors.usage("op.masked_attention: the mask is %s; a number for each key is needed, %s",
          text.shape(mask.shape), text.shape { samples, keys })
      end
      local scale, columns = options.scale or 1 / math.sqrt(size), 8 - size % 8
      if scale == 0 then errors.usage "op.masked_attention: scale = 0; all scores would be equal" end
      local is_hidden = op.equal(op.cast(mask, { dtype = "f32" }), 0)
      local lowered = op.cast(op.scale(is_hidden, { factor = hidden / scale / columns }), { dtype = k.dtype })
      local out = op.attention(widened(q, columns, 1),
        widened(k, columns, op.reshape(lowered, { shape = { samples, keys, 1, 1 } })), widened(v, columns, 0),
        { causal = options.causal or false, scale = scale, window = options.window })
      return op.slice(out, { dim = -1, start = 0, length = size })
    end)

  add("conv1d", "x[b, channels, t]:T, weight[out, channels / groups, k]:T, bias?[out]:A → [b, out, t']:T",
    "A convolution along the last dimension, with zeros before and after it (`padding`), or with `causal` before it "
    .. "alone, so that a result sees no later entry.", "op.conv1d(x, self.weight, self.bias, { causal = true })",
    function(x, weight, bias, options)
      if options == nil and type(bias) == "table" then bias, options = nil, bias end
      options = check_options("conv1d", options, { "stride", "padding", "dilation", "groups", "causal" })
      check_value("conv1d", x, "x")
      check_value("conv1d", weight, "the weight")
      if #x.shape ~= 3 or #weight.shape ~= 3 then
        errors.usage("op.conv1d: x is %s and the weight %s; [b, channels, t] and [out, channels / groups, k] are "
          .. "needed", text.shape(x.shape), text.shape(weight.shape))
      end
      if options.causal and (options.padding or (options.stride or 1) ~= 1) then
        errors.usage("op.conv1d: `causal` goes with neither `padding` nor a `stride`")
      end
      local b, channels, t = unpack(x.shape)
      local out, inputs, k = unpack(weight.shape)
      local padding = options.causal and (k - 1) * (options.dilation or 1) or options.padding or 0
      local y = op.conv2d(op.reshape(x, { shape = { b, channels, 1, t } }),
        op.reshape(weight, { shape = { out, inputs, 1, k } }), bias, { stride = { 1, options.stride or 1 },
          padding = { 0, padding }, dilation = { 1, options.dilation or 1 }, groups = options.groups or 1 })
      if options.causal then y = op.slice(y, { dim = 3, start = 0, length = t }) end
      return op.reshape(y, { shape = { b, out, options.causal and t or y.shape[4] } })
    end)
end
