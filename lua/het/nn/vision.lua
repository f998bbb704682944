--- Layers and models for images, [samples, channels, height, width]: convolution, pooling, VGG and ViT.
local attention = require "het.nn.attention"
local basic = require "het.nn.basic"
local layer = require "het.nn.layer"
local op = require "het.op"
local text = require "het.text"

local vision = {}

--- nn.conv2d(inputs, outputs, { kernel = })
vision.conv2d = layer.define {
  name = "nn.conv2d",
  sentence = "A convolution: each result is the sum of a window of the image times a weight, plus a bias.",
  example = "nn.conv2d(3, 64, { kernel = 3, padding = 1 })",
  positional = 2,
  fields = {
    { "inputs", "integer", "channels that come in", required = true, min = 1 },
    { "outputs", "integer", "channels that go out", required = true, min = 1 },
    { "kernel", "integer", "height and width of a window", required = true, min = 1 },
    { "stride", "integer", "elements from one window to the next", default = 1, min = 1 },
    { "padding", "integer", "rows and columns of zeros around the image", default = 0, min = 0 },
    { "dilation", "integer", "elements from one row or column of a window to the next", default = 1, min = 1 },
    { "groups", "integer", "groups of channels, each computed alone", default = 1, min = 1 },
    { "bias", "boolean", "add a bias", default = true },
    { "deviation", "number", "standard deviation of the first weights (default: 1/√(inputs of a window))", above = 0 },
  },
  check = function(a, report)
    for _, name in ipairs { "inputs", "outputs" } do
      if a[name] % a.groups ~= 0 then
        report("groups", ("nn.conv2d.groups = %d does not divide %s = %d"):format(a.groups, name, a[name]))
        return
      end
    end
  end,
  show = function(a)
    return ("%d → %d, %d × %d%s%s"):format(a.inputs, a.outputs, a.kernel, a.kernel,
      a.stride > 1 and (", stride %d"):format(a.stride) or "", a.groups > 1 and (", %d groups"):format(a.groups) or "")
  end,
  parameters = function(a)
    local inputs = a.inputs / a.groups
    local list = { { "weight", { a.outputs, inputs, a.kernel, a.kernel },
      deviation = a.deviation or 1 / math.sqrt(inputs * a.kernel * a.kernel) } }
    if a.bias then list[2] = { "bias", { a.outputs } } end
    return list
  end,
  forward = function(self, x)
    local a = self.arguments
    return (op.conv2d(x, self.weight, a.bias and self.bias,
      { stride = a.stride, padding = a.padding, dilation = a.dilation, groups = a.groups }))
  end,
}

local window_fields = {
  { "kernel", "integer", "height and width of a window", required = true, min = 1 },
  { "stride", "integer", "elements from one window to the next (default: kernel)", min = 1 },
  { "padding", "integer", "rows and columns around the image, half of kernel at most", default = 0, min = 0 },
}

local function check_window(name)
  return function(a, report)
    if 2 * a.padding > a.kernel then
      report("padding", ("%s.padding = %d is more than half of kernel = %d"):format(name, a.padding, a.kernel))
    end
  end
end

local function window(a) return { kernel = a.kernel, stride = a.stride, padding = a.padding } end

local function show_window(a)
  return ("%d × %d%s"):format(a.kernel, a.kernel, a.stride and a.stride ~= a.kernel and (", stride %d"):format(a.stride)
    or "")
end

--- nn.max_pool2d(kernel)
vision.max_pool2d = layer.define {
  name = "nn.max_pool2d",
  sentence = "The largest of each window of an image.",
  example = "nn.max_pool2d(2)",
  positional = 1,
  fields = window_fields, check = check_window "nn.max_pool2d", show = show_window,
  forward = function(self, x) return op.max_pool2d(x, window(self.arguments)) end,
}

