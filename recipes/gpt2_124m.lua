-- GPT-2 of 124 million parameters, as published (12 layers, 12 heads, width 768, context 1024). On a laptop a step
-- takes minutes: give --model, a folder with GPT-2's own weights from Hugging Face, to fine-tune them in a few steps,
-- or --tokens, a file made by nanoGPT's or llm.c's data scripts, to train from nothing on better machines.
--
--   hetrun recipes/gpt2_124m.lua --tokens=train.bin --steps=10 --precision=bf16
--   hetrun recipes/gpt2_124m.lua --model=gpt2 --tokens=my.bin --lr=3e-5 --save=runs/mine
--
-- The step's batch is summed from micro-batches: --batch=480 --microbatch=4 learns exactly as 480 samples at once
-- would, in the memory of 4.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  tokens     = { "", "file of GPT-2 tokens (.bin of nanoGPT or llm.c); without it, --text is read as bytes",
                 path = "read" },
  text       = { "/usr/include/c++", "text file or folder, when there are no tokens", path = "read" },
  model      = { "", "folder with the weights to begin with (config.json, model.safetensors)", path = "read" },
  steps      = { 100, "optimizer steps", min = 1 },
  batch      = { 8, "samples of a step", min = 1 },
  microbatch = { 4, "samples computed at once", min = 1 },
  context    = { 1024, "tokens of a sample", min = 2, max = 1024 },
  lr         = { 6e-4, "highest learning rate", above = 0 },
  warmup     = { 10, "steps in which the rate rises", min = 0 },
  precision  = { "bf16", "dtype of weights and activations (f16: only to plan)", choices = { "f32", "bf16", "f16" } },
  save       = { "", "folder to save the model in, in Hugging Face's layout", path = "write" },
}

local corpus
if opt.tokens ~= "" then
  corpus = data.tokens { path = opt.tokens, holdout = 0.05 }
else
  corpus = data.text { path = opt.text, tokenizer = "byte", holdout = 0.05, limit = "64 MB" }
end

return het.train {
  model = opt.model ~= "" and het.load(opt.model)
    or nn.gpt { vocab = 50257, context = 1024, width = 768, layers = 12, heads = 12 },
  data = corpus, batch = opt.batch, microbatch = opt.microbatch, context = opt.context, steps = opt.steps,
  precision = opt.precision,
  optimizer = optim.adamw {
    lr = optim.cosine { peak = opt.lr, warmup = opt.warmup },
    beta2 = 0.95, weight_decay = 0.1, clip = 1.0,
  },
  evaluate = { every = 50, batches = 5 },
  save     = opt.save ~= "" and opt.save or nil,
}
