--- Llama and what has its configuration (SmolLM, Vicuna, TinyLlama, Yi).

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = parts.schema {
  bos_token_id = { "integer", default = 1 },
  eos_token_id = { "integer|list", default = 2 },
  attention_bias = { "boolean", default = false },
  mlp_bias = { "boolean", default = false },
}

local TRAITS = parts.traits("llama", CONFIG, function(c)
  return { biases = { qkv = c.attention_bias, out = c.attention_bias, mlp = c.mlp_bias } }
end)

---@class accelerate.models.LlamaModel : accelerate.models.PreTrainedModel
--- The decoder without a head.
local LlamaModel = pretrained.class("LlamaModel", TRAITS)

---@class accelerate.models.LlamaForCausalLM : accelerate.models.PreTrainedModel
--- The decoder with scores for the next token.
local LlamaForCausalLM = pretrained.class("LlamaForCausalLM", TRAITS)

---@class accelerate.models.LlamaForSequenceClassification : accelerate.models.PreTrainedModel
--- The decoder with scores for classes, taken at the last token of each row.
local LlamaForSequenceClassification = pretrained.class("LlamaForSequenceClassification", TRAITS)

return parts.complete(LlamaModel, LlamaForCausalLM, LlamaForSequenceClassification)
