-- Data to evaluate on has to fit the training data.
local het = require "het"
local data = het.data
local text = data.text { path = "text.txt", tokenizer = "char" }
local function pairs_of(inputs, labels, holdout)
  return data.pairs { inputs = inputs, labels = labels, holdout = holdout }
end
local function run(trained, evaluated, more)
  local corpus = trained == text
  return het.train {
    model = corpus and het.nn.gpt { vocab = text.vocab, context = 8, width = 8, layers = 1, heads = 1 }
      or het.nn.linear(2, 1),
    data = trained, batch = 2, steps = 2, optimizer = het.optim.sgd { lr = 0.1 },
    evaluate = { data = evaluated, dataset = more },
  }
end
local rows = pairs_of(het.randn(10, 2), het.randn(10, 1))
run(text, data.text { path = "short.txt", tokenizer = "char" })
run(text, data.masked { path = "text.txt", tokenizer = "char" })
run(text, rows)
run(text, data.text { path = "short.txt", tokenizer = "char", vocabulary = rows })
run(text, data.text { path = "short.txt", vocabulary = data.tokens { path = "tokens.bin" } })
run(text, data.tokens { path = "tokens.bin" })
run(text, data.text { path = "text.txt", vocabulary = text, holdout = 0.5 })
run(rows, pairs_of(het.randn(4, 3), het.randn(4, 1)))
run(rows, pairs_of(het.randn(4, 2), het.tensor({ { 1 }, { 2 }, { 3 }, { 4 } }, "i32")))
run(rows, pairs_of(het.randn(4, 2), het.randn(4, 1), 0.1))
run(pairs_of(het.randn(4, 2), het.randn(4, 1), 0.1), rows)
run(rows, nil, rows)
local last = run(rows, "validation.txt")
return last
