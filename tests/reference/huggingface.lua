-- Prints the logits of a saved model on fixed tokens, a line for each token; then trains it further into `again`.
-- With --family it trains a new model of that family into `again`, and reads none.
local het = require "het"
local opt = het.options {
  folder = { "model", "saved model", path = "read" }, vocab = { 50, "tokens" }, length = { 12, "of the sequence" },
  family = { "", "of a new model" },
}
local settings = {
  gemma2 = { window = 4, score_cap = 2.5, logit_cap = 3, head_size = 8, score_scale = 0.25 },
  gemma3_text = { window = 4, head_size = 8, layers = 7 },
  granite = { embedding_scale = 3, residual_scale = 0.25, logit_scale = 0.125, score_scale = 0.2, kv_heads = 2 },
  olmo3 = { window = 4, layers = 5, rotary = 500,
    scaling = { rope_type = "yarn", factor = 2, original_max_position_embeddings = 8 } },
  smollm3 = { no_rotary_every = 2 }, stablelm = { kv_heads = 2, bias = true },
  starcoder2 = { window = 4, kv_heads = 1 },
  gpt_neox = { rotary_share = 0.5, activation = "gelu" },
  llama = { bias = true, scaling = { rope_type = "llama3", factor = 4, low_freq_factor = 1, high_freq_factor = 4,
    original_max_position_embeddings = 8 } },
  mixtral = { experts = 4 }, olmoe = { experts = 4, top = 2 }, qwen3_moe = { experts = 4, top = 2, hidden = 24 },
  mistral = { window = 4, kv_heads = 2, rotary = 500 },
  qwen2 = { window = 4, window_after = 2,
    scaling = { rope_type = "yarn", factor = 2, original_max_position_embeddings = 8 } },
  qwen2_moe = { experts = 4, top = 2, hidden = 24, shared = 40, dense_layers = { 1 }, dense_hidden = 48 },
  qwen3 = { head_size = 16, kv_heads = 1, tied = true },
}

local function fresh()
  local a = { family = opt.family, vocab = opt.vocab, context = 16, width = 32, layers = 3, heads = 4 }
  for name, value in pairs(settings[opt.family] or {}) do a[name] = value end
  return het.nn.decoder(a)
end

local model = opt.family ~= "" and fresh() or het.load(opt.folder)
if opt.family == "" then
  local tokens = {}
  for i = 1, opt.length do tokens[i] = (7 * i + i * i) % opt.vocab end
  local logits = model(het.tensor({ tokens }, "i32"))
  for _, row in ipairs(logits[1]:tolist()) do print(table.concat(row, " ")) end
end
return het.train {
  model = model, batch = 2, steps = 2, save = "runs/again", overwrite = true,
  data = het.data.tokens { path = "tokens.bin", vocab = opt.vocab }, optimizer = het.optim.adamw { lr = 1e-2 },
}
