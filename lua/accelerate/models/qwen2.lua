--- Qwen2 and Qwen2.5: Llama's decoder with biases of queries, keys and values.

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = parts.schema {
  vocab_size = { "integer", default = 151936, min = 1 },
  intermediate_size = { "integer", default = 22016, min = 1 },
  num_key_value_heads = { "integer", default = 32, min = 1 },
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
  return { biases = { qkv = true }, windows = parts.windows(c) }
end

local TRAITS = parts.traits("qwen2", CONFIG, plan, prepare)

---@class accelerate.models.Qwen2Model : accelerate.models.PreTrainedModel
--- Qwen2's decoder without a head.
local Qwen2Model = pretrained.class("Qwen2Model", TRAITS)

---@class accelerate.models.Qwen2ForCausalLM : accelerate.models.PreTrainedModel
--- Qwen2's decoder with scores for the next token.
local Qwen2ForCausalLM = pretrained.class("Qwen2ForCausalLM", TRAITS)

---@class accelerate.models.Qwen2ForSequenceClassification : accelerate.models.PreTrainedModel
--- Qwen2's decoder with scores for classes, taken at the last token of each row.
local Qwen2ForSequenceClassification = pretrained.class("Qwen2ForSequenceClassification", TRAITS)

return parts.complete(Qwen2Model, Qwen2ForCausalLM, Qwen2ForSequenceClassification)
