--- Gemma: Llama's decoder with scaled embeddings, and norms whose weights are stored less 1.

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"
local activations = require "accelerate.models.activations"

local CONFIG = parts.schema {
  vocab_size = { "integer", default = 256000, min = 1 },
  hidden_size = { "integer", default = 3072, min = 1 },
  intermediate_size = { "integer", default = 24576, min = 1 },
  num_hidden_layers = { "integer", default = 28, min = 1 },
  num_attention_heads = { "integer", default = 16, min = 1 },
  num_key_value_heads = { "integer", default = 16, min = 1 },
  head_dim = { "integer", default = 256, min = 2 },
  hidden_act = activations.entry "gelu_pytorch_tanh",
  max_position_embeddings = { "integer", default = 8192, min = 1 },
  pad_token_id = parts.integer_or_none(0, 0),
  bos_token_id = { "integer", default = 2 },
  eos_token_id = { "integer|list", default = 1 },
  tie_word_embeddings = { "boolean", default = true },
  attention_bias = { "boolean", default = false },
  use_bidirectional_attention = { "boolean", optional = true, one_of = { false } },
}

-- The first files say "gelu" and mean its tanh form.
local function prepare(_, c)
  if c.hidden_act == "gelu" then c.hidden_act = "gelu_pytorch_tanh" end
end

local function plan(c)
  return { biases = { qkv = c.attention_bias, out = c.attention_bias }, centred = true,
    embed_scale = c.hidden_size ^ 0.5 }
end

local TRAITS = parts.traits("gemma", CONFIG, plan, prepare)

---@class accelerate.models.GemmaModel : accelerate.models.PreTrainedModel
--- Gemma's decoder without a head.
local GemmaModel = pretrained.class("GemmaModel", TRAITS)

---@class accelerate.models.GemmaForCausalLM : accelerate.models.PreTrainedModel
--- Gemma's decoder with scores for the next token.
local GemmaForCausalLM = pretrained.class("GemmaForCausalLM", TRAITS)

---@class accelerate.models.GemmaForSequenceClassification : accelerate.models.PreTrainedModel
--- Gemma's decoder with scores for classes, taken at the last token of each row.
local GemmaForSequenceClassification = pretrained.class("GemmaForSequenceClassification", TRAITS)

return parts.complete(GemmaModel, GemmaForCausalLM, GemmaForSequenceClassification)
