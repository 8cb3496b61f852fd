--- nn.utils.fuse_conv_bn_eval and its like: a batch norm in eval mode is taken into the layer
--- before it.

local core = require "accelerate.core"
local deepcopy = require "accelerate.utils.copy"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"

local fail = options.fail

local M = {}

local STATS = { "running_mean", "running_var" }

local function check(where, layer, bn)
  if not Module._is_module(layer) then
    fail("%s: the layer must be a module, got %s", where, options.show(layer))
  end
  if not Module._is_module(bn) then fail("%s: bn must be a module, got %s", where, options.show(bn)) end
  if layer.training or bn.training then
    fail("%s: %s is in training mode; call eval() on both modules first", where,
      (layer.training and layer or bn).__name)
  end
  for _, name in ipairs(STATS) do
    if not core.is_tensor(bn[name]) then fail("%s: %s has no %s", where, bn.__name, name) end
  end
end

-- scale and shift of y * scale + shift, which is what the norm does.
local function scale_of(mean, variance, eps, weight, bias)
  local scale = core.rsqrt(variance + eps)
  if weight then scale = scale * weight end
  local shift = -(mean * scale)
  return scale, bias and shift + bias or shift
end

local function fused(weight, bias, scale, shift, shape)
  return core.no_grad(function()
    local new_weight = (weight * scale:reshape(shape)):to(weight.dtype)
    local new_bias = (bias and bias * scale + shift or shift):to((bias or weight).dtype)
    return parameter.new(new_weight, { requires_grad = weight.requires_grad }),
      parameter.new(new_bias, { requires_grad = (bias or weight).requires_grad })
  end)
end

--- Returns the weight and the bias of a convolution that does what a convolution with these and a
--- batch norm behind it do.
---@param conv_w accelerate.Tensor
---@param conv_b accelerate.Tensor?
---@param bn_rm accelerate.Tensor the running mean
---@param bn_rv accelerate.Tensor the running variance
---@param bn_eps number
---@param bn_w accelerate.Tensor?
---@param bn_b accelerate.Tensor?
---@param transpose? boolean|{ transpose: boolean } the weight is that of a transposed convolution
---@return accelerate.Tensor weight
---@return accelerate.Tensor bias
function M.fuse_conv_bn_weights(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, transpose)
  if type(transpose) == "table" then transpose = transpose.transpose end
  local shape = {}
  for i = 1, conv_w:dim() do shape[i] = 1 end
  shape[transpose and 2 or 1] = -1
  local scale, shift = scale_of(bn_rm, bn_rv, bn_eps, bn_w, bn_b)
  return fused(conv_w, conv_b, scale, shift, shape)
end

--- Returns a copy of a convolution that does what it and the batch norm behind it do. Both must be
--- in eval mode.
---@param conv accelerate.nn.Module
---@param bn accelerate.nn.Module
---@param transpose? boolean|{ transpose: boolean } it is a transposed convolution
---@return accelerate.nn.Module
function M.fuse_conv_bn_eval(conv, bn, transpose)
  check("fuse_conv_bn_eval", conv, bn)
  local made = deepcopy(conv)
  made.weight, made.bias = M.fuse_conv_bn_weights(conv.weight, conv.bias, bn.running_mean, bn.running_var,
    bn.eps, bn.weight, bn.bias, transpose)
  return made
end

--- Returns the weight and the bias of a linear layer that does what one with these and a batch norm
--- behind it do.
---@param linear_w accelerate.Tensor
---@param linear_b accelerate.Tensor?
---@param bn_rm accelerate.Tensor the running mean
---@param bn_rv accelerate.Tensor the running variance
---@param bn_eps number
---@param bn_w accelerate.Tensor?
---@param bn_b accelerate.Tensor?
---@return accelerate.Tensor weight
---@return accelerate.Tensor bias
function M.fuse_linear_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)
  local scale, shift = scale_of(bn_rm, bn_rv, bn_eps, bn_w, bn_b)
  return fused(linear_w, linear_b, scale, shift, { -1, 1 })
end

--- Returns a copy of a linear layer that does what it and the batch norm behind it do. Both must be
--- in eval mode.
---@param linear accelerate.nn.Module
---@param bn accelerate.nn.Module
---@return accelerate.nn.Module
function M.fuse_linear_bn_eval(linear, bn)
  check("fuse_linear_bn_eval", linear, bn)
  if bn.num_features ~= linear.out_features and bn.num_features ~= 1 then
    fail("fuse_linear_bn_eval: the batch norm must have %d features, those of the layer, or 1; it has %d",
      linear.out_features, bn.num_features)
  end
  local made = deepcopy(linear)
  made.weight, made.bias = M.fuse_linear_bn_weights(linear.weight, linear.bias, bn.running_mean,
    bn.running_var, bn.eps, bn.weight, bn.bias)
  return made
end

return M
