--- OLMo 2: Llama's decoder with norms behind each part, and over all queries and all keys of a
--- position.

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = parts.schema {
  vocab_size = { "integer", default = 50304, min = 1 },
  rms_norm_eps = { "number", default = 1e-5, min = 0 },
  pad_token_id = parts.integer_or_none(1, 0),
  eos_token_id = { "integer|list", default = 50279 },
  attention_bias = { "boolean", default = false },
}

local TRAITS = parts.traits("olmo2", CONFIG, function(c)
  return { biases = { qkv = c.attention_bias, out = c.attention_bias }, behind = true, row_norms = true }
end)

---@class accelerate.models.Olmo2Model : accelerate.models.PreTrainedModel
--- OLMo 2's decoder without a head.
local Olmo2Model = pretrained.class("Olmo2Model", TRAITS)

---@class accelerate.models.Olmo2ForCausalLM : accelerate.models.PreTrainedModel
--- OLMo 2's decoder with scores for the next token.
local Olmo2ForCausalLM = pretrained.class("Olmo2ForCausalLM", TRAITS)

---@class accelerate.models.Olmo2ForSequenceClassification : accelerate.models.PreTrainedModel
--- OLMo 2's decoder with scores for classes, taken at the last token of each row.
local Olmo2ForSequenceClassification = pretrained.class("Olmo2ForSequenceClassification", TRAITS)

return parts.complete(Olmo2Model, Olmo2ForCausalLM, Olmo2ForSequenceClassification)