local avg_fields = { unpack(window_fields) }
avg_fields[#avg_fields + 1] = { "count_include_pad", "boolean", "zeros around the image count", default = true }

--- nn.avg_pool2d(kernel)
vision.avg_pool2d = layer.define {
  name = "nn.avg_pool2d",
  sentence = "The mean of each window of an image.",
  example = "nn.avg_pool2d(2)",
  positional = 1,
  fields = avg_fields, check = check_window "nn.avg_pool2d", show = show_window,
  forward = function(self, x)
    local settings = window(self.arguments)
    settings.count_include_pad = self.arguments.count_include_pad
    return op.avg_pool2d(x, settings)
  end,
}

--- nn.adaptive_avg_pool2d(size)
vision.adaptive_avg_pool2d = layer.define {
  name = "nn.adaptive_avg_pool2d",
  sentence = "Means of windows that cover an image, size × size of them whatever the image's size.",
  example = "nn.adaptive_avg_pool2d(7)",
  positional = 1,
  fields = { { "size", "integer", "rows and columns of the result", required = true, min = 1 } },
  show = function(a) return ("to %d × %d"):format(a.size, a.size) end,
  forward = function(self, x) return op.adaptive_avg_pool2d(x, { output_size = self.arguments.size }) end,
}

--- nn.patch_embedding { width = , patch = }
vision.patch_embedding = layer.define {
  name = "nn.patch_embedding",
  sentence = "Images as tokens: each patch × patch square becomes a vector, [samples, tokens, width].",
  example = "nn.patch_embedding { width = 192, patch = 4 }",
  fields = {
    { "width", "integer", "features of a token", required = true, min = 1 },
    { "patch", "integer", "height and width of a square", required = true, min = 1 },
    { "channels", "integer", "of the images", default = 3, min = 1 },
  },
  show = function(a) return ("%d × %d × %d → %d"):format(a.channels, a.patch, a.patch, a.width) end,
  children = function(a)
    return { { "projection", vision.conv2d(a.channels, a.width, { kernel = a.patch, stride = a.patch }) } }
  end,
  forward = function(self, x)
    x = self.projection(x)
    local tokens = x.shape[3] * x.shape[4]
    return op.transpose(op.reshape(x, { shape = { x.shape[1], x.shape[2], tokens } }), { order = { 0, 2, 1 } })
  end,
}

--- nn.vit_block { width = , heads = }
vision.vit_block = layer.define {
  name = "nn.vit_block",
  sentence = "A block of ViT: attention both ways and a feed-forward layer, each added to its input; the norms come "
    .. "before them, or after the additions.",
  example = "nn.vit_block { width = 192, heads = 3 }",
  fields = {
    { "width", "integer", "features", required = true, min = 1 },
    { "heads", "integer", "attention heads", required = true, min = 1 },
    { "hidden", "integer", "features inside the feed-forward layer (default: 4 · width)", min = 1 },
    { "norm", "string", "where the norms are", default = "before", choices = { "before", "after" } },
    { "activation", "string", "of the feed-forward layer", default = "gelu_exact",
      choices = { "gelu", "gelu_exact", "silu", "relu" } },
    { "dropout", "number", "of both results, while training", default = 0, min = 0, below = 1 },
    { "eps", "number", "of the norms", default = 1e-5, above = 0 },
  },
  check = function(a, report) attention.check_heads(a, report, "nn.vit_block") end,
  pointwise = true,
  show = function(a) return tostring(a.width) end,
  children = function(a)
    local residual = a.norm == "before"
    return {
      { "attention_norm", basic.layer_norm(a.width, { eps = a.eps }) },
      { "attention", attention.attention { width = a.width, heads = a.heads, causal = false, dropout = a.dropout },
        residual = residual },
      { "mlp_norm", basic.layer_norm(a.width, { eps = a.eps }) },
      { "mlp", attention.mlp { width = a.width, hidden = a.hidden, activation = a.activation, dropout = a.dropout },
        residual = residual },
    }
  end,
  forward = function(self, x)
    if self.arguments.norm == "before" then
      x = op.add(x, self.attention(self.attention_norm(x)))
      return op.add(x, self.mlp(self.mlp_norm(x)))
    end
    x = self.attention_norm(op.add(x, self.attention(x)))
    return self.mlp_norm(op.add(x, self.mlp(x)))
  end,
}

-- A classifier's loss: its logits, compared with a label for each image.
local function loss(self, images, labels, scale)
  return (op.cross_entropy(self.class.forward(self, images), labels, scale))
end

local function tokens_of(a) return (a.image / a.patch) ^ 2 end

--- nn.vit { classes = , width = , layers = , heads = }
vision.vit = layer.define {
  name = "nn.vit",
  sentence = "ViT (Dosovitskiy et al. 2020): patches as tokens, learned positions, blocks, a classifier of a class "
    .. "token or of the tokens' mean.",
  example = "nn.vit { classes = 10, image = 32, patch = 4, width = 192, layers = 6, heads = 3 }",
  fields = {
    { "classes", "integer", "number of different labels", required = true, min = 1 },
    { "image", "integer", "height and width of the images", default = 32, min = 1 },
    { "patch", "integer", "height and width of a token's square; it divides image", default = 4, min = 1 },
    { "channels", "integer", "of the images", default = 3, min = 1 },
    { "width", "integer", "features", required = true, min = 1 },
    { "layers", "integer", "blocks", required = true, min = 1, max = 1000 },
    { "heads", "integer", "attention heads", required = true, min = 1 },
    { "hidden", "integer", "features inside the feed-forward layers (default: 4 · width)", min = 1 },
    { "pooling", "string", "what is classified: a token of the class, or the mean of all tokens", default = "token",
      choices = { "token", "mean" } },
    { "norm", "string", "where the blocks' norms are", default = "before", choices = { "before", "after" } },
    { "activation", "string", "of the feed-forward layers", default = "gelu_exact",
      choices = { "gelu", "gelu_exact", "silu", "relu" } },
    { "dropout", "number", "of the tokens and of each layer's result, while training", default = 0, min = 0,
      below = 1 },
    { "eps", "number", "of the norms", default = 1e-5, above = 0 },
  },
  check = function(a, report)
    attention.check_heads(a, report, "nn.vit")
    if a.image % a.patch ~= 0 then
      report("patch", ("nn.vit.patch = %d does not divide image = %d"):format(a.patch, a.image))
    end
  end,
  show = function(a)
    return ("%d classes, %d × %d in patches of %d, width %d, %s, %s"):format(a.classes, a.image, a.image,
      a.patch, a.width, text.plural(a.layers, "layer"), text.plural(a.heads, "head"))
  end,
  parameters = function(a)
    local list = { { "positions", { tokens_of(a) + (a.pooling == "token" and 1 or 0), a.width }, deviation = 0.02,
      lookup = true } }
    if a.pooling == "token" then list[2] = { "class_token", { 1, 1, a.width }, deviation = 0.02 } end
    return list
  end,
  children = function(a)
    local list = { { "patches", vision.patch_embedding { width = a.width, patch = a.patch, channels = a.channels } } }
    for i = 0, a.layers - 1 do
      local block = vision.vit_block { width = a.width, heads = a.heads, hidden = a.hidden, norm = a.norm,
        activation = a.activation, dropout = a.dropout, eps = a.eps }
      list[#list + 1] = { "blocks." .. i, block, repeats = tostring(block) }
    end
    if a.norm == "before" then list[#list + 1] = { "norm", basic.layer_norm(a.width, { eps = a.eps }) } end
    list[#list + 1] = { "head", basic.linear(a.width, a.classes) }
    return list
  end,
  forward = function(self, images)
    local a, b = self.arguments, self.builder
    if images.shape[3] ~= a.image or images.shape[4] ~= a.image then
      require("het.errors").usage("nn.vit has positions for images of %d × %d, and these are %s", a.image, a.image,
        text.shape(images.shape))
    end
    b.deviation, b.residuals = 0.02, 2 * a.layers
    b:begin_layer("embedding")
    local x = self.patches(images)
    if a.pooling == "token" then
      local token = op.add(b:zeros(x.dtype, { x.shape[1], 1, a.width }), self.class_token)
      x = op.concat(token, x, { dim = 1 })
    end
    x = b:dropout(op.add(x, self.positions), a.dropout)
    for i = 0, a.layers - 1 do
      b:begin_layer("blocks." .. i)
      x = self["blocks." .. i](x)
    end
    b:begin_layer("head")
    if a.pooling == "token" then
      x = op.reshape(op.slice(x, { dim = 1, start = 0, length = 1 }), { shape = { x.shape[1], a.width } })
      if a.norm == "before" then x = self.norm(x) end
    else
      if a.norm == "before" then x = self.norm(x) end
      x = op.mean(x, { dims = { 1 } })
    end
    return self.head(x)
  end,
  loss = loss,
}

-- Convolutions of each stage of VGG, by depth (Simonyan and Zisserman 2014, table 1).
local stages = {
  [11] = { 1, 1, 2, 2, 2 }, [13] = { 2, 2, 2, 2, 2 }, [16] = { 2, 2, 3, 3, 3 }, [19] = { 2, 2, 4, 4, 4 },
}

-- Deviation of weights before a relu, which halves the variance (He et al. 2015).
local function before_relu(inputs) return math.sqrt(2 / inputs) end

--- nn.vgg { classes = , depth = 19 }
vision.vgg = layer.define {
  name = "nn.vgg",
  sentence = "VGG (Simonyan and Zisserman 2014), without batch norm: five stages of 3 × 3 convolutions, each halved by "
    .. "a pooling, and three linear layers. Its layers have torchvision's names.",
  example = "nn.vgg { classes = 10, depth = 19, width = 64, hidden = 4096 }",
  fields = {
    { "classes", "integer", "number of different labels", required = true, min = 1 },
    { "depth", "integer", "layers with weights", default = 19, choices = { 11, 13, 16, 19 } },
    { "channels", "integer", "of the images", default = 3, min = 1 },
    { "width", "integer", "channels of the first stage; the next have 2, 4, 8 and 8 times as many", default = 64,
      min = 1 },
    { "hidden", "integer", "features of the linear layers", default = 4096, min = 1 },
    { "pool", "integer", "rows and columns that the linear layers see of an image of any size", default = 7, min = 1 },
    { "dropout", "number", "behind the linear layers, while training", default = 0.5, min = 0, below = 1 },
  },
  show = function(a) return ("%d, %d classes, width %d"):format(a.depth, a.classes, a.width) end,
  children = function(a)
    local list, channels, at = {}, a.channels, 0
    for stage, count in ipairs(stages[a.depth]) do
      local outputs = a.width * math.min(2 ^ (stage - 1), 8)
      for _ = 1, count do
        list[#list + 1] = { "features." .. at, vision.conv2d(channels, outputs, { kernel = 3, padding = 1,
          deviation = before_relu(9 * channels) }) }
        channels, at = outputs, at + 2
      end
      at = at + 1
    end
    local function linear(index, inputs, outputs)
      list[#list + 1] = { "classifier." .. index, basic.linear(inputs, outputs, { deviation = before_relu(inputs) }) }
    end
    linear(0, channels * a.pool * a.pool, a.hidden)
    linear(3, a.hidden, a.hidden)
    list[#list + 1] = { "classifier.6", basic.linear(a.hidden, a.classes) }
    return list
  end,
  forward = function(self, x)
    local a, b, at = self.arguments, self.builder, 0
    for _, count in ipairs(stages[a.depth]) do
      for _ = 1, count do
        b:begin_layer("features." .. at)
        x, at = op.relu(self["features." .. at](x)), at + 2
      end
      x, at = op.max_pool2d(x, { kernel = 2 }), at + 1
    end
    b:begin_layer("classifier.0")
    x = op.adaptive_avg_pool2d(x, { output_size = a.pool })
    x = op.reshape(x, { shape = { x.shape[1], x.shape[2] * a.pool * a.pool } })
    x = b:dropout(op.relu(self["classifier.0"](x)), a.dropout)
    b:begin_layer("classifier.3")
    x = b:dropout(op.relu(self["classifier.3"](x)), a.dropout)
    b:begin_layer("classifier.6")
    return self["classifier.6"](x)
  end,
  loss = loss,
}

return vision
