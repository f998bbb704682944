-- Images: each once in an epoch, the same however they are grouped; and a model of them under a plan.
local het = require "het"
local nn = het.nn
local opt = het.options {
  model = { "vgg", "which one", choices = { "vgg", "vit" } },
  plan = { "", "how two devices share it", choices = { "", "tensor", "stages" } },
}

local images = het.data.shapes { samples = 40, size = 8, classes = 5, holdout = 0.25, seed = 4 }
assert(images.classes == 5 and images.samples == 40)
local function order(count, settings)
  local sampler, list = images:sampler(settings), {}
  while #list < count do
    local batch = sampler:next()
    for i, inputs in ipairs(batch.inputs) do
      assert(inputs.dtype == "f32" and inputs.shape[2] == 3 and inputs.shape[4] == 8)
      for row = 1, inputs.shape[1] do
        local image = inputs[row]:contiguous()
        local sum = het.op.sum(image):item()
        list[#list + 1] = ("%.9g of %d"):format(sum, batch.labels[i][row])
      end
    end
  end
  return table.concat(list, " ", 1, count)
end
local train = order(30, { batch = 5, seed = 1 })
assert(train == order(30, { batch = 10, microbatch = 2, seed = 1 }))
assert(train ~= order(30, { batch = 5, seed = 2 }) and train ~= order(30, { batch = 5, seed = 1, start = 30 }))
local seen, count = {}, 0
for image in train:gmatch "%S+ of %d" do
  assert(not seen[image])
  seen[image], count = true, count + 1
end
assert(count == 30)
for image in order(10, { batch = 5, split = "holdout" }):gmatch "%S+ of %d" do assert(not seen[image]) end

-- The networks as published, with 10 classes.
assert(nn.vgg { classes = 10 }:count() == 139611210)
assert(nn.vit { classes = 10, width = 768, layers = 12, heads = 12, norm = "after" }:count() == 85150474)

local models = {
  vgg = function() return nn.vgg { classes = 6, depth = 11, width = 4, hidden = 16, pool = 2, dropout = 0 } end,
  vit = function() return nn.vit { classes = 6, patch = 8, width = 24, layers = 2, heads = 2 } end,
}
local plans = {
  tensor = function()
    return het.plan { tensor = 2, microbatch = 2, het.pipeline { microbatches = 4, het.stage { "a:0-1" } } }
  end,
  stages = function()
    return het.plan { microbatch = 2,
      het.pipeline { microbatches = 4, het.stage { "a:0", layers = 2 }, het.stage { "a:1" } } }
  end,
}

return het.train {
  model = models[opt.model](), data = het.data.shapes { samples = 200, classes = 6, holdout = 0.2, seed = 3 },
  batch = 8, microbatch = 2, steps = 6, seed = 3, plan = opt.plan ~= "" and plans[opt.plan]() or nil,
  optimizer = het.optim.sgd { lr = 0.02, momentum = 0.9, clip = 1.0 }, evaluate = { every = 3, batches = 2 },
}
