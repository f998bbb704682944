-- Train a small model of images on drawn shapes, or write its batches as JSON; images.py compares losses and norms of
-- gradients with PyTorch's. Run with --trust: it uses the engine below the library.
local het = require "het"
local native = require "het.native"
local nn = het.nn

local opt = het.options {
  model = { "vgg", "which one", choices = { "vgg", "vit", "vit_mean" } },
  steps = { 10, "optimizer steps" },
  lr    = { 0.05, "learning rate" },
  save  = { "", "folder to save the trained model in", path = "write" },
  out   = { "", "file to write the batches to, in place of training", path = "write" },
}
-- With this seed no relu of VGG has an operand within rounding of 0: one that flips changes the gradients by far more
-- than rounding does.
local batch, seed = 6, 3
local images = het.data.shapes { samples = 60, classes = 6, holdout = 0, seed = 3 }

if opt.out ~= "" then
  local sampler, result = images:sampler { batch = batch, split = "train", seed = seed }, { inputs = {}, labels = {} }
  for i = 1, opt.steps do
    local made = sampler:next()
    result.inputs[i], result.labels[i] = made.inputs[1]:tolist(), made.labels[1]:tolist()
  end
  native.write_text(opt.out, native.json_encode(result))
  os.exit(0)
end

local function vit(settings)
  return nn.vit { classes = 6, patch = 8, width = 24, layers = 2, heads = 3, norm = settings.norm,
    activation = settings.activation, pooling = settings.pooling }
end
local models = {
  vgg = function() return nn.vgg { classes = 6, depth = 19, width = 4, hidden = 16, pool = 2, dropout = 0 } end,
  vit = function() return vit { norm = "before", activation = "gelu_exact", pooling = "token" } end,
  vit_mean = function() return vit { norm = "after", activation = "relu", pooling = "mean" } end,
}

return het.train {
  model = models[opt.model](), data = images, batch = batch, microbatch = 3, steps = opt.steps, seed = seed,
  optimizer = het.optim.sgd { lr = opt.lr, momentum = 0.9, clip = 1.0 },
  evaluate = { every = 0 },
  save = opt.save ~= "" and opt.save or nil,
}
