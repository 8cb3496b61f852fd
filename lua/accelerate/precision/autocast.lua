--- Automatic casting: `tensor.autocast`.
---
---   local loss = tensor.autocast({ dtype = "bfloat16" }, function()
---     return loss_fn(model(x), y)
---   end)
---   loss:backward()   -- outside: gradients are computed in the types of the forward pass
---
--- Inside, matrix products and convolutions cast float32 inputs to the lower type. Sums,
--- exponentials, norms and losses run in float32. Ops that join tensors take the widest type among
--- them. Other ops take inputs as they are. The reference page of the ops gives each op's policy.
--- float64 tensors and in-place ops are not cast.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local M = {}

local OPTIONS = {
  dtype = { "string", default = "bfloat16", one_of = { "bfloat16", "float16" } },
  enabled = { "boolean", default = true },
  cache_enabled = { "boolean", default = true },
}

local function run(opts, fn, ...)
  opts = options.check("autocast", opts, OPTIONS)
  local region = core.autocast_enter(opts.enabled, opts.dtype, opts.cache_enabled)
  return scope.run(nil, function() core.autocast_leave(region) end, fn, ...)
end

--- Runs fn(...) with automatic casting and returns its results. Regions nest, and the innermost
--- decides, also when it turns casting off. A parameter is cast once in a region, and again only
--- after a write to it. The casts are freed at the end of the outermost region.
---@param opts { dtype: ("bfloat16"|"float16")?, enabled: boolean?, cache_enabled: boolean? }? may
---  be left out
---@param fn function
---@param ... any arguments of fn
---@return any ...
function M.autocast(...) return run(scope.arguments("autocast", OPTIONS, ...)) end

--- Returns whether casting is on here.
---@return boolean
function M.is_autocast_enabled() return (core.autocast_state()) end

--- Returns the lower type of the region, also when casting is off.
---@return accelerate.DType
function M.get_autocast_dtype()
  local _, dtype = core.autocast_state()
  return dtype
end

return M
