--- Bytes that files hold under a type that tensors do not have: which type that is.

local M = {}

local types = setmetatable({}, { __mode = "k" })

--- Marks a uint8 tensor as the bits of a type of safetensors: "I8", "F8_E4M3".
---@param t accelerate.Tensor
---@param type string
---@return accelerate.Tensor t
function M.mark(t, type)
  types[t] = type
  return t
end

--- Returns the type that a tensor is written as, or nil: its own.
---@param t accelerate.Tensor
---@return string?
function M.type_of(t) return types[t] end

local NAMES = { I8 = "int8", F8_E4M3 = "float8_e4m3fn", F8_E5M2 = "float8_e5m2" }

--- Returns PyTorch's name of the type that a tensor is written as.
---@param t accelerate.Tensor
---@return string
function M.name_of(t) return NAMES[types[t]] or t.dtype end

return M
