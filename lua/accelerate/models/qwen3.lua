--- Qwen3: Llama's decoder with norms of the queries and keys of each head.

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = parts.schema {
  vocab_size = { "integer", default = 151936, min = 1 },
  intermediate_size = { "integer", default = 22016, min = 1 },
  num_key_value_heads = { "integer", default = 32, min = 1 },
  head_dim = { "integer", default = 128, min = 2 },
  attention_bias = { "boolean", default = false },
  max_position_embeddings = { "integer", default = 32768, min = 1 },
  use_sliding_window = { "boolean", default = false },
  sliding_window = parts.integer_or_none(4096, 1),
  max_window_layers = { "integer", default = 28, min = 0 },
  layer_types = { "list", optional = true },
}

-- Layers behind the first max_window_layers have a window, where there is one at all.
local function prepare(where, c)
  if not c.use_sliding_window then c.sliding_window = false end
  parts.layer_types(where, c, function(i) return c.sliding_window and i > c.max_window_layers end)
end

local function plan(c)
  return { biases = { qkv = c.attention_bias, out = c.attention_bias }, head_norms = true,
    windows = parts.windows(c) }
end

local TRAITS = parts.traits("qwen3", CONFIG, plan, prepare)

---@class accelerate.models.Qwen3Model : accelerate.models.PreTrainedModel
--- Qwen3's decoder without a head.
local Qwen3Model = pretrained.class("Qwen3Model", TRAITS)

---@class accelerate.models.Qwen3ForCausalLM : accelerate.models.PreTrainedModel
--- Qwen3's decoder with scores for the next token.
local Qwen3ForCausalLM = pretrained.class("Qwen3ForCausalLM", TRAITS)

---@class accelerate.models.Qwen3ForSequenceClassification : accelerate.models.PreTrainedModel
--- Qwen3's decoder with scores for classes, taken at the last token of each row.
local Qwen3ForSequenceClassification = pretrained.class("Qwen3ForSequenceClassification", TRAITS)

return parts.complete(Qwen3Model, Qwen3ForCausalLM, Qwen3ForSequenceClassification)
