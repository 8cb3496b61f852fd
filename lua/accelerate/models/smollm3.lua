--- SmolLM3: Llama's decoder without rotary positions in some of its layers.

local options = require "accelerate.utils.options"
local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = parts.schema {
  vocab_size = { "integer", default = 128256, min = 1 },
  hidden_size = { "integer", default = 2048, min = 1 },
  num_hidden_layers = { "integer", default = 36, min = 1 },
  num_attention_heads = { "integer", default = 16, min = 1 },
  num_key_value_heads = { "integer", default = 4, min = 1 },
  max_position_embeddings = { "integer", default = 32768, min = 1 },
  rope_theta = { "number", default = 2000000, above = 0 },
  pad_token_id = parts.integer_or_none(128004, 0),
  bos_token_id = { "integer", default = 128000 },
  eos_token_id = { "integer|list", default = 128001 },
  tie_word_embeddings = { "boolean", default = true },
  attention_bias = { "boolean", default = false },
  mlp_bias = { "boolean", default = false },
  use_sliding_window = { "boolean", default = false },
  sliding_window = parts.integer_or_none(false, 1),
  no_rope_layers = { "list", optional = true },
  no_rope_layer_interval = { "integer", default = 4, min = 1 },
  layer_types = { "list", optional = true },
}

-- no_rope_layers has 1 for a layer whose queries and keys are turned.
local function prepare(where, c)
  if not c.no_rope_layers then
    c.no_rope_layers = {}
    for i = 1, c.num_hidden_layers do c.no_rope_layers[i] = i % c.no_rope_layer_interval ~= 0 and 1 or 0 end
  elseif #c.no_rope_layers < c.num_hidden_layers then
    options.fail("%s: config.no_rope_layers must have a number for each of the %d layers, got %d", where,
      c.num_hidden_layers, #c.no_rope_layers)
  end
  if not c.use_sliding_window then c.sliding_window = false end
  parts.layer_types(where, c, function(i) return c.sliding_window and c.no_rope_layers[i] == 0 end)
end

local function plan(c)
  local unturned = {}
  for i = 1, c.num_hidden_layers do unturned[i] = (c.no_rope_layers or {})[i] == 0 end
  return { biases = { qkv = c.attention_bias, out = c.attention_bias, mlp = c.mlp_bias }, unturned = unturned,
    windows = parts.windows(c) }
end

local TRAITS = parts.traits("smollm3", CONFIG, plan, prepare)

---@class accelerate.models.SmolLM3Model : accelerate.models.PreTrainedModel
--- SmolLM3's decoder without a head.
local SmolLM3Model = pretrained.class("SmolLM3Model", TRAITS)

---@class accelerate.models.SmolLM3ForCausalLM : accelerate.models.PreTrainedModel
--- SmolLM3's decoder with scores for the next token.
local SmolLM3ForCausalLM = pretrained.class("SmolLM3ForCausalLM", TRAITS)

---@class accelerate.models.SmolLM3ForSequenceClassification : accelerate.models.PreTrainedModel
--- SmolLM3's decoder with scores for classes, taken at the last token of each row.
local SmolLM3ForSequenceClassification = pretrained.class("SmolLM3ForSequenceClassification", TRAITS)

return parts.complete(SmolLM3Model, SmolLM3ForCausalLM, SmolLM3ForSequenceClassification)
