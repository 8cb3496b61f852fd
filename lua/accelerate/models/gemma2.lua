--- Gemma 2: Gemma with norms on both sides of each part, bent scores, and a window in every other
--- layer.

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"
local activations = require "accelerate.models.activations"

local CONFIG = parts.schema {
  vocab_size = { "integer", default = 256000, min = 1 },
  hidden_size = { "integer", default = 2304, min = 1 },
  intermediate_size = { "integer", default = 9216, min = 1 },
  num_hidden_layers = { "integer", default = 26, min = 1 },
  num_attention_heads = { "integer", default = 8, min = 1 },
  num_key_value_heads = { "integer", default = 4, min = 1 },
  head_dim = { "integer", default = 256, min = 2 },
  hidden_activation = activations.entry "gelu_pytorch_tanh",
  max_position_embeddings = { "integer", default = 8192, min = 1 },
  pad_token_id = parts.integer_or_none(0, 0),
  bos_token_id = { "integer", default = 2 },
  eos_token_id = { "integer|list", default = 1 },
  tie_word_embeddings = { "boolean", default = true },
  attention_bias = { "boolean", default = false },
  use_bidirectional_attention = { "boolean", optional = true, one_of = { false } },
  query_pre_attn_scalar = { "integer", default = 256, min = 1 },
  sliding_window = parts.integer_or_none(4096, 1),
  layer_types = { "list", optional = true },
  final_logit_softcapping = parts.number_or_none(30),
  attn_logit_softcapping = parts.number_or_none(50),
}

local function prepare(where, c)
  parts.layer_types(where, c, function(i) return i % 2 == 1 end)
end

local function plan(c)
  return { biases = { qkv = c.attention_bias, out = c.attention_bias }, centred = true, sandwich = true,
    act = c.hidden_activation, embed_scale = c.hidden_size ^ 0.5, scale = c.query_pre_attn_scalar ^ -0.5,
    attention_cap = c.attn_logit_softcapping or nil, score_cap = c.final_logit_softcapping or nil,
    windows = parts.windows(c) }
end

local TRAITS = parts.traits("gemma2", CONFIG, plan, prepare)

---@class accelerate.models.Gemma2Model : accelerate.models.PreTrainedModel
--- Gemma 2's decoder without a head.
local Gemma2Model = pretrained.class("Gemma2Model", TRAITS)

---@class accelerate.models.Gemma2ForCausalLM : accelerate.models.PreTrainedModel
--- Gemma 2's decoder with scores for the next token.
local Gemma2ForCausalLM = pretrained.class("Gemma2ForCausalLM", TRAITS)

---@class accelerate.models.Gemma2ForSequenceClassification : accelerate.models.PreTrainedModel
--- Gemma 2's decoder with scores for classes, taken at the last token of each row.
local Gemma2ForSequenceClassification = pretrained.class("Gemma2ForSequenceClassification", TRAITS)

return parts.complete(Gemma2Model, Gemma2ForCausalLM, Gemma2ForSequenceClassification)
