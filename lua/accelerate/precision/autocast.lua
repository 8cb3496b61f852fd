--- Automatic casting: `tensor.autocast`.
---
---   local loss = tensor.autocast({ dtype = "bfloat16" }, function() return loss_fn(model(x), y)
---     end)
---   loss:backward()   -- outside: gradients are computed in the types of the forward pass
---
--- Inside, matrix products and convolutions cast their float32 inputs to the lower type; sums,
--- exponentials, norms and losses run in float32; what joins tensors takes the widest type among
--- them; everything else takes its inputs as they come. The reference page of the ops says which
--- row does what. float64 is left alone, and so are in-place ops.
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

--- Runs fn(...) with automatic casting and returns what it returns. Regions nest: the inner one
--- holds, also when it turns casting off. A parameter is cast once in a region, and again only when
--- it was written meanwhile; the casts are freed where the outermost region ends.
---@param opts { dtype: ("bfloat16"|"float16")?, enabled: boolean?, cache_enabled: boolean? }? may
---  be left out
---@param fn function
---@param ... any what fn gets
---@return any ...
function M.autocast(...) return run(scope.arguments("autocast", ...)) end

--- Whether casting is on here.
---@return boolean
function M.is_autocast_enabled() return (core.autocast_state()) end

--- The lower type of the region, also where casting is off.
---@return accelerate.DType
function M.get_autocast_dtype()
  local _, dtype = core.autocast_state()
  return dtype
end

return M
