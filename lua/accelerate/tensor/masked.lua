--- Reductions and normalisations of what a mask is true for, under the names of torch.masked: what
--- is false counts as if it were not there. A mask is bool and is broadcast to x.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local options = require "accelerate.utils.options"

local huge = math.huge

local M = {}

-- x with `value` where the mask is false; without a mask x.
local function filled(where, x, mask, value)
  if not mask then return x end
  if mask.dtype ~= "bool" then options.fail("%s: mask: expected bool, got %s", where, mask.dtype) end
  if not core.is_tensor(value) then
    value = core.full({}, value, { dtype = x.dtype, device = x.device })
  end
  return core.where(mask:expand(x.shape), x, value)
end

local is_float = core._is_float
local function lowest(x)
  if is_float(x) then return -huge end
  return x.dtype == "bool" and 0 or define.functions.iinfo(x).min
end
local function highest(x)
  if is_float(x) then return huge end
  if x.dtype == "bool" then return 1 end
  -- of int64 no Lua number, but all bits of the lowest one inverted
  return core.full({}, lowest(x), { dtype = x.dtype, device = x.device }):bitwise_not()
end

local REDUCTION = "x:T dim:dims? keepdim:bool=false dtype:dtype? mask:T?"
local function public(name, signature, summary, fn)
  M[name] = define.within("masked", name, signature, summary,
    function(...) return fn("masked." .. name, ...) end)
end
local function reduction(name, summary, fn)
  public(name, REDUCTION, summary, function(where, x, dim, keepdim, dtype, mask)
    if dtype then x = x:to(dtype) end
    local out = fn(where, x, dim, keepdim, mask)
    return dtype and out:to(dtype) or out
  end)
end

-- How many elements count for each result.
local function count(where, x, dim, keepdim, mask)
  local one = core.ones({}, { dtype = "int64", device = x.device }):expand(x.shape)
  return filled(where, one, mask, 0):sum(dim, keepdim)
end

reduction("sum", "sum over dims", function(where, x, dim, keepdim, mask)
  return filled(where, x, mask, 0):sum(dim, keepdim)
end)
reduction("prod", "product over dims", function(where, x, dim, keepdim, mask)
  return filled(where, x, mask, 1):prod(dim, keepdim)
end)
reduction("amax", "largest element over dims", function(where, x, dim, keepdim, mask)
  return filled(where, x, mask, lowest(x)):amax(dim, keepdim)
end)
reduction("amin", "smallest element over dims", function(where, x, dim, keepdim, mask)
  return filled(where, x, mask, highest(x)):amin(dim, keepdim)
end)
reduction("mean", "mean over dims", function(where, x, dim, keepdim, mask)
  local sum = filled(where, x, mask, 0):sum(dim, keepdim)
  return sum / count(where, x, dim, keepdim, mask)
end)
reduction("logsumexp", "log(sum(exp(x))) over dims", function(where, x, dim, keepdim, mask)
  return filled(where, (is_float(x) or x:is_complex()) and x or x:float(), mask, -huge)
    :logsumexp(dim, keepdim)
end)

local ONE = "x:T dim:dim? keepdim:bool=false dtype:dtype? mask:T?"
for name, ends in pairs { argmax = lowest, argmin = highest } do
  public(name, ONE, ("0-based position of the %s element"):format(name == "argmax" and "largest"
    or "smallest"),
    function(where, x, dim, keepdim, dtype, mask)
      if dtype then x = x:to(dtype) end
      local at = core[name](filled(where, x, mask, ends(x)), dim, keepdim)
      return dtype and at:to(dtype) or at
    end)
end
public("median", ONE, "the median of what counts along dim (the lower of two); NaN where nothing does",
  function(where, x, dim, keepdim, dtype, mask)
    if dtype then x = x:to(dtype) end
    if not is_float(x) then options.fail("%s: expected a floating-point tensor, got %s", where, x.dtype) end
    local flat = x
    if not dim then
      flat, mask, dim = x:reshape(-1), mask and mask:expand(x.shape):reshape(-1), 1
      keepdim = false
    end
    return (filled(where, flat, mask, 0 / 0):nanmedian(dim, keepdim))
  end)

local RUNNING = "x:T dim:dim dtype:dtype? mask:T?"
for name, value in pairs { cumsum = 0, cumprod = 1 } do
  public(name, RUNNING, ("running %s along dim"):format(name == "cumsum" and "sums" or "products"),
    function(where, x, dim, dtype, mask)
      if dtype then x = x:to(dtype) end
      local out = filled(where, x, mask, value)[name](filled(where, x, mask, value), dim)
      return x.dtype == "bool" and out or out:to(x.dtype)
    end)
end

-- sum(|x|^ord)^(1/ord) over dims of what counts
local function norm(where, x, ord, dim, keepdim, mask)
  return filled(where, x, mask, ord == -huge and huge or 0):norm(ord, dim, keepdim)
end
public("norm", "x:T ord:num=2 dim:dims? keepdim:bool=false dtype:dtype? mask:T?", "the norm over dims",
  function(where, x, ord, dim, keepdim, dtype, mask)
    return norm(where, dtype and x:to(dtype) or x, ord, dim, keepdim, mask)
  end)
public("normalize", "x:T ord:num dim:dim eps:num=1e-12 dtype:dtype? mask:T?", "x / max(norm along dim, eps)",
  function(where, x, ord, dim, eps, dtype, mask)
    if dtype then x = x:to(dtype) end
    return filled(where, x, mask, 0) / norm(where, x, ord, dim, true, mask):clamp { min = eps }
  end)

local DEVIATION = "x:T dim:dims? unbiased:bool=true correction:num=1 keepdim:bool=false dtype:dtype? mask:T?"
local function variance(where, x, dim, unbiased, correction, keepdim, dtype, mask)
  if dtype then x = x:to(dtype) elseif not is_float(x) and not x:is_complex() then x = x:float() end
  local counted = count(where, x, dim, true, mask)
  local mean = filled(where, x, mask, 0):sum(dim, true) / counted
  local size = x:is_complex() and (x - mean):abs() or x - mean
  local square = filled(where, size:square(), mask, 0):sum(dim, keepdim)
  local divisor = keepdim and counted or counted:view(square.shape)
  -- of complex numbers a complex one, as PyTorch's
  return (square / (divisor - (unbiased and correction or 0)):clamp { min = 0 }):to(x.dtype)
end
public("var", DEVIATION, "variance over dims (unbiased = false: correction 0)", variance)
public("std", DEVIATION, "square root of var", function(...) return variance(...):sqrt() end)

for name, sign in pairs { softmax = 1, softmin = -1, log_softmax = 1 } do
  public(name, "x:T dim:dim dtype:dtype? mask:T?", ("%s along dim"):format(name),
    function(where, x, dim, dtype, mask)
      if dtype then x = x:to(dtype) end
      local row = core[name == "log_softmax" and name or "softmax"]
      return row(filled(where, sign == 1 and x or -x, mask, -huge), dim)
    end)
end

public("logaddexp", "a:T b:T dtype:dtype? input_mask:T? other_mask:T?",
  "log(exp(a) + exp(b)); what a mask is false for counts as -inf",
  function(where, a, b, dtype, input_mask, other_mask)
    if dtype then a, b = a:to(dtype), b:to(dtype) end
    return core.logaddexp(filled(where, a, input_mask, -huge), filled(where, b, other_mask, -huge))
  end)

return M
