--- Granite: Llama's decoder with embeddings, parts, attention and scores that are scaled.

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"

local SCALE = { "number", default = 1, above = 0 }

local CONFIG = parts.schema {
  bos_token_id = { "integer", default = 1 },
  eos_token_id = { "integer|list", default = 2 },
  attention_bias = { "boolean", default = false },
  mlp_bias = { "boolean", default = false },
  embedding_multiplier = SCALE, logits_scaling = SCALE, residual_multiplier = SCALE,
  attention_multiplier = SCALE,
}

local TRAITS = parts.traits("granite", CONFIG, function(c)
  return { biases = { qkv = c.attention_bias, out = c.attention_bias, mlp = c.mlp_bias },
    embed_scale = c.embedding_multiplier, part_scale = c.residual_multiplier, scale = c.attention_multiplier,
    score_scale = 1 / c.logits_scaling }
end)

---@class accelerate.models.GraniteModel : accelerate.models.PreTrainedModel
--- Granite's decoder without a head.
local GraniteModel = pretrained.class("GraniteModel", TRAITS)

---@class accelerate.models.GraniteForCausalLM : accelerate.models.PreTrainedModel
--- Granite's decoder with scores for the next token.
local GraniteForCausalLM = pretrained.class("GraniteForCausalLM", TRAITS)

return parts.complete(GraniteModel, GraniteForCausalLM)
