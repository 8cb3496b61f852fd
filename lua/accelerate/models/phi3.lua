--- Phi-3, Phi-3.5 and Phi-4: Llama's decoder with fused layers.

local parts = require "accelerate.models.rotary_decoder"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = parts.schema {
  vocab_size = { "integer", default = 32064, min = 1 },
  hidden_size = { "integer", default = 3072, min = 1 },
  intermediate_size = { "integer", default = 8192, min = 1 },
  max_position_embeddings = { "integer", default = 4096, min = 1 },
  original_max_position_embeddings = { "integer", default = 4096, min = 1 },
  rms_norm_eps = { "number", default = 1e-5, min = 0 },
  bos_token_id = { "integer", default = 1 },
  eos_token_id = { "integer|list", default = 32000 },
  pad_token_id = parts.integer_or_none(32000, 0),
  resid_pdrop = { "number", default = 0, min = 0, max = 1 },
  sliding_window = parts.integer_or_none(false, 1),
  partial_rotary_factor = { "number", optional = true, above = 0, max = 1 },
}

local function rope(c) return c.rope_parameters or c.rope_scaling or {} end

-- Old files call the longrope of this type "su" or "yarn".
local function prepare(_, c)
  local given = rope(c)
  for _, key in ipairs { "rope_type", "type" } do
    if given[key] == "su" or given[key] == "yarn" then given[key] = "longrope" end
  end
end

-- A call that crosses the length of training turns by other angles from there on: the keys of the
-- cache are computed anew.
local function plan(c)
  local given = rope(c)
  local long = (given.rope_type or given.type) == "longrope"
  return { biases = {}, fused = true, drop = c.resid_pdrop, windows = parts.windows(c),
    partial = given.partial_rotary_factor or c.partial_rotary_factor,
    renew_at = long and (given.original_max_position_embeddings or c.original_max_position_embeddings) }
end

local TRAITS = parts.traits("phi3", CONFIG, plan, prepare)

---@class accelerate.models.Phi3Model : accelerate.models.PreTrainedModel
--- Phi-3's decoder without a head.
local Phi3Model = pretrained.class("Phi3Model", TRAITS)

---@class accelerate.models.Phi3ForCausalLM : accelerate.models.PreTrainedModel
--- Phi-3's decoder with scores for the next token.
local Phi3ForCausalLM = pretrained.class("Phi3ForCausalLM", TRAITS)

---@class accelerate.models.Phi3ForSequenceClassification : accelerate.models.PreTrainedModel
--- Phi-3's decoder with scores for classes, taken at the last token of each row.
local Phi3ForSequenceClassification = pretrained.class("Phi3ForSequenceClassification", TRAITS)

return parts.complete(Phi3Model, Phi3ForCausalLM, Phi3ForSequenceClassification)
