-- What a family's models cannot be given, what has no effect, and a name that is another's beginning.
local het = require "het"
local sizes = { vocab = 64, context = 32, width = 32, layers = 1, heads = 4 }
local function decoder(more)
  for name, value in pairs(sizes) do more[name] = value end
  return het.nn.decoder(more)
end
decoder { family = "olmo2", window = 8 }
decoder { family = "gemma2", window_every = 3 }
decoder { family = "qwen2", window_after = 1 }
decoder { family = "qwen2", window = 8, window_after = 1 }
decoder { family = "qwen2_moe", dense_layers = { 1 } }
return decoder { family = "gemma3" }
