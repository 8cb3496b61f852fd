--- StarCoder2: a decoder with rotary positions, layer norms, biases, and feed-forward parts of two
--- layers.

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"
local activations = require "accelerate.models.activations"

local RATE = { "number", default = 0, min = 0, max = 1 }

local CONFIG = parts.schema {
  vocab_size = { "integer", default = 49152, min = 1 },
  hidden_size = { "integer", default = 3072, min = 1 },
  intermediate_size = { "integer", default = 12288, min = 1 },
  num_hidden_layers = { "integer", default = 30, min = 1 },
  num_attention_heads = { "integer", default = 24, min = 1 },
  num_key_value_heads = { "integer", default = 2, min = 1 },
  hidden_act = activations.entry "gelu_pytorch_tanh",
  max_position_embeddings = { "integer", default = 4096, min = 1 },
  initializer_range = { "number", default = 0.018042, min = 0 },
  norm_epsilon = { "number", default = 1e-5, min = 0 },
  bos_token_id = { "integer", default = 50256 },
  eos_token_id = { "integer|list", default = 50256 },
  sliding_window = parts.integer_or_none(false, 1),
  residual_dropout = RATE, embedding_dropout = RATE,
  use_bias = { "boolean", default = true },
  tie_word_embeddings = { "boolean", default = true },
}

local TRAITS = parts.traits("starcoder2", CONFIG, function(c)
  local bias = c.use_bias
  return { biases = { qkv = bias, out = bias, mlp = bias }, ungated = true, layer_norm = c.norm_epsilon,
    drop = c.residual_dropout, embed_drop = c.embedding_dropout, windows = parts.windows(c) }
end)

---@class accelerate.models.Starcoder2Model : accelerate.models.PreTrainedModel
--- StarCoder2's decoder without a head.
local Starcoder2Model = pretrained.class("Starcoder2Model", TRAITS)

---@class accelerate.models.Starcoder2ForCausalLM : accelerate.models.PreTrainedModel
--- StarCoder2's decoder with scores for the next token.
local Starcoder2ForCausalLM = pretrained.class("Starcoder2ForCausalLM", TRAITS)

---@class accelerate.models.Starcoder2ForSequenceClassification : accelerate.models.PreTrainedModel
--- StarCoder2's decoder with scores for classes, taken at the last token of each row.
local Starcoder2ForSequenceClassification = pretrained.class("Starcoder2ForSequenceClassification", TRAITS)

return parts.complete(Starcoder2Model, Starcoder2ForCausalLM, Starcoder2ForSequenceClassification)
