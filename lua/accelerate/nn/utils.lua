--- nn.utils: functions over the gradients of many parameters.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

---@class accelerate.nn.utils
local M = { rnn = require "accelerate.nn.utils.rnn" }

local function list_of(where, params)
  if core.is_tensor(params) then return { params } end
  if type(params) ~= "table" or getmetatable(params) ~= nil then
    fail("%s: expected a list of tensors (model:parameters()), got %s", where, options.show(params))
  end
  for i = 1, #params do
    if not core.is_tensor(params[i]) then
      fail("%s: entry %d must be a tensor, got %s", where, i, options.show(params[i]))
    end
  end
  return params
end

local CLIP = { norm_type = { "number", default = 2, above = 0 }, error_if_nonfinite = { "boolean", default = false } }

--- Scales gradients in place so that their joint norm is at most max_norm: by max_norm / (norm + 1e-6) when that is below 1.
--- Parameters without a gradient are passed over.
---@param params accelerate.Tensor[]|accelerate.Tensor
---@param max_norm number at least 0
---@param opts? { norm_type: number, error_if_nonfinite: boolean } norm_type: 2; math.huge is the largest element
---@return accelerate.Tensor norm 0-d, before clipping
function M.clip_grad_norm_(params, max_norm, opts)
  local o = options.check("clip_grad_norm_", opts, CLIP)
  options.value("clip_grad_norm_", "max_norm", max_norm, { "number", min = 0 })
  return core.clip_grad_norm_(list_of("clip_grad_norm_", params), max_norm, o)
end

--- Limits every element of the gradients to -clip_value .. clip_value, in place.
---@param params accelerate.Tensor[]|accelerate.Tensor
---@param clip_value number at least 0
function M.clip_grad_value_(params, clip_value)
  options.value("clip_grad_value_", "clip_value", clip_value, { "number", min = 0 })
  params = list_of("clip_grad_value_", params)
  core.no_grad(function()
    for i = 1, #params do
      local grad = params[i].grad
      if grad then grad:clamp_(-clip_value, clip_value) end
    end
  end)
end

local NORM = { norm_type = { "number", default = 2, above = 0 } }

--- The joint norm of the gradients, as a number.
---@param params accelerate.Tensor[]|accelerate.Tensor
---@param opts? { norm_type: number }
---@return number
function M.grad_norm(params, opts)
  local o = options.check("grad_norm", opts, NORM)
  return core.grad_norm(list_of("grad_norm", params), o.norm_type)
end

return M
