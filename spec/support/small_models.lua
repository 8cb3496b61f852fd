--- A small model of each class of accelerate.models, with inputs for it.
local models = require "accelerate.models"
local tensor = require "accelerate.tensor"

local M = {}

local ENCODER = { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 32,
  vocab_size = 30 }
local DECODER = { hidden_size = 32, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 64,
  num_key_value_heads = 1, vocab_size = 30, pad_token_id = 0, bos_token_id = 1, eos_token_id = 2 }
local SMALL_RESNET = { embedding_size = 8, hidden_sizes = { 8, 16 }, depths = { 1, 1 },
  layer_type = "basic" }

-- The beginning of a class's name -> its configuration, and the size of images where it takes some.
local FORMS = {
  Albert = { ENCODER }, Bert = { ENCODER }, Electra = { ENCODER }, MPNet = { ENCODER }, Roberta = { ENCODER },
  XLMRoberta = { ENCODER },
  DistilBert = { { dim = 16, n_layers = 2, n_heads = 2, hidden_dim = 32, vocab_size = 30 } },
  Gemma = { DECODER }, Gemma2 = { DECODER }, Granite = { DECODER }, Llama = { DECODER },
  Mistral = { DECODER }, Olmo2 = { DECODER }, Phi3 = { DECODER }, Qwen2 = { DECODER }, Qwen3 = { DECODER },
  SmolLM3 = { DECODER }, Starcoder2 = { DECODER },
  GPT2 = { { n_embd = 32, n_layer = 2, n_head = 2, vocab_size = 30, pad_token_id = 0 } },
  T5 = { { d_model = 16, d_kv = 8, d_ff = 32, num_layers = 2, num_heads = 2, vocab_size = 30 } },
  ViT = { { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 32,
    image_size = 8, patch_size = 4 }, { 3, 8, 8 } },
  ResNet = { SMALL_RESNET, { 3, 16, 16 } },
  LeNet = { {}, { 1, 28, 28 } },
}

local function form_of(name)
  for _, ending in ipairs { "For%u.*$", "LMHeadModel$", "EncoderModel$", "Model$" } do
    name = name:gsub(ending, "")
  end
  return FORMS[name]
end

--- Returns the names of all classes, sorted.
---@return string[]
function M.names()
  local list = {}
  for _, name in ipairs(getmetatable(models).__members) do
    local is_model = name:find "^%u" and not name:find "^Auto" and not name:find "Config$"
    if is_model and name ~= "KeyValueCache" and name ~= "PreTrainedModel" then
      assert(form_of(name), name .. " has no entry in spec/support/small_models.lua")
      list[#list + 1] = name
    end
  end
  return list
end

--- Returns a model of a class with new weights, the same ones at each call.
---@param name string
---@param changes? table keys of its configuration
---@return accelerate.models.PreTrainedModel
function M.make(name, changes)
  local config = {}
  for key, value in pairs(form_of(name)[1]) do config[key] = value end
  for key, value in pairs(changes or {}) do config[key] = value end
  tensor.manual_seed(0)
  return models[name](config)
end

--- Returns inputs of a class: two texts of seven tokens, or two images.
---@param name string
---@return table<string, accelerate.Tensor>
function M.inputs(name)
  local image = form_of(name)[2]
  if image then
    local c, h, w = unpack(image)
    return { pixel_values = tensor.arange(2 * c * h * w):view(2, c, h, w) / (2 * c * h * w) }
  end
  local ids = tensor.arange(14):view(2, 7) + 3
  local inputs = { input_ids = ids, attention_mask = tensor.ones(2, 7, { dtype = "int64" }) }
  if name == "T5Model" then inputs.decoder_input_ids = ids end
  if name == "T5ForConditionalGeneration" then inputs.labels = ids end
  return inputs
end

--- Returns the tensor that a model's outputs are about.
---@param out table
---@return accelerate.Tensor
function M.main(out) return out.logits or out.last_hidden_state end

return M
