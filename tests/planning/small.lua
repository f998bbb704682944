-- A small GPT for plans: tests put theirs at PLAN, --auto asks the planner.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  layers = { 6, "blocks", min = 1 },
  heads  = { 4, "attention heads", min = 1 },
  batch  = { 8, "samples of a step", min = 1 },
  auto   = { false, "let the planner find the plan" },
  policy = { "auto", "of the planner" },
}
local corpus = data.text { path = "text.txt", tokenizer = "char", holdout = 0.1 }

return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = 32, layers = opt.layers, heads = opt.heads },
  data = corpus, batch = opt.batch, steps = 3,
  optimizer = optim.adamw { lr = 1e-3 },
  evaluate = { every = 0 },
  plan = opt.auto and het.plan.auto { policy = opt.policy } or nil --[[PLAN]],
}
