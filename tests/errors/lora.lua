-- What adapters cannot be given.
local het = require "het"
local nn = het.nn
local base = nn.llama { vocab = 16, context = 8, width = 8, layers = 1, heads = 2 }
local mixture = nn.decoder { family = "mixtral", vocab = 16, context = 8, width = 8, layers = 1, heads = 2, experts = 2,
  top = 1 }
local problems = {
  nn.lora { model = base, targets = { "q_prj", "norm" } },
  nn.lora { model = nn.gpt { vocab = 16, context = 8, width = 8, layers = 1, heads = 2 }, targets = { "lm_head" } },
  nn.lora { model = base, targets = {} },
  nn.lora { model = nn.lora { model = base } },
  nn.lora { model = nn.layer_norm(8) },
  nn.lora { model = base, rank = 0 },
  nn.lora { model = base, parameters = { "mlp.experts.down_proj" } },
  nn.lora { model = mixture, parameters = { "experts.up_proj" } },
  nn.lora { model = mixture, targets = { "w2" }, parameters = { "down_proj" } },
  nn.lora { model = mixture, dropout = 0.5, parameters = { "down_proj" } },
  nn.lora { model = mixture, parameters = {} },
  nn.lora { model = base, targets = { "q_proj" }, ranks = { v_proj = 4 } },
  nn.lora { model = base, ranks = { q_proj = 2, ["self_attn.q_proj"] = 3 } },
  nn.lora { model = base, ranks = { q_proj = 1.5 } },
  nn.lora { model = base, alphas = { 4 } },
  nn.lora { model = nn.decoder { family = "phi3", vocab = 16, context = 8, width = 8, layers = 1, heads = 2 },
    ranks = { ["mlp.up"] = 3 } },
  nn.lora { model = base, ranks = { q_proj = 0, v_proj = 2 } },
  nn.lora { model = base, ranks = { q_proj = 2 ^ 60 } },
  nn.lora { model = base, alphas = { q_proj = 1 / 0 } },
  nn.lora { model = base, alphas = { q_proj = 0 } },
  nn.lora { model = base, ranks = { ["^q_proj"] = 2 } },
  nn.lora { model = base, ranks = { ["^model.layers.0.self_attn.q_proj"] = 2 } },   -- nothing is wrong with it
  nn.lora { model = mixture, ranks = { ["experts.1.w1"] = 2 } },
  nn.lora { model = mixture, targets = { "q_proj" }, parameters = { "experts.down_proj" }, ranks = { gate_up = 2 } },
  nn.lora { model = mixture, targets = { "q_proj" }, parameters = { "down_proj" }, alphas = { norm = 2 } },
}
return problems[1]
