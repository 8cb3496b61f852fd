--- Adapters, after Hugging Face's PEFT: LoRA with its variants, and its folders.
---
---   local peft = require "accelerate.peft"
---   local config = peft.LoraConfig { r = 8, lora_alpha = 16, target_modules = { "q_proj", "v_proj"
---     } }
---   local model = peft.get_peft_model(model, config)

local configs = require "accelerate.peft.config"
local model = require "accelerate.peft.model"
local options = require "accelerate.utils.options"

local M = { LoraConfig = configs.LoraConfig, PeftModel = model.PeftModel }

local OPTIONS = { adapter_name = { "string", default = "default" } }

--- Returns a model with an adapter: its own weights do not change, and the adapter's parameters
--- alone require gradients.
---@param base accelerate.nn.Module changed: layers get adapters around them
---@param config accelerate.peft.LoraConfig
---@param opts? { adapter_name: string } default "default"
---@return accelerate.peft.PeftModel
function M.get_peft_model(base, config, opts)
  local o = options.check("get_peft_model", opts, OPTIONS)
  return model.PeftModel(base, config, o.adapter_name)
end

--- Returns the parameters of a quantised model without gradients, ready for adapters: what is not
--- encoded computes in float32.
---@param base accelerate.nn.Module
---@return accelerate.nn.Module base
function M.prepare_model_for_kbit_training(base)
  base:requires_grad_(false)
  return base:float()
end

return M
