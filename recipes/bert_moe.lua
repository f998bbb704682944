-- BERT with experts: in every second block the feed-forward layer is a mixture of them (Switch Transformer, Fedus et
-- al. 2021; two choices as in GShard, Lepikhin et al. 2020). A gate sends each token to the two most probable, so
-- parameters grow with the experts, and the work for a token does not.
--
--   hetrun recipes/bert_moe.lua --text=shakespeare.txt
--   hetrun recipes/bert_moe.lua --text=shakespeare.txt --top=1 --experts=8
--   hetrun --workers 2 recipes/bert_moe.lua --text=shakespeare.txt --world=2 --parallel
--
-- --world scales the number of experts with the devices. With --parallel that many devices divide the batch and the
-- experts: tokens travel to the device that has their expert, and back. The losses are those of one device, since the
-- places of an expert are counted in each sample.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  text      = { "/usr/include/c++", "text file, or folder of text files", path = "read" },
  tokenizer = { "char", "what a token is", choices = { "char", "byte" } },
  vocab     = { 0, "rows of the table of tokens, where the text has fewer: for plans of larger vocabularies", min = 0 },
  steps     = { 800, "optimizer steps", min = 1 },
  mask      = { 0.15, "share of the tokens to guess", above = 0, below = 1 },
  width     = { 96, "features of a token", min = 1 },
  layers    = { 2, "blocks", min = 1 },
  heads     = { 4, "attention heads", min = 1 },
  context   = { 32, "tokens that the model sees at once", min = 2 },
  batch     = { 64, "samples of a step", min = 1 },
  every     = { 2, "blocks from one with experts to the next", min = 1 },
  experts   = { 4, "experts of a block, for each device", min = 1 },
  world     = { 1, "devices that the experts scale with", min = 1 },
  top       = { 2, "experts of a token", min = 1 },
  capacity  = { 1.25, "places of an expert, relative to an equal share", above = 0 },
  auxiliary = { 0.01, "weight of the loss that balances experts", min = 0 },
  parallel  = { false, "divide batch and experts among the devices" },
  dropout   = { 0, "share of features dropped while training", fraction = true, min = 0, max = 0.9 },
  lr        = { 3e-3, "highest learning rate", above = 0 },
  precision = { "f32", "dtype of weights and activations (f16: only to plan)", choices = { "f32", "bf16", "f16" } },
  save      = { "", "folder to save the model in", path = "write" },
}

local corpus = data.masked { path = opt.text, tokenizer = opt.tokenizer, mask_share = opt.mask, limit = "4 MB" }

local function block(width, heads, index)
  if index % opt.every ~= 0 then return nn.bert_block { width = width, heads = heads, dropout = opt.dropout } end
  return nn.bert_block { width = width, heads = heads, dropout = opt.dropout, mlp = nn.experts {
    width = width, experts = opt.experts * opt.world, top = opt.top, capacity = opt.capacity,
    auxiliary = opt.auxiliary, dropout = opt.dropout,
  } }
end

-- Dimension 0 of inputs is the batch, that of the experts' weights the experts. Everything else each device has whole.
local plan
if opt.parallel and opt.world > 1 then
  plan = het.plan {
    tensor = opt.world, microbatch = opt.batch,
    sharding = { inputs = { inputs = 0, labels = 0 }, state = { ["blocks.*.mlp.up"] = 0, ["blocks.*.mlp.down"] = 0 } },
    het.pipeline { microbatches = 1, het.stage { ("here:0-%d"):format(opt.world - 1) } },
  }
end

return het.train {
  model = nn.bert {
    vocab = math.max(corpus.vocab, opt.vocab), context = opt.context, width = opt.width, layers = opt.layers,
    heads = opt.heads, dropout = opt.dropout, block = block,
  },
  data = corpus, batch = opt.batch, steps = opt.steps, precision = opt.precision, plan = plan,
  optimizer = optim.adamw {
    lr = optim.linear { peak = opt.lr, floor = 0, warmup = 100 },
    weight_decay = 0.01, clip = 1.0,
  },
  evaluate = { every = 200, batches = 20 },
  save     = opt.save ~= "" and opt.save or nil,
}
