--- Mistral: Llama's decoder with a window of positions.

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = parts.schema {
  intermediate_size = { "integer", default = 14336, min = 1 },
  num_key_value_heads = { "integer", default = 8, min = 1 },
  max_position_embeddings = { "integer", default = 131072, min = 1 },
  bos_token_id = { "integer", default = 1 },
  eos_token_id = { "integer|list", default = 2 },
  sliding_window = parts.integer_or_none(4096, 1),
}

local TRAITS = parts.traits("mistral", CONFIG,
  function(c) return { biases = {}, windows = parts.windows(c) } end)

---@class accelerate.models.MistralModel : accelerate.models.PreTrainedModel
--- Mistral's decoder without a head.
local MistralModel = pretrained.class("MistralModel", TRAITS)

---@class accelerate.models.MistralForCausalLM : accelerate.models.PreTrainedModel
--- Mistral's decoder with scores for the next token.
local MistralForCausalLM = pretrained.class("MistralForCausalLM", TRAITS)

---@class accelerate.models.MistralForSequenceClassification : accelerate.models.PreTrainedModel
--- Mistral's decoder with scores for classes, taken at the last token of each row.
local MistralForSequenceClassification = pretrained.class("MistralForSequenceClassification", TRAITS)

return parts.complete(MistralModel, MistralForCausalLM, MistralForSequenceClassification)
