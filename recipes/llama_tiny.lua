-- A small LLaMA on bytes: rotary positions, RMS norms, SwiGLU, and two key heads for four query heads. Bytes need no
-- vocabulary, so the saved model reads any text.
--
--   hetrun recipes/llama_tiny.lua --text=shakespeare.txt --save=runs/llama
--   python -c 'from transformers import AutoModelForCausalLM as A; print(A.from_pretrained("runs/llama"))'
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  text      = { "/usr/include/c++", "text file, or folder of text files", path = "read" },
  steps     = { 1000, "optimizer steps", min = 1 },
  width     = { 128, "features of a token", min = 1 },
  layers    = { 4, "blocks", min = 1 },
  heads     = { 4, "attention heads", min = 1 },
  kv_heads  = { 2, "key and value heads; each serves heads / kv_heads queries", min = 1 },
  context   = { 128, "bytes that the model sees at once", min = 2 },
  batch     = { 16, "samples of a step", min = 1 },
  microbatch = { 8, "samples computed at once: halves the memory, changes no result", min = 1 },
  precision = { "f32", "dtype of weights and activations (f16: only to plan)", choices = { "f32", "bf16", "f16" } },
  save      = { "", "folder to save the model in, in Hugging Face's layout", path = "write" },
}

local corpus = data.text { path = opt.text, tokenizer = "byte", limit = "4 MB" }

return het.train {
  model = nn.llama {
    vocab = corpus.vocab, context = opt.context, width = opt.width, layers = opt.layers, heads = opt.heads,
    kv_heads = opt.kv_heads,
  },
  data = corpus, batch = opt.batch, microbatch = opt.microbatch, steps = opt.steps, precision = opt.precision,
  optimizer = optim.adamw {
    -- Warm-up, stable, decay: the run can be prolonged later from the stable part.
    lr = optim.wsd { peak = 1e-3, warmup = 100, decay = 0.2 },
    beta2 = 0.95, weight_decay = 0.1, clip = 1.0,
  },
  evaluate = { every = 250, batches = 20 },
  sample   = { prompt = "The ", tokens = 300, top_p = 0.9 },
  save     = opt.save ~= "" and opt.save or nil,
}
