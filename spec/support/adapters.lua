--- Adapters that train over a model whose weights rest in an encoding.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local optim = require "accelerate.optim"
local peft = require "accelerate.peft"

local M = {}

--- Trains adapters of a decoder for six steps, prepared.
---@param model accelerate.nn.Module
---@param ids accelerate.Tensor
---@return accelerate.nn.Module model with the adapters
---@return number first loss
---@return number last loss
function M.train(model, ids)
  core.manual_seed(0)
  model = peft.get_peft_model(model,
    peft.LoraConfig { r = 4, lora_alpha = 8, target_modules = { "q_proj", "down_proj" } })
  local accelerator = accelerate.Accelerator()
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
  model, optimizer = accelerator:prepare(model, optimizer)
  local first, last
  for _ = 1, 6 do
    local loss = model({ input_ids = ids, labels = ids }).loss
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    last = loss:item()
    first = first or last
  end
  return model, first, last
end

return M
