--- Mixed precision of an Accelerator: the casting context, and prepared models' forward inside it.
local autocast = require "accelerate.precision.autocast".autocast
local core = require "accelerate.core"
local operations = require "accelerate.collectives.operations"
local recording = require "accelerate.capture.recording"
local state = require "accelerate.state"

local M = {}

local is_tensor = core.is_tensor
local HALF = { float16 = true, bfloat16 = true }

local function is_half(value) return is_tensor(value) and HALF[value.dtype] ~= nil end

--- Returns `data` with its float16 and bfloat16 tensors converted to float32.
---@param data any nested values
---@return any
function M.convert_to_fp32(data)
  if is_tensor(data) then return HALF[data.dtype] and data:float() or data end
  return operations.recursively_apply(function(t) return t:float() end, data, is_half)
end

local function each_to_fp32(...)
  local n = select("#", ...)
  if n == 1 then return (M.convert_to_fp32((...))) end
  local values = { ... }
  for i = 1, n do values[i] = M.convert_to_fp32(values[i]) end
  return unpack(values, 1, n)
end

--- Returns a function that calls `fn` and converts its results.
---@param fn function
---@return function
function M.convert_outputs_to_fp32(fn)
  return function(...) return each_to_fp32(fn(...)) end
end

--- Returns `context(fn, ...)`, which runs a function with casting. Without mixed precision it only
--- calls it.
---@param handler accelerate.AutocastKwargs?
---@return fun(fn: function, ...): ...
function M.context(handler)
  local lower = state.lower_type()
  if not lower then return function(fn, ...) return fn(...) end end
  local opts = { dtype = lower }
  if handler then opts.enabled, opts.cache_enabled = handler.enabled, handler.cache_enabled end
  return function(fn, ...) return autocast(opts, fn, ...) end
end

-- Model -> its own former forward (false: its class's).
local wrapped = setmetatable({}, { __mode = "k" })

--- Makes `model.forward` run with casting and return float32. A second call for one model does
--- nothing.
---@param model accelerate.nn.Module
---@param handler accelerate.AutocastKwargs?
function M.wrap(model, handler)
  if wrapped[model] ~= nil or not state.lower_type() then return end
  local forward, own = model.forward, model._values.forward
  local context = M.context(handler)
  wrapped[model] = own or false
  model.forward = function(...) return each_to_fp32(context(forward, ...)) end
  recording.wrapped_forwards[model.forward] = wrapped[model]
end

--- Restores a model's former forward.
---@param model accelerate.nn.Module
function M.unwrap(model)
  if wrapped[model] == nil then return end
  model.forward = wrapped[model] or nil
  wrapped[model] = nil
end

return M
