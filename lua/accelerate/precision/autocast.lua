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
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local M = {}

local OPTIONS = {
  device_type = { "string", optional = true, one_of = { "cpu", "cuda" } },
  dtype = { "string", optional = true, one_of = { "bfloat16", "float16" } },
  enabled = { "boolean", default = true },
  cache_enabled = { "boolean", default = true },
}
-- The lower type where none is given, which PyTorch has for a kind of device.
local LOWER = { cpu = "bfloat16", cuda = "float16" }
local ORDER = { "device_type", "dtype", "enabled", "cache_enabled" }

local function run(opts, fn, ...)
  opts = options.check("autocast", opts, OPTIONS)
  local enabled = opts.enabled
  if enabled and opts.device_type == "cuda" and core.device_count("cuda") == 0 then
    notice.main_once("autocast: there is no GPU, so that device_type = \"cuda\" casts nothing")
    enabled = false
  end
  local region = core.autocast_enter(enabled, opts.dtype or LOWER[opts.device_type or "cpu"],
    opts.cache_enabled)
  return scope.run(nil, function() core.autocast_leave(region) end, fn, ...)
end

-- PyTorch's arguments by position, before the function: a type of device first.
local function by_position(...)
  local given, n, first = { ... }, select("#", ...), nil
  for i = 1, math.min(n, #ORDER + 2) do
    if options.callable(given[i]) then
      first = i
      break
    end
  end
  if not first then scope.refuse("autocast", nil, given[n]) end
  return run(options.gather("autocast", ORDER, unpack(given, 1, first - 1)), unpack(given, first, n))
end

--- Runs fn(...) with automatic casting and returns its results. Regions nest, and the innermost
--- decides, also when it turns casting off. A parameter is cast once in a region, and again only
--- after a write to it. The casts are freed at the end of the outermost region.
---
--- A type of device may come first, as in PyTorch: autocast("cuda", fn), autocast("cuda", { dtype =
--- "bfloat16" }, fn). It chooses the type where none is given: float16 for "cuda", bfloat16 for
--- "cpu" and without one. "cuda" casts nothing where there is no GPU. Tensors are cast on whatever
--- device they are.
---@param opts { device_type: ("cpu"|"cuda")?, dtype: ("bfloat16"|"float16")?, enabled: boolean?,
---  cache_enabled: boolean? }? may be left out
---@param fn function
---@param ... any arguments of fn
---@return any ...
function M.autocast(opts, fn, ...)
  if type(opts) == "string" then return by_position(opts, fn, ...) end
  return run(scope.arguments("autocast", OPTIONS, opts, fn, ...))
end

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
