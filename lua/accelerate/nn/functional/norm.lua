--- nn.functional: instance normalisation and local response normalisation, built from ops.

local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local M = {}

-- Sets running = (1 - momentum) running + momentum stat, where stat is the mean over the samples.
local function track(x, running_mean, running_var, momentum)
  core.no_grad(function()
    local rows = x:detach():flatten(3)
    running_mean:mul_(1 - momentum):add_(rows:mean(3):mean(1) * momentum)
    running_var:mul_(1 - momentum):add_(rows:var(3):mean(1) * momentum)
  end)
end

local ORDER = { "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps" }
local TENSOR = { "tensor", optional = true }
local OPTIONS = {
  running_mean = TENSOR, running_var = TENSOR, weight = TENSOR, bias = TENSOR,
  use_input_stats = { "boolean", default = true },
  momentum = { "number", default = 0.1 },
  eps = { "number", default = 1e-5, min = 0 },
}

--- Normalises each channel of each sample of (n, c, ..) over the dims after it, then scales and
--- shifts it: `instance_norm(x, running_mean?, running_var?, weight?, bias?, use_input_stats =
--- true, momentum = 0.1, eps = 1e-5)`. The last arguments may be named in a table.
---@param x accelerate.Tensor
---@param running_mean? accelerate.Tensor|table (c); updated when use_input_stats is true
---@param ... any running_var (c), weight (c), bias (c), use_input_stats (false: normalise with
---  running_mean and running_var), momentum, eps
---@return accelerate.Tensor
function M.instance_norm(x, running_mean, ...)
  local o = options.check("instance_norm", options.gather("instance_norm", ORDER, running_mean, ...), OPTIONS)
  if not core.is_tensor(x) or x:dim() < 3 then
    options.fail("instance_norm: x: expected a tensor (n, c, ..) of at least 3 dims, got %s",
      core.is_tensor(x) and lists.shape_text(x) or type(x))
  end
  if (o.running_mean == nil) ~= (o.running_var == nil) then
    options.fail("instance_norm: running_mean and running_var go together")
  end
  if not o.use_input_stats then
    if not o.running_mean then
      options.fail("instance_norm: use_input_stats = false needs running_mean and running_var")
    end
    return core.batch_norm(x, o.running_mean, o.running_var, o.weight, o.bias, false, 0, o.eps)
  end
  local shape = x.shape
  if x:numel() == shape[1] * shape[2] then
    options.fail("instance_norm: a channel of one element has no variance to speak of (shape %s)",
      lists.shape_text(x))
  end
  if o.running_mean then track(x, o.running_mean, o.running_var, o.momentum) end
  return core.group_norm(x, shape[2], o.weight, o.bias, o.eps)
end

local LRN_ORDER = { "alpha", "beta", "k" }
local LRN = { alpha = { "number", default = 1e-4 }, beta = { "number", default = 0.75 },
  k = { "number", default = 1 } }

--- Divides by (k + alpha * mean of x^2 over `size` neighbouring channels)^beta.
---@param x accelerate.Tensor (n, c, ..)
---@param size integer channels in a neighbourhood
---@param ... any alpha = 1e-4, beta = 0.75, k = 1, or a table of them
---@return accelerate.Tensor
function M.local_response_norm(x, size, ...)
  local where = "local_response_norm"
  local o = options.check(where, options.gather(where, LRN_ORDER, ...), LRN)
  options.value(where, "size", size, { "integer", min = 1 })
  if not core.is_tensor(x) or x:dim() < 3 then
    options.fail("%s: expected (n, c, ..) of at least 3 dims, got %s", where,
      core.is_tensor(x) and lists.shape_text(x) or type(x))
  end
  if x:numel() == 0 then return x end
  local shape = x.shape
  -- windows over the channels, as rows of images whose channels are the positions: those lie side
  -- by side
  local whole = x.dtype == "int64" -- PyTorch cuts means of integers to integers
  local squares = whole and x:square():double() or x:square()
  local rows = squares:reshape(shape[1], shape[2], -1):transpose(2, 3):unsqueeze(4)
  local mean = core.avg_pool2d(rows, { size, 1 }, 1, { math.floor(size / 2), 0 })
  mean = mean:narrow(3, 1, shape[2]):squeeze(4):transpose(2, 3):reshape(shape)
  if whole then mean = mean:long() end
  return x / (mean * o.alpha + o.k) ^ o.beta
end

return M
