--- nn.functional: dropout of whole channels, dropout for SELU, and random slopes, built from ops.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local M = {}

local ORDER = { "p", "training", "generator" }
local DROPOUT = {
  p = { "number", default = 0.5, min = 0, max = 1 },
  training = { "boolean", default = true },
  generator = { "Generator", optional = true },
}

local function check(where, x)
  if not core.is_tensor(x) then options.fail("%s: x must be a tensor, got %s", where, options.show(x)) end
end

local function channel_dropout(where, dims)
  return function(x, ...)
    local o = options.check(where, options.gather(where, ORDER, ...), DROPOUT)
    check(where, x)
    local shape = x.shape
    if #shape ~= dims + 2 and #shape ~= dims + 1 then
      options.fail("%s: expected %d dims, or %d without a batch, got [%s]", where, dims + 2, dims + 1,
        table.concat(shape, ", "))
    end
    if not o.training or o.p == 0 then return x end
    for d = 1, dims do shape[#shape - d + 1] = 1 end
    return x * core.dropout(core.ones(shape, { dtype = x.dtype, device = x.device }), o.p, true, o.generator)
  end
end

--- Zeroes whole channels of (n, c, l) with probability p and scales the others by 1 / (1 - p).
---@type fun(x: accelerate.Tensor, p?: number|{ p: number, training: boolean, generator:
---  accelerate.Generator }, ...: any): accelerate.Tensor
M.dropout1d = channel_dropout("dropout1d", 1)
--- Zeroes whole channels of (n, c, h, w) with probability p and scales the others by 1 / (1 - p).
---@type fun(x: accelerate.Tensor, p?: number|{ p: number, training: boolean, generator:
---  accelerate.Generator }, ...: any): accelerate.Tensor
M.dropout2d = channel_dropout("dropout2d", 2)

--- Zeroes whole channels of (n, c, d, h, w) with probability p and scales the others by 1 / (1 -
--- p).
---@type fun(x: accelerate.Tensor, p?: number|{ p: number, training: boolean, generator:
---  accelerate.Generator }, ...: any): accelerate.Tensor
M.dropout3d = channel_dropout("dropout3d", 3)

-- SELU's scale times its alpha: minus the value of a dropped element
local ALPHA_PRIME = 1.7580993408473766

-- Alpha dropout: sets x to SELU's lowest value where dropout has dropped an element of `ones`,
-- which is broadcast to x; then restores mean and variance.
local function with_lowest(x, ones, o)
  local a = ((ALPHA_PRIME ^ 2 * o.p + 1) * (1 - o.p)) ^ -0.5
  local kept = core.dropout(ones, o.p, true, o.generator) * (1 - o.p)
  return x * (kept * a) + (kept - 1 + o.p) * (ALPHA_PRIME * a)
end

--- Dropout for SELU: dropped elements become SELU's lowest value, and the result is scaled and
--- shifted to keep mean and variance.
---@param x accelerate.Tensor
---@param p? number|{ p: number, training: boolean, generator: accelerate.Generator } 0.5, true
---@param ... any training, generator
---@return accelerate.Tensor
function M.alpha_dropout(x, p, ...)
  local o = options.check("alpha_dropout", options.gather("alpha_dropout", ORDER, p, ...), DROPOUT)
  check("alpha_dropout", x)
  if not o.training or o.p == 0 then return x end
  if o.p == 1 then return x * 0 end
  return with_lowest(x, core.ones_like(x), o)
end

--- alpha_dropout of whole channels of (n, c, ..).
---@param x accelerate.Tensor
---@param p? number|{ p: number, training: boolean, generator: accelerate.Generator } 0.5, true
---@param ... any training, generator
---@return accelerate.Tensor
function M.feature_alpha_dropout(x, p, ...)
  local where = "feature_alpha_dropout"
  local o = options.check(where, options.gather(where, ORDER, p, ...), DROPOUT)
  check(where, x)
  if not o.training or o.p == 0 then return x end
  if x.ndim < 2 then options.fail("%s: expected (n, c, ..), got %s", where, options.show(x)) end
  if o.p == 1 then return x * 0 end
  local shape = x.shape
  for d = 3, #shape do shape[d] = 1 end
  return with_lowest(x, core.ones(shape, { dtype = x.dtype, device = x.device }), o)
end

local RRELU_ORDER = { "lower", "upper", "training", "generator" }
local RRELU = {
  lower = { "number", default = 1 / 8 }, upper = { "number", default = 1 / 3 },
  training = { "boolean", default = false }, generator = { "Generator", optional = true },
}

--- Multiplies negative elements with slopes that are drawn between lower and upper in training, and
--- with the mean of both otherwise.
---@param x accelerate.Tensor
---@param ... any lower = 1/8, upper = 1/3, training = false, generator, or a table of them
---@return accelerate.Tensor
function M.rrelu(x, ...)
  local o = options.check("rrelu", options.gather("rrelu", RRELU_ORDER, ...), RRELU)
  check("rrelu", x)
  if o.lower > o.upper then
    options.fail("rrelu: lower must not be above upper, got %g and %g", o.lower, o.upper)
  end
  if not o.training then return core.leaky_relu(x, (o.lower + o.upper) / 2) end
  local slopes = core.no_grad(function()
    return core.empty_like(x):uniform_(o.lower, o.upper, { generator = o.generator })
  end)
  return core.where(x:lt(0), x * slopes, x)
end

return M
