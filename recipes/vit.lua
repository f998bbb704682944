-- A vision transformer: an image is cut in patches, each patch becomes a token, and one token more, for the class,
-- collects what the others say. The images are drawn shapes (a disk, a ring, a cross, ...), or CIFAR-10.
--
--   hetrun recipes/vit.lua
--   hetrun recipes/vit.lua --cifar10=cifar-10-batches-bin --patch=4 --width=192 --layers=9 --heads=3 --lr=5e-4
--   hetrun recipes/vit.lua --patch=4 --width=768 --layers=12 --heads=12 --norm=after --activation=relu --lr=1e-4
--
-- The first line trains a small one in a minute or two on a laptop; guessing among 10 shapes has the loss ln(10) = 2.3.
-- The last has the size of ViT-Base (85.2 M parameters with patches of 4 and 10 classes), with norms after the
-- additions. CIFAR-10's binary version is at cs.toronto.edu/~kriz/cifar.html.
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data

local opt = het.options {
  cifar10    = { "", "folder of CIFAR-10's binary files; empty: drawn shapes", path = "read" },
  samples    = { 8000, "shapes to draw", min = 100 },
  classes    = { 10, "different shapes", min = 2, max = 10 },
  steps      = { 2000, "optimizer steps", min = 1 },
  batch      = { 32, "samples of a step", min = 1 },
  patch      = { 8, "height and width of a patch; it divides 32", choices = { 1, 2, 4, 8, 16, 32 } },
  width      = { 64, "features of a token", min = 1 },
  layers     = { 4, "blocks", min = 1 },
  heads      = { 4, "attention heads", min = 1 },
  pooling    = { "token", "what is classified: the token of the class, or the mean", choices = { "token", "mean" } },
  norm       = { "before", "where the norms of a block are", choices = { "before", "after" } },
  activation = { "gelu", "of the feed-forward layers", choices = { "gelu", "gelu_exact", "silu", "relu" } },
  dropout    = { 0, "share of features dropped while training", min = 0, max = 0.9, fraction = true },
  lr         = { 2e-3, "highest learning rate", above = 0 },
  precision  = { "f32", "dtype of weights and activations (f16: only to plan)", choices = { "f32", "bf16", "f16" } },
  seed       = { 1, "of the weights and the order of samples", min = 0 },
  every      = { 250, "steps between evaluations; 0: none", min = 0 },
}

local images = opt.cifar10 ~= "" and data.cifar10 { path = opt.cifar10 }
  or data.shapes { samples = opt.samples, classes = opt.classes, holdout = 0.1 }

return het.train {
  model = nn.vit {
    classes = images.classes, image = 32, patch = opt.patch, width = opt.width, layers = opt.layers, heads = opt.heads,
    pooling = opt.pooling, norm = opt.norm, activation = opt.activation, dropout = opt.dropout,
  },
  data      = images,
  batch     = opt.batch,
  steps     = opt.steps,
  precision = opt.precision,
  seed      = opt.seed,
  optimizer = optim.adamw { lr = optim.cosine { peak = opt.lr, floor = opt.lr / 20, warmup = 100 }, weight_decay = 0.05,
    clip = 1.0 },
  evaluate  = { every = opt.every, batches = 20 },
}
