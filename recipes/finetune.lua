-- Fine-tuning of a model in Hugging Face's layout on examples: chats, prompts with their completions, or texts, a JSON
-- object a line. The loss counts what the assistant says, and completions; what is saved loads in transformers.
--
--   hetrun recipes/finetune.lua --model=Qwen2.5-0.5B-Instruct --data=chats.jsonl --save=runs/mine
--   hetrun --workers 2 recipes/finetune.lua --model=Qwen2.5-0.5B-Instruct --data=chats.jsonl --plan
--   hetrun recipes/finetune.lua --model=Qwen2.5-0.5B-Instruct --data=chats.jsonl --rank=16 --lr=2e-4 --save=runs/lora
--
-- A line is {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]},
-- {"prompt": "2 + 2 =", "completion": " 4"}, or {"text": "all of this counts"}. Messages are written by the model's
-- chat template. A sample is one example, padded to the context, or cut there: a longer context takes longer examples
-- and more memory. With --packing a sample is as many examples as the context has room for, which do not see each
-- other: `batch` then counts such rows. Five epochs of a thousand examples with a batch of 16 are 313 steps (fewer with
-- --packing); watch the validation loss, which rises again when the model learns the examples by heart. With --rank=16
-- low-rank adapters (LoRA) of the linear layers are trained and saved instead of all weights; they take higher rates.
local het = require "het"
local nn, optim = het.nn, het.optim

local opt = het.options {
  model      = { "", "folder with config.json, model.safetensors and tokenizer.json", path = "read" },
  data       = { "data.jsonl", "examples: JSON lines or one JSON list, or a folder of .jsonl", path = "read" },
  holdout    = { 0.05, "share of the examples kept for validation", fraction = true, min = 0, max = 0.9 },
  loss       = { "completion", "on tokens of completions and of the assistant, or on all",
    choices = { "completion", "all" } },
  rank       = { 0, "of low-rank adapters, such as 16; 0: all weights are trained", min = 0 },
  alpha      = { 32, "times what the adapters add, over the rank", fraction = true, above = 0 },
  context    = { 512, "tokens of an example at most, fewer where the model sees fewer; longer ones are "
    .. "cut", min = 2 },
  packing    = { false, "several examples share a row of the context" },
  batch      = { 16, "rows of a step: examples, or packed several each", min = 1 },
  microbatch = { 1, "rows computed at once", min = 1 },
  steps      = { 300, "optimizer steps", min = 1 },
  lr         = { 1e-5, "highest learning rate", above = 0 },
  warmup     = { 10, "steps in which it rises", min = 0 },
  decay      = { 0, "weight decay", fraction = true, min = 0, max = 1 },
  precision  = { "bf16", "dtype of weights and activations", choices = { "f32", "bf16" } },
  seed       = { 1337, "of the order of examples", min = 0 },
  every      = { 50, "steps between evaluations; 0: none", min = 0 },
  prompt     = { "", "text to continue at the end; empty: none" },
  plan       = { false, "plan for the ranks that are there" },
  save       = { "", "folder to save the model in; --resume goes on from there", path = "write" },
}

if opt.model == "" then error("--model=FOLDER is missing: the model to begin with", 0) end
local base = het.load(opt.model, { most_context = opt.context })

return het.train {
  model     = opt.rank > 0 and nn.lora { model = base, rank = opt.rank, alpha = opt.alpha } or base,
  data      = het.data.jsonl { path = opt.data, model = opt.model, holdout = opt.holdout, loss = opt.loss,
    packing = opt.packing },
  context   = math.min(opt.context, tonumber(base.arguments.context) or opt.context),   -- a table of positions is whole
  batch     = opt.batch, microbatch = not opt.plan and opt.microbatch or nil,
  steps     = opt.steps, precision = opt.precision, seed = opt.seed,
  optimizer = optim.adamw { lr = optim.linear { peak = opt.lr, floor = 0, warmup = opt.warmup },
    weight_decay = opt.decay, clip = 1 },
  evaluate  = { every = opt.every, batches = 20 },
  plan      = opt.plan and het.plan.auto {} or nil,
  sample    = opt.prompt ~= "" and { prompt = opt.prompt, tokens = 60 } or nil,
  save      = opt.save ~= "" and opt.save or nil,
}
