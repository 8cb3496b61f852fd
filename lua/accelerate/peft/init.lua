--- Adapters, after Hugging Face's PEFT: LoRA with its variants, and its folders.
---
---   local peft = require "accelerate.peft"
---   local config = peft.LoraConfig { r = 8, lora_alpha = 16, target_modules = { "q_proj", "v_proj"
---     } }
---   local model = peft.get_peft_model(model, config)

local configs = require "accelerate.peft.config"
local model = require "accelerate.peft.model"
local options = require "accelerate.utils.options"

--- PEFT's names of tasks: texts, as LoraConfig's task_type takes them.
local TaskType = {}
for _, name in ipairs(configs.TASKS) do TaskType[name] = name end

local M = { LoraConfig = configs.LoraConfig, PeftModel = model.PeftModel, TaskType = TaskType }

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

local KBIT = { use_gradient_checkpointing = { "boolean", optional = true },
  gradient_checkpointing_kwargs = { "table", optional = true } }

--- Returns a quantised model without gradients, ready for adapters: parameters that are not encoded
--- become float32, and layers are checkpointed.
---@param base accelerate.nn.Module
---@param opts? { use_gradient_checkpointing: boolean, gradient_checkpointing_kwargs: table }
---  use_gradient_checkpointing: default true, of models with supports_gradient_checkpointing
---@return accelerate.nn.Module base
function M.prepare_model_for_kbit_training(base, opts)
  local o = options.check("prepare_model_for_kbit_training", opts, KBIT)
  local recomputes = o.use_gradient_checkpointing
  if recomputes == nil then recomputes = base.supports_gradient_checkpointing or false end
  base:requires_grad_(false)
  if recomputes and base.gradient_checkpointing_enable then
    base:gradient_checkpointing_enable { gradient_checkpointing_kwargs = o.gradient_checkpointing_kwargs }
  end
  return base:float()
end

return M
