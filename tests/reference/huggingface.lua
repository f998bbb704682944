-- Prints the logits of a saved model on fixed tokens, a line for each token; then trains it further into `again`.
local het = require "het"
local opt = het.options {
  folder = { "model", "saved model", path = "read" }, vocab = { 50, "tokens" }, length = { 12, "of the sequence" },
}
local tokens = {}
for i = 1, opt.length do tokens[i] = (7 * i + i * i) % opt.vocab end
local logits = het.load(opt.folder)(het.tensor({ tokens }, "i32"))
for _, row in ipairs(logits[1]:tolist()) do print(table.concat(row, " ")) end
return het.train {
  model = het.load(opt.folder), batch = 2, steps = 2, save = "runs/again", overwrite = true,
  data = het.data.tokens { path = "tokens.bin", vocab = opt.vocab }, optimizer = het.optim.adamw { lr = 1e-4 },
}
