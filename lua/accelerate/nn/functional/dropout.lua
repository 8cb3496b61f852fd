--- nn.functional: dropout of whole channels, and dropout for SELU, built from ops.

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

-- SELU's scale times its alpha: minus the value of a dropped element
local ALPHA_PRIME = 1.7580993408473766

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
  local a = ((ALPHA_PRIME ^ 2 * o.p + 1) * (1 - o.p)) ^ -0.5
  local kept = core.dropout(core.ones_like(x), o.p, true, o.generator) * (1 - o.p)
  return x * (kept * a) + (kept - 1 + o.p) * (ALPHA_PRIME * a)
end

return M
