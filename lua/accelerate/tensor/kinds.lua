--- Operands of functions written in Lua in the type that rows would bring them into.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"

local M = {}

local HALF = { float16 = true, bfloat16 = true }

--- Returns a and b in the type to compute in, and the type of the result: the default one for
--- integers, and halves are computed in float32. One of a and b may be a number.
---@param a accelerate.Tensor|number
---@param b accelerate.Tensor|number
---@return accelerate.Tensor a
---@return accelerate.Tensor b
---@return accelerate.DType dtype
function M.floats(a, b)
  local dtype = define.functions.result_type(a, b)
  if not dtype:find("float", 1, true) and not dtype:find("complex", 1, true) then
    dtype = core.get_default_dtype()
  end
  local wide = HALF[dtype] and "float32" or dtype
  local function cast(v, other)
    return core.is_tensor(v) and v:to(wide) or core.tensor(v, { dtype = wide, device = other.device })
  end
  return cast(a, b), cast(b, a), dtype
end

--- Returns x in the type to compute a function of floats in, and the type of the result.
---@param x accelerate.Tensor
---@return accelerate.Tensor x
---@return accelerate.DType dtype
function M.float(x)
  if not core._is_float(x) and not x:is_complex() then x = x:to(core.get_default_dtype()) end
  if HALF[x.dtype] then return x:float(), x.dtype end
  return x, x.dtype
end

local RANKS = { bool = 0, uint8 = 1, int32 = 1, int64 = 1, complex64 = 3, complex128 = 3 }

--- Returns whether a result may be written into a tensor of another type: into bool only bool, into
--- integers no floats, into real numbers no complex ones.
---@param from accelerate.DType of the result
---@param into accelerate.DType of the tensor
---@return boolean
function M.fits(from, into)
  return (RANKS[from] or 2) <= (RANKS[into] or 2)
end

return M
