--- The folders that Transformers wrote (gen_model_folders.py), each with what its model gave there.
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local json = require "accelerate.utils.json"

local M = { path = "spec/models/folders" }

--- Returns what a folder expects: inputs, outputs, gradients.
---@param name string
---@return table
function M.expected_of(name)
  return assert(json.decode(disk.read(M.path .. "/" .. name .. "/expected.json")))
end

--- Returns the inputs by name, on a device.
---@param expected table
---@param device? string default "cpu"
---@return table<string, accelerate.Tensor>
function M.inputs_of(expected, device)
  local inputs = {}
  for key, t in pairs(expected.inputs) do
    inputs[key] = core.tensor(t.values, { dtype = t.dtype }):view(t.shape):to(device or "cpu")
  end
  return inputs
end

return M
