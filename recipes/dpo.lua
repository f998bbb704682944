-- Direct preference optimization (Rafailov et al. 2023) of a model in Hugging Face's layout on pairs of answers: one is
-- better than the other, and the model learns to tell which, without going far from what it was.
--
--   hetrun recipes/dpo.lua --model=Qwen2.5-0.5B-Instruct --data=pairs.jsonl --save=runs/mine
--   hetrun --workers 2 recipes/dpo.lua --model=Qwen2.5-0.5B-Instruct --data=pairs.jsonl --plan
--
-- A line is {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}, or has lists of messages in place of the texts:
-- {"prompt": [{"role": "user", "content": "Hello"}], "chosen": [{"role": "assistant", "content": "Hi"}], "rejected":
-- [{"role": "assistant", "content": "What?"}]}. Without a `prompt` it is what both answers begin with. Messages are
-- written by the model's chat template. By default low-rank adapters are trained, and the model without them is what
-- it was; with --rank=0 all weights are, and a frozen copy of them is in memory too. The loss begins at log 2 = 0.6931,
-- in bf16 up to some percent beside it: values that the backward pass needs are rounded, and the reference has none.
-- Its figures: `accuracy`, the share of the pairs whose chosen answer has the greater reward; `margin`, by how much;
-- `chosen` and `rejected`, these rewards.
local het = require "het"
local nn, op, optim = het.nn, het.op, het.optim

local opt = het.options {
  model      = { "", "folder with config.json, model.safetensors and tokenizer.json", path = "read" },
  data       = { "pairs.jsonl", "pairs of answers: a file, or a folder of .jsonl files", path = "read" },
  holdout    = { 0.05, "share of the pairs kept for validation", fraction = true, min = 0, max = 0.9 },
  beta       = { 0.1, "how near the model stays to what it was: greater is nearer", fraction = true, above = 0 },
  rank       = { 16, "of the adapters; 0: all weights are trained", min = 0 },
  alpha      = { 32, "times what the adapters add, over the rank", fraction = true, above = 0 },
  context    = { 512, "tokens of an answer and its prompt at most, fewer where the model sees fewer; longer ones are "
    .. "cut", min = 2 },
  batch      = { 16, "pairs of a step", min = 1 },
  microbatch = { 1, "pairs computed at once", min = 1 },
  steps      = { 300, "optimizer steps", min = 1 },
  lr         = { 1e-5, "highest learning rate; 5e-7 is usual with --rank=0", above = 0 },
  warmup     = { 10, "steps in which it rises", min = 0 },
  precision  = { "bf16", "dtype of weights and activations", choices = { "f32", "bf16" } },
  seed       = { 1337, "of the order of pairs", min = 0 },
  every      = { 50, "steps between evaluations; 0: none", min = 0 },
  plan       = { false, "plan for the ranks that are there" },
  save       = { "", "folder to save the model in; --resume goes on from there", path = "write" },
}

-- The mean over the pairs of -log sigmoid(reward of the chosen answer - reward of the rejected one). A reward is beta
-- times how much more probable the model makes an answer than the reference does. `scale`: 1 / pairs of the batch.
local function loss(logits, labels, scale, reference)
  local count, tokens = labels.shape[1] / 2, labels.shape[2]   -- a pair is two rows
  local function log_probabilities(output)   -- of the answers, [count, 2]
    return op.reshape(op.sum(op.log_probability(output, labels), { dims = { -1 } }), { shape = { count, 2 } })
  end
  local reward = (log_probabilities(logits) - log_probabilities(reference)) * opt.beta
  -- Where the validation's pairs have ended there are rows without a label, which do not count.
  local labelled = op.reshape(op.not_equal(op.cast(labels, { dtype = "f32" }), -100), { shape = { count, 2 * tokens } })
  local counts = op.greater(op.sum(labelled, { dims = { -1 } }), 0)
  local better = op.cast(op.where(counts, 0, -100), { dtype = "i32" })   -- the first one; -100: ignored

  local function mean(x) return op.reshape(op.reshape(op.sum(op.mask(counts, x)), { shape = { 1 } }) * scale,
    { shape = {} }) end
  local function answer(which) return op.reshape(op.slice(reward, { dim = 1, start = which, length = 1 }),
    { shape = { count } }) end
  local chosen, rejected = answer(0), answer(1)
  return (op.cross_entropy(reward, better, scale)), {
    accuracy = mean(op.greater(chosen, rejected)), margin = mean(chosen - rejected),
    chosen = mean(chosen), rejected = mean(rejected),
  }
end

if opt.model == "" then error("--model=FOLDER is missing: the model to begin with", 0) end
local base = het.load(opt.model, { most_context = opt.context })

return het.train {
  model     = opt.rank > 0 and nn.lora { model = base, rank = opt.rank, alpha = opt.alpha } or base,
  reference = base, loss = loss,
  data      = het.data.preferences { path = opt.data, model = opt.model, holdout = opt.holdout },
  context   = math.min(opt.context, tonumber(base.arguments.context) or opt.context),   -- a table of positions is whole
  batch     = opt.batch, microbatch = not opt.plan and opt.microbatch or nil,
  steps     = opt.steps, precision = opt.precision, seed = opt.seed,
  optimizer = optim.adamw { lr = optim.linear { peak = opt.lr, floor = 0, warmup = opt.warmup }, weight_decay = 0,
    clip = 1 },
  evaluate  = { every = opt.every, batches = 20 },
  plan      = opt.plan and het.plan.auto {} or nil,
  save      = opt.save ~= "" and opt.save or nil,
}
