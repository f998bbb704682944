-- Qwen 3 with experts (Yang et al. 2025).
local common = require "het.families.common"

local sizes = {}
for _, row in ipairs(common.sizes) do
  if row[1] == "intermediate_size" then
    row = { "moe_intermediate_size", "hidden", need = true, written = row.written }   -- of an expert
  end
  sizes[#sizes + 1] = row
end

return {
  architecture = "Qwen3MoeForCausalLM",
  constructor = "decoder",
  decoder = common.decoder { qk_norm = "head", eps = 1e-6, experts = 128, top = 8, normalised = false,
    auxiliary = 0 },
  config = common.joined(sizes, common.grouped, common.head_size, {
    { "rms_norm_eps", "eps", default = 1e-6 },
    { "tie_word_embeddings", "tied", default = false },
    { "num_experts", "experts", default = 128 },
    { "num_experts_per_tok", "top", default = 8 },
    { "norm_topk_prob", "normalised", default = false },
    { "attention_bias", "bias", default = false },
    { "decoder_sparse_step", is = 1 },
    { "use_sliding_window", is = false },
    { "hidden_act", is = "silu" },
  }),
  rope = true,
  read = function(config, a, refuse)
    a.experts = config.num_local_experts or a.experts   -- as newer versions of transformers name it
    if type(config.mlp_only_layers) == "table" and #config.mlp_only_layers > 0 then
      refuse "mlp_only_layers: blocks without experts are not supported"
    end
  end,
  extra = { bos_token_id = 0, eos_token_id = 0 },
  tensors = common.expert_tensors({ mlp = "mlp", side = "gate_proj", up = "up_proj", down = "down_proj" },
    { qkv_bias = "bias", out_bias = "bias", more = common.qk_norms }),
}
