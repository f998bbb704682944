-- A model whose context is far longer than what it is trained on and writes.
local het = require "het"
local opt = het.options {
  context = { 1000000000, "of the model" }, prompt = { 1, "characters" }, tokens = { 10, "to write" },
  looks_back = { 0, "context of the generation; 0: the model's" }, learned = { false, "GPT's learned positions" },
  save = { "runs/long", "folder", path = "write" },
}
local nn = het.nn
local corpus = het.data.text { path = "text.txt" }
local make = opt.learned and nn.gpt or nn.llama
return het.train {
  model = make { vocab = corpus.vocab, context = opt.context, width = 8, layers = 1, heads = 1 },
  data = corpus, context = 8, batch = 2, steps = 3, optimizer = het.optim.sgd { lr = 0.01 }, save = opt.save,
  after = function(run)
    local how = { prompt = ("fox "):rep(math.ceil(opt.prompt / 4)):sub(1, opt.prompt), tokens = opt.tokens,
      top_k = 20, top_p = 0.95, context = opt.looks_back > 0 and opt.looks_back or nil }
    local written = run:generate(how)
    assert(#written == #how.prompt + opt.tokens)
    if opt.prompt < 100 then assert(het.load(opt.save):generate(how) == written) end
    print(written:sub(#how.prompt + 1))
  end,
}
