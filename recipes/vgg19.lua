-- VGG19 without batch norm: 16 convolutions and 3 linear layers tell images apart, here drawn shapes (a disk, a ring, a
-- cross, ...) in colours that say nothing of the shape.
--
--   hetrun recipes/vgg19.lua
--   hetrun recipes/vgg19.lua --cifar10=cifar-10-batches-bin --width=64 --hidden=4096 --pool=7 --batch=32
--
-- The first line trains a VGG19 with an eighth of the channels in a minute or two on a laptop; guessing among 10
-- shapes has the loss ln(10) = 2.3. The second is the network as published (139.6 M parameters for 10 classes). Its
-- folder is that of CIFAR-10's binary version, from cs.toronto.edu/~kriz/cifar.html.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  cifar10   = { "", "folder of CIFAR-10's binary files; empty: drawn shapes", path = "read" },
  samples   = { 8000, "shapes to draw", min = 100 },
  classes   = { 10, "different shapes", min = 2, max = 10 },
  steps     = { 600, "optimizer steps", min = 1 },
  batch     = { 32, "samples of a step", min = 1 },
  depth     = { 19, "layers with weights", choices = { 11, 13, 16, 19 } },
  width     = { 8, "channels of the first stage; 64 as published", min = 1 },
  hidden    = { 128, "features of the linear layers; 4096 as published", min = 1 },
  pool      = { 1, "rows and columns of the image that the linear layers see; 7 as published", min = 1 },
  dropout   = { 0, "share of features dropped while training", min = 0, max = 0.9, fraction = true },
  lr        = { 1e-3, "highest learning rate", above = 0 },
  precision = { "f32", "dtype of weights and activations (f16: only to plan)", choices = { "f32", "bf16", "f16" } },
  seed      = { 1, "of the weights and the order of samples", min = 0 },
  every     = { 100, "steps between evaluations; 0: none", min = 0 },
}

local images = opt.cifar10 ~= "" and data.cifar10 { path = opt.cifar10 }
  or data.shapes { samples = opt.samples, classes = opt.classes, holdout = 0.1 }

return het.train {
  model = nn.vgg {
    classes = images.classes, depth = opt.depth, width = opt.width, hidden = opt.hidden, pool = opt.pool,
    dropout = opt.dropout,
  },
  data      = images,
  batch     = opt.batch,
  steps     = opt.steps,
  precision = opt.precision,
  seed      = opt.seed,
  -- 19 layers without norms: gradients of the first steps are wild, so the rate comes up slowly and they are clipped.
  optimizer = optim.adamw { lr = optim.cosine { peak = opt.lr, floor = opt.lr / 20, warmup = 50 }, weight_decay = 0.01,
    clip = 1.0 },
  evaluate  = { every = opt.every, batches = 20 },
}
