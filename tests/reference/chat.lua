-- Writes, as JSON: conversations by a chat template, and the examples that data.jsonl makes of a file, as ids and
-- labels; chat.py compares. Run with --trust: it uses the engine below the library.
local het = require "het"
local native = require "het.native"

local opt = het.options {
  folder   = { "", "of the tokenizer", path = "read" },
  cases    = { "cases.jsonl", "what to write, a line each: { messages =, tools =, variables =, template =, ask = }",
    path = "read" },
  template = { "template.jinja", "the chat template", path = "read" },
  lines    = { "lines.jsonl", "examples; the first one is not looked at", path = "read" },
  loss     = { "completion", "what the loss counts" },
  context  = { 512, "tokens of a sample" },
  out      = { "out.json", "file to write", path = "write" },
}
local tokenizer = native.tokenizer(require("het.model.tokenizer").vocabulary(opt.folder))
local result = { texts = {}, inputs = {}, labels = {} }
for case in io.lines(opt.cases) do   -- as they stand there: tables would lose the order of members
  local ok, text = pcall(tokenizer.chat, tokenizer, case, native.json_decode(case).ask)
  result.texts[#result.texts + 1] = ok and { text = text } or { error = tostring(text) }
end
local count = 0
for _ in io.lines(opt.lines) do count = count + 1 end
local corpus = het.data.jsonl { path = opt.lines, model = opt.folder, chat_template = opt.template, loss = opt.loss,
  holdout = (count - 1.5) / count }
require("het.language.mistakes").raise()
local sampler = corpus:sampler { context = opt.context, batch = 1, split = "holdout" }
for i = 1, count - 1 do
  local batch = sampler:next()
  result.inputs[i], result.labels[i] = batch.inputs[1]:tolist()[1], batch.labels[1]:tolist()[1]
end
assert(sampler:next().count == 0)
native.write_text(opt.out, native.json_encode(result))
os.exit(0)
