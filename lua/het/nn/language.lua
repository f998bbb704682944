--- What whole language models share: their blocks, tables of positions, the classifier and the loss fused with it.
local adapter = require "het.nn.adapter"
local define = require "het.language.define"
local handle = require "het.sandbox.handle"
local mistakes = require "het.language.mistakes"
local op = require "het.op"
local text = require "het.text"

local language = {}

--- The blocks of a model as children "blocks.0", ...: from the recipe's function, or the model's own.
function language.blocks_of(a, make)
  local list = {}
  for i = 1, a.layers do
    local block
    if a.block then block = handle.inner(a.block(a.width, a.heads, i)) else block = make(a, i) end
    list[i] = { "blocks." .. (i - 1), block }
  end
  return list
end

--- A recipe's block function has to return layers: checked before anything is built.
function language.check_blocks(a, report, name)
  if not a.block then return end
  local before = mistakes.count()
  for i = 1, a.layers do
    local block = handle.inner(a.block(a.width, a.heads, i))
    if define.is_unknown(block) then
      report(nil, mistakes.count() == before and name .. ".block does not return a layer" or nil)
      return
    end
    if define.kind_of(block) ~= "layer" and type(block) ~= "function" then
      report("block", ("%s.block returned %s for block %d; it has to return a layer"):format(
        name, define.kind_of(block) == "nil" and "nothing" or "a " .. define.kind_of(block), i))
      return
    end
  end
end

--- Equal neighbours are printed once.
function language.mark_repeats(children)
  for _, child in ipairs(children) do
    if child[1]:match("^blocks%.") and type(child[2]) ~= "function" then child.repeats = tostring(child[2]) end
  end
  return children
end

--- What the layers inside need to know of the model: GPT-2's way to draw first weights.
function language.announce(self)
  self.builder.deviation = 0.02
  self.builder.residuals = 2 * self.arguments.layers
end

--- x through all blocks, each a layer that a plan may place; what else is given, to each of them.
function language.run_blocks(self, x, ...)
  for i = 1, self.arguments.layers do
    self.builder:begin_layer("blocks." .. (i - 1))
    x = self["blocks." .. (i - 1)](x, ...)
  end
  return x
end

local function child_named(self, name)
  for _, child in ipairs(getmetatable(self).__index:children()) do
    if child[1] == name then return child[2] end
  end
end

--- A parameter of a child (default: its weight), for tied ones.
function language.weight_of(self, name, which)
  return self.builder:weight_of(child_named(self, name), name, which or "weight")
end

--- The first rows of a table of positions, or the rows of given positions while generating: [t, width]; of rows of
-- several examples [samples, t, width], from the first for each.
function language.position_rows(self, samples, count)
  local b, rows = self.builder, language.weight_of(self, "positions")
  if b.mode == "generate" then return op.embedding(b:positions(count), rows) end
  local starts = b:starts(samples, count)
  if starts then
    local at = op.cast(b:positions(count), { dtype = "f32" })   -- exact, as `starts` is
    at = op.sub(op.reshape(at, { shape = { 1, count } }), op.cast(starts, { dtype = "f32" }))
    return op.embedding(op.cast(at, { dtype = "i32" }), rows)
  end
  if count == self.arguments.context then return rows end
  return op.slice(rows, { dim = 0, start = 0, length = count })
end

local function classifier(self, a)
  if a.tied then return language.weight_of(self, "tokens") end
  return language.weight_of(self, "head")
end

-- The classifier's adapters (het.nn.adapter); nil where it has none.
local function head_adapters(self, a)
  local head = not a.tied and child_named(self, "head")
  return head and head.adapters
end

-- Logits of hidden states; a model's last cap bounds them.
local function logits(self, a, h)
  local y, cap = op.linear(h, classifier(self, a)), a.logit_cap
  local adapters = head_adapters(self, a)
  if adapters then
    y = adapter.add({ adapters = adapters, builder = self.builder, lora_a = language.weight_of(self, "head", "lora_a"),
      lora_b = language.weight_of(self, "head", "lora_b") }, "", h, y)
  end
  return cap and op.scale(op.tanh(op.scale(y, { factor = 1 / cap })), { factor = cap }) or y
end

--- From the hidden states of a model that predicts the next token: all logits, the loss, the last logits.
-- @tparam function hidden function(self, tokens): the hidden states
-- @tparam[opt] function settings_of what the arguments are with all defaults
function language.next_token(hidden, settings_of)
  settings_of = settings_of or function(a) return a end
  return {
    forward = function(self, tokens) return logits(self, settings_of(self.arguments), hidden(self, tokens)) end,
    loss = function(self, tokens, labels, scale)
      local h, a = hidden(self, tokens), settings_of(self.arguments)
      if a.logit_cap or head_adapters(self, a) then return (op.cross_entropy(logits(self, a, h), labels, scale)) end
      return (op.linear_cross_entropy(h, classifier(self, a), false, labels, scale))
    end,
    last = function(self, tokens)
      local h = hidden(self, tokens)
      return logits(self, settings_of(self.arguments), op.slice(h, { dim = 1, start = h.shape[2] - 1, length = 1 }))
    end,
  }
end

--- The tied classifier multiplies, though the table counts as a lookup.
function language.tied_flops(a) return a.tied and 6 * a.width * a.vocab or 0 end

--- A class with these functions.
function language.with(class, functions)
  for name, value in pairs(functions) do class[name] = value end
  return class
end

--- What stands beside the name in the tree.
function language.show(a)
  return ("vocab %d, context %d, width %d, %s, %s"):format(a.vocab, a.context, a.width, text.plural(a.layers, "layer"),
    text.plural(a.heads, "head"))
end

return language
