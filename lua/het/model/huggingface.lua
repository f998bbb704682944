--- Names and shapes of GPT-2, LLaMA and BERT as Hugging Face's transformers stores them, both ways. A row is
-- { theirs, ours, transpose =, optional =, zeros = }: `theirs` may be a list of names whose matrices stand one below
-- the other in ours (queries, keys, values); GPT-2's "Conv1D" matrices are stored [in, out], ours are [out, in].
local errors = require "het.errors"
local define = require "het.language.define"
local models = require "het.nn.models"

local huggingface = {}

local function gpt2_rows(a)
  local rows = { { "wte.weight", "tokens.weight" }, { "wpe.weight", "positions.weight" } }
  local function pair(theirs, ours, transpose)
    rows[#rows + 1] = { theirs .. ".weight", ours .. ".weight", transpose = transpose }
    -- transformers' GPT-2 always has biases: a model without them is stored with zeros.
    rows[#rows + 1] = { theirs .. ".bias", ours .. ".bias", zeros = not a.bias }
  end
  for i = 0, a.layers - 1 do
    local theirs, ours = ("h.%d."):format(i), ("blocks.%d."):format(i)
    pair(theirs .. "ln_1", ours .. "attention_norm")
    pair(theirs .. "attn.c_attn", ours .. "attention.qkv", true)
    pair(theirs .. "attn.c_proj", ours .. "attention.out", true)
    pair(theirs .. "ln_2", ours .. "mlp_norm")
    pair(theirs .. "mlp.c_fc", ours .. "mlp.up", true)
    pair(theirs .. "mlp.c_proj", ours .. "mlp.down", true)
  end
  pair("ln_f", "norm")
  for _, row in ipairs(rows) do row[1] = "transformer." .. row[1] end
  if not a.tied then rows[#rows + 1] = { "lm_head.weight", "head.weight" } end
  return rows
end

local function llama_rows(a)
  local rows = { { "model.embed_tokens.weight", "tokens.weight" } }
  for i = 0, a.layers - 1 do
    local theirs, ours = ("model.layers.%d."):format(i), ("blocks.%d."):format(i)
    local attention = theirs .. "self_attn."
    rows[#rows + 1] = { theirs .. "input_layernorm.weight", ours .. "attention_norm.weight" }
    rows[#rows + 1] = { { attention .. "q_proj.weight", attention .. "k_proj.weight", attention .. "v_proj.weight" },
      ours .. "attention.qkv.weight" }
    rows[#rows + 1] = { attention .. "o_proj.weight", ours .. "attention.out.weight" }
    rows[#rows + 1] = { theirs .. "post_attention_layernorm.weight", ours .. "mlp_norm.weight" }
    for _, name in ipairs { "gate", "up", "down" } do
      rows[#rows + 1] = { ("%smlp.%s_proj.weight"):format(theirs, name), ("%smlp.%s.weight"):format(ours, name) }
    end
  end
  rows[#rows + 1] = { "model.norm.weight", "norm.weight" }
  if not a.tied then rows[#rows + 1] = { "lm_head.weight", "head.weight" } end
  return rows
end

local function bert_rows(a)
  local rows = {
    { "bert.embeddings.word_embeddings.weight", "tokens.weight" },
    { "bert.embeddings.position_embeddings.weight", "positions.weight" },
    { "bert.embeddings.token_type_embeddings.weight", "segments.weight" },
    { "cls.predictions.bias", "head_bias" },
  }
  local function pair(theirs, ours)
    for _, which in ipairs { ".weight", ".bias" } do
      local names
      if type(theirs) == "table" then
        names = {}
        for i, name in ipairs(theirs) do names[i] = name .. which end
      else
        names = theirs .. which
      end
      rows[#rows + 1] = { names, ours .. which }
    end
  end
  pair("bert.embeddings.LayerNorm", "embedding_norm")
  for i = 0, a.layers - 1 do
    local theirs, ours = ("bert.encoder.layer.%d."):format(i), ("blocks.%d."):format(i)
    local own = theirs .. "attention.self."
    pair({ own .. "query", own .. "key", own .. "value" }, ours .. "attention.qkv")
    pair(theirs .. "attention.output.dense", ours .. "attention.out")
    pair(theirs .. "attention.output.LayerNorm", ours .. "attention_norm")
    pair(theirs .. "intermediate.dense", ours .. "mlp.up")
    pair(theirs .. "output.dense", ours .. "mlp.down")
    pair(theirs .. "output.LayerNorm", ours .. "mlp_norm")
  end
  pair("cls.predictions.transform.dense", "head_transform")
  pair("cls.predictions.transform.LayerNorm", "head_norm")
  return rows
end

local function sizes(a, kv_heads)
  local head = a.head_size or a.width / a.heads
  return { a.heads * head, kv_heads * head, kv_heads * head }
end

-- Of a configuration: a number that has to be there.
local function need(config, name, folder)
  local value = config[name]
  if type(value) ~= "number" then
    errors.usage("%s/config.json has no number '%s', which a %s model needs", folder, name, config.model_type)
  end
  return value
end

local function given(value) return (type(value) == "number" or type(value) == "boolean") and value or nil end

local function refuse_unless(config, name, wanted, folder)
  local value = config[name]
  if value ~= nil and type(value) ~= "userdata" and value ~= wanted then
    errors.usage("%s/config.json: %s = %s is not supported; %s is", folder, name, tostring(value), tostring(wanted))
  end
end

local activations = { gelu_new = "gelu", gelu_pytorch_tanh = "gelu", gelu = "gelu_exact", relu = "relu", silu = "silu" }
local their_activation = { gelu = "gelu_new", gelu_exact = "gelu", relu = "relu", silu = "silu" }

--- What is known of each family: rows of names, their configuration from ours, ours from theirs.
huggingface.families = {
  gpt2 = {
    rows = gpt2_rows,
    alternatives = { { "^transformer%.", "" } },   -- checkpoints of the bare model have no prefix
    config = function(a)
      return {
        architectures = { "GPT2LMHeadModel" }, model_type = "gpt2", vocab_size = a.vocab, n_positions = a.context,
        n_ctx = a.context, n_embd = a.width, n_layer = a.layers, n_head = a.heads, n_inner = a.hidden,
        activation_function = their_activation[a.activation], layer_norm_epsilon = a.eps,
        tie_word_embeddings = a.tied, initializer_range = 0.02, attn_pdrop = 0, embd_pdrop = a.dropout,
        resid_pdrop = a.dropout, torch_dtype = "float32", bos_token_id = 0, eos_token_id = 0,
      }
    end,
    make = function(config, folder)
      local activation = activations[config.activation_function or "gelu_new"]
      if not activation then
        errors.usage("%s/config.json: activation_function '%s' is not supported", folder,
          tostring(config.activation_function))
      end
      refuse_unless(config, "scale_attn_by_inverse_layer_idx", false, folder)
      refuse_unless(config, "add_cross_attention", false, folder)
      refuse_unless(config, "scale_attn_weights", true, folder)
      -- reorder_and_upcast_attn computes the same in another order, and may be either.
      return models.gpt {
        vocab = need(config, "vocab_size", folder), context = need(config, "n_positions", folder),
        width = need(config, "n_embd", folder), layers = need(config, "n_layer", folder),
        heads = need(config, "n_head", folder), hidden = given(config.n_inner), activation = activation,
        eps = given(config.layer_norm_epsilon), tied = config.tie_word_embeddings ~= false,
        dropout = given(config.resid_pdrop),
      }
    end,
  },
  llama = {
    rows = llama_rows,
    sizes = function(a) return sizes(a, a.kv_heads or a.heads) end,
    config = function(a)
      return {
        architectures = { "LlamaForCausalLM" }, model_type = "llama", vocab_size = a.vocab,
        max_position_embeddings = a.context, hidden_size = a.width,
        intermediate_size = a.hidden or require("het.nn.attention").swiglu_hidden(a.width),
        num_hidden_layers = a.layers, num_attention_heads = a.heads, num_key_value_heads = a.kv_heads or a.heads,
        head_dim = a.head_size or a.width / a.heads, hidden_act = "silu", rms_norm_eps = a.eps,
        rope_theta = a.rotary, tie_word_embeddings = a.tied, attention_bias = false, mlp_bias = false,
        initializer_range = 0.02, torch_dtype = "float32", bos_token_id = 0, eos_token_id = 0,
      }
    end,
    make = function(config, folder)
      for name, wanted in pairs { hidden_act = "silu", attention_bias = false, mlp_bias = false } do
        refuse_unless(config, name, wanted, folder)
      end
      local rope = type(config.rope_parameters) == "table" and config.rope_parameters or {}
      for _, scaling in ipairs { config.rope_scaling or false, rope } do
        local kind = type(scaling) == "table" and (scaling.rope_type or scaling.type)
        if kind and kind ~= "default" then
          errors.usage("%s/config.json: rotary positions scaled as '%s' are not supported", folder, tostring(kind))
        end
      end
      return models.llama {
        vocab = need(config, "vocab_size", folder), context = need(config, "max_position_embeddings", folder),
        width = need(config, "hidden_size", folder), hidden = need(config, "intermediate_size", folder),
        layers = need(config, "num_hidden_layers", folder), heads = need(config, "num_attention_heads", folder),
        kv_heads = given(config.num_key_value_heads), head_size = given(config.head_dim),
        eps = given(config.rms_norm_eps), rotary = given(config.rope_theta) or given(rope.rope_theta),
        tied = config.tie_word_embeddings == true,
      }
    end,
  },
  bert = {
    rows = bert_rows,
    sizes = function(a) return { a.width, a.width, a.width } end,
    config = function(a)
      return {
        architectures = { "BertForMaskedLM" }, model_type = "bert", vocab_size = a.vocab,
        max_position_embeddings = a.context, hidden_size = a.width, intermediate_size = a.hidden or 4 * a.width,
        num_hidden_layers = a.layers, num_attention_heads = a.heads, hidden_act = "gelu", type_vocab_size = 2,
        layer_norm_eps = a.eps, hidden_dropout_prob = a.dropout, attention_probs_dropout_prob = 0,
        initializer_range = 0.02, torch_dtype = "float32", pad_token_id = 0,
      }
    end,
    make = function(config, folder)
      refuse_unless(config, "hidden_act", "gelu", folder)
      refuse_unless(config, "type_vocab_size", 2, folder)
      refuse_unless(config, "position_embedding_type", "absolute", folder)
      refuse_unless(config, "tie_word_embeddings", true, folder)
      refuse_unless(config, "is_decoder", false, folder)
      refuse_unless(config, "add_cross_attention", false, folder)
      return models.bert {
        vocab = need(config, "vocab_size", folder), context = need(config, "max_position_embeddings", folder),
        width = need(config, "hidden_size", folder), hidden = need(config, "intermediate_size", folder),
        layers = need(config, "num_hidden_layers", folder), heads = need(config, "num_attention_heads", folder),
        eps = given(config.layer_norm_eps), dropout = given(config.hidden_dropout_prob),
      }
    end,
  },
}

--- The family that a model can be stored as, or nil: models with blocks of the recipe's own are stored by our names.
function huggingface.family_of(model)
  if define.kind_of(model) ~= "layer" or not model.class.model or model.arguments.block then return nil end
  return huggingface.families[model.class.model]
end

return huggingface
