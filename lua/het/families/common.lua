--- What the files of several families share.
local native = require "het.native"

local common = {}

--- Our activations by the names that transformers has for them.
common.activations = { gelu_new = "gelu", gelu_pytorch_tanh = "gelu", gelu_fast = "gelu", gelu = "gelu_exact",
  relu = "relu", silu = "silu", swish = "silu" }

--- The `decoder` of a family: as LLaMA's blocks, but for what differs.
function common.decoder(differs)
  local decoder = { norm = "rms", order = "before", gated = true, activation = "silu", bias = false, mlp_bias = false,
    qk_norm = "none", eps = 1e-5, rotary = 10000, tied = false }
  for name, value in pairs(differs) do decoder[name] = value end
  return decoder
end

--- Rows one list after the other.
function common.joined(...)
  local rows = {}
  for _, list in ipairs { ... } do
    for _, row in ipairs(list) do rows[#rows + 1] = row end
  end
  return rows
end

--- The sizes of a decoder, as most families name them.
common.sizes = {
  { "vocab_size", "vocab", need = true },
  { "max_position_embeddings", "context", need = true },
  { "hidden_size", "width", need = true },
  { "intermediate_size", "hidden", need = true, written = function(a)
    if a.hidden then return a.hidden end
    return a.gated and require("het.nn.attention").swiglu_hidden(a.width) or 4 * a.width
  end },
  { "num_hidden_layers", "layers", need = true },
  { "num_attention_heads", "heads", need = true },
}

--- The same, where `hidden` is of an expert.
common.expert_sizes = {}
for i, row in ipairs(common.sizes) do
  common.expert_sizes[i] = row[2] == "hidden"
    and { "moe_intermediate_size", "hidden", need = true, written = row.written } or row
end

--- For `written`: the argument, or null.
function common.or_null(name)
  return function(a) return a[name] or native.null end
end

--- Fewer key heads than query heads.
common.grouped = {
  { "num_key_value_heads", "kv_heads", written = function(a) return a.kv_heads or a.heads end },
}

--- Heads whose size the width does not decide.
common.head_size = {
  { "head_dim", "head_size", written = function(a) return a.head_size or a.width / a.heads end },
}

-- Queries, keys and values of LLaMA's names.
local function projections(bias)
  local own = "model.layers.%d.self_attn."
  return { { own .. "q_proj", own .. "k_proj", own .. "v_proj" }, "blocks.%d.attention.qkv", bias = bias }
end

--- What all Gemmas have beside their sizes.
common.gemma = {
  { "head_dim", "head_size", default = 256, written = function(a) return a.head_size or a.width / a.heads end },
  { "rms_norm_eps", "eps", default = 1e-6 },
  { "tie_word_embeddings", "tied", default = true },
  { "attention_bias", "bias", default = false },
  { "use_bidirectional_attention", is = false },
}
common.gemma_activations = { gelu_pytorch_tanh = "gelu", gelu = "gelu_exact", silu = "silu", relu = "relu" }

--- What Gemmas with windows have.
common.windows = {
  -- One that reaches over the context is none.
  { "sliding_window", "window", default = 4096, written = function(a) return a.window or a.context end },
  { "query_pre_attn_scalar", "score_scale", default = 256, from = function(value) return value ^ -0.5 end,
    written = function(a) return a.score_scale and a.score_scale ^ -2 or a.head_size or a.width / a.heads end },
}

--- The n of a list that has `nth` in every n-th place (count + 1 where it has it nowhere), and the first place that has
-- neither that nor, elsewhere, `other`; nil where all fit.
-- @int count places that are looked at
function common.interval(list, count, nth, other)
  local every = count + 1
  for number = count, 1, -1 do
    if list[number] == nth then every = number end
  end
  for number = 1, count do
    if list[number] ~= (number % every == 0 and nth or other) then return every, number end
  end
  return every
end

--- For `read`: which layers have a window, from `layer_types` or the pattern's length.
-- @int every by default every n-th layer has none
function common.read_layers(every)
  return function(config, a, refuse)
    local types = config.layer_types
    a.window_every = tonumber(config.sliding_window_pattern) or tonumber(config._sliding_window_pattern) or every
    if type(types) ~= "table" then return end
    local odd
    a.window_every, odd = common.interval(types, #types, "full_attention", "sliding_attention")
    if odd then
      refuse(("layer_types has '%s' for layer %d; full_attention in every n-th layer and sliding_attention in all "
        .. "others is supported"):format(tostring(types[odd]), odd))
    end
  end
end

--- For `write`: the same.
function common.write_layers(a, config)
  config.layer_types = {}
  for number = 1, a.layers do
    config.layer_types[number] = number % a.window_every == 0 and "full_attention" or "sliding_attention"
  end
end

--- What Qwens with windows in their last layers have.
common.late_windows = {
  { "use_sliding_window", written = function(a) return a.window ~= nil end },
  { "sliding_window", "window", default = 4096, written = common.or_null "window" },
  { "max_window_layers", "window_after", default = 28, written = function(a)
    return a.window and (a.window_after or 0) or a.layers
  end },
}

--- For `read`: these layers, also from `layer_types`.
function common.read_late_windows(config, a, refuse)
  local types = config.layer_types
  local has_windows = config.use_sliding_window == true   -- it may be null
  if has_windows and type(types) == "table" then
    a.window_after = #types
    for number, kind in ipairs(types) do
      if kind == "sliding_attention" then a.window_after = math.min(a.window_after, number - 1) end
      if kind ~= (number > a.window_after and "sliding_attention" or "full_attention") then
        refuse(("layer_types has '%s' for layer %d; full_attention for the first layers and sliding_attention for all "
          .. "others is supported"):format(tostring(kind), number))
      end
    end
  end
  if has_windows and type(a.window_after) ~= "number" then refuse "max_window_layers is missing" end
  if not has_windows or a.window_after >= a.layers then a.window = nil end
  if not a.window or a.window_after == 0 then a.window_after = nil end
end

--- The tensors of a model with LLaMA's names.
-- @tparam table differs `attention_norm`, `mlp_norm`: their names; `norm_bias`, `qkv_bias`, `out_bias`, `mlp_bias`:
-- whether there is one, or the argument that says so; `mlp`: rows of the feed-forward layer in place of LLaMA's;
-- `more`: rows of a block besides
function common.tensors(differs)
  local block = "model.layers.%d."
  return common.joined({
    { "model.embed_tokens", "tokens" },
    { block .. (differs.attention_norm or "input_layernorm"), "blocks.%d.attention_norm", bias = differs.norm_bias },
    projections(differs.qkv_bias),
    { block .. "self_attn.o_proj", "blocks.%d.attention.out", bias = differs.out_bias },
    { block .. (differs.mlp_norm or "post_attention_layernorm"), "blocks.%d.mlp_norm", bias = differs.norm_bias },
  }, differs.mlp or {
    { block .. "mlp.gate_proj", "blocks.%d.mlp.gate", bias = differs.mlp_bias },
    { block .. "mlp.up_proj", "blocks.%d.mlp.up", bias = differs.mlp_bias },
    { block .. "mlp.down_proj", "blocks.%d.mlp.down", bias = differs.mlp_bias },
  }, differs.more or {}, {
    { "model.norm", "norm", bias = differs.norm_bias },
    { "lm_head", "head", untied = true },
  })
end

--- Does a layer, of this number from 0, have experts? `a`: the model's arguments with the family's.
function common.has_experts(a, number)
  if not a.experts or (number + 1) % (a.experts_every or 1) ~= 0 then return false end
  for _, dense in ipairs(a.dense_layers or {}) do
    if dense == number then return false end
  end
  return true
end

local function is_dense(a, number) return not common.has_experts(a, number) end

--- Which layers of a Qwen have experts, and the feed-forward layer of the others.
-- @tparam number hidden size of that layer where config.json does not say it
function common.sparse_layers(hidden)
  return {
    { "decoder_sparse_step", "experts_every", default = 1, written = function(a) return a.experts_every or 1 end },
    { "intermediate_size", "dense_hidden", default = hidden, written = function(a)
      return a.dense_hidden or require("het.nn.attention").swiglu_hidden(a.width)
    end },
  }
end

--- For `read` and `write`: the same, of lists.
function common.read_dense_layers(config, a)
  local dense = config.mlp_only_layers
  if type(dense) == "table" and #dense > 0 then a.dense_layers = dense end
end
function common.write_dense_layers(a, config) config.mlp_only_layers = a.dense_layers or native.null end

--- Rows of a mixture of experts, and of its other tensors; those of LLaMA's feed-forward layer where a layer has no
-- experts.
-- @tparam table names of `mlp`, `side`, `up` and `down`; `shared`: of the expert that all tokens go to
-- @tparam table differs as common.tensors has it
function common.expert_tensors(names, differs)
  local rows, mlp = common.tensors(differs), "model.layers.%d." .. names.mlp
  for _, row in ipairs(rows) do
    if type(row[2]) == "string" and row[2]:find "mlp%." then row.when = is_dense end
  end
  local function add(theirs, ours, kind)
    local row = { mlp .. "." .. theirs, "blocks.%d.mlp." .. ours, when = common.has_experts }
    if kind then row[kind] = true end
    rows[#rows + 1] = row
  end
  add("gate.weight", "gate", "plain")
  for _, part in ipairs { "side", "up", "down" } do add("experts.%e." .. names[part], part, "experts") end
  if names.shared then
    for _, part in ipairs { "gate", "up", "down" } do
      add(("%s.%s_proj"):format(names.shared, part), "shared." .. part)
    end
    add(names.shared .. "_gate", "shared_gate")
  end
  return rows
end

--- Norms of queries and keys.
common.qk_norms = {
  { "model.layers.%d.self_attn.q_norm", "blocks.%d.attention.q_norm" },
  { "model.layers.%d.self_attn.k_norm", "blocks.%d.attention.k_norm" },
}

return common
