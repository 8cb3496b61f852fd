--- nn.functional: functions that PyTorch keeps beside the modules: in-place activations, older
--- names, attention with its parameters as arguments.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local M = {}

local function check(where, name, x)
  if not core.is_tensor(x) then
    options.fail("%s: %s: expected a tensor, got %s", where, name, options.show(x))
  end
end

-- The op's in-place form.
local function in_place(name)
  return function(x, ...)
    check(name, "x", x)
    return x[name](x, ...)
  end
end

--- Writes relu into x itself.
---@type fun(x: accelerate.Tensor): accelerate.Tensor
M.relu_ = in_place "relu_"
--- Writes elu into x itself; alpha is 1 by default.
---@type fun(x: accelerate.Tensor, alpha?: number): accelerate.Tensor
M.elu_ = in_place "elu_"
--- Writes celu into x itself; alpha is 1 by default.
---@type fun(x: accelerate.Tensor, alpha?: number): accelerate.Tensor
M.celu_ = in_place "celu_"
--- Writes selu into x itself.
---@type fun(x: accelerate.Tensor): accelerate.Tensor
M.selu_ = in_place "selu_"
--- Writes hardtanh into x itself; the limits are -1 and 1 by default.
---@type fun(x: accelerate.Tensor, min_val?: number, max_val?: number): accelerate.Tensor
M.hardtanh_ = in_place "hardtanh_"
--- Writes leaky_relu into x itself; negative_slope is 0.01 by default.
---@type fun(x: accelerate.Tensor, negative_slope?: number): accelerate.Tensor
M.leaky_relu_ = in_place "leaky_relu_"
--- Writes value into x where it is not above the threshold.
---@type fun(x: accelerate.Tensor, threshold: number, value: number): accelerate.Tensor
M.threshold_ = in_place "threshold_"

--- rrelu into x itself.
---@param x accelerate.Tensor
---@param ... any lower = 1/8, upper = 1/3, training = false, or a table of them
---@return accelerate.Tensor x
function M.rrelu_(x, ...)
  check("rrelu_", "x", x)
  return x:copy_(require("accelerate.nn.functional").rrelu(x:clone(), ...))
end

--- Convolves over time with the batch in the middle.
---@param x accelerate.Tensor (time, batch, in channels)
---@param weight accelerate.Tensor (width, in channels, out channels)
---@param bias accelerate.Tensor (out channels)
---@param pad? integer zeros at both ends, default 0
---@return accelerate.Tensor (time, batch, out channels)
function M.conv_tbc(x, weight, bias, pad)
  check("conv_tbc", "x", x)
  check("conv_tbc", "weight", weight)
  check("conv_tbc", "bias", bias)
  if x.ndim ~= 3 or weight.ndim ~= 3 or bias.ndim ~= 1 then
    options.fail("conv_tbc: expected (time, batch, in), (width, in, out) and (out), got %s, %s and %s",
      options.show(x), options.show(weight), options.show(bias))
  end
  pad = options.value("conv_tbc", "pad", pad == nil and 0 or pad, { "integer", min = 0 })
  return core.conv1d(x:permute(2, 3, 1), weight:permute(3, 2, 1), bias, 1, pad):permute(3, 1, 2)
end

local CROSS = { linear_bias = { "tensor", optional = true }, weight = { "tensor", optional = true },
  reduction = { "string", default = "mean", one_of = { "mean", "sum", "none" } },
  ignore_index = { "integer", default = -100 },
  label_smoothing = { "number", default = 0, min = 0, max = 1 } }

--- cross_entropy of linear(input, linear_weight).
---@param input accelerate.Tensor (in) or (n, in)
---@param linear_weight accelerate.Tensor (classes, in), or (classes, d1 ..., in) for targets of
---  more dims
---@param target accelerate.Tensor classes (n, d1 ...) in int64, or probabilities (n, classes, d1
---  ...)
---@param opts? { linear_bias: accelerate.Tensor, weight: accelerate.Tensor, reduction: string,
---  ignore_index: integer, label_smoothing: number } linear_bias (classes, d1 ...); the others as
---  for cross_entropy
---@return accelerate.Tensor
function M.linear_cross_entropy(input, linear_weight, target, opts)
  local where = "linear_cross_entropy"
  local o = options.check(where, opts, CROSS)
  check(where, "input", input)
  check(where, "linear_weight", linear_weight)
  check(where, "target", target)
  local shape, n = linear_weight.shape, linear_weight.ndim
  if n < 2 or input.ndim < 1 or input.ndim > 2 or input.shape[input.ndim] ~= shape[n] then
    options.fail("%s: expected input (n, in) and linear_weight (classes, ..., in), got %s and %s", where,
      options.show(input), options.show(linear_weight))
  end
  local logits = core.linear(input, linear_weight:reshape(-1, shape[n]),
    o.linear_bias and o.linear_bias:reshape(-1) or nil)
  if n > 2 then
    local sizes = { input.ndim == 2 and input.shape[1] or nil }
    for d = 1, n - 1 do sizes[#sizes + 1] = shape[d] end
    logits = logits:reshape(sizes)
  end
  return core.cross_entropy(logits, target, { weight = o.weight, reduction = o.reduction,
    ignore_index = o.ignore_index, label_smoothing = o.label_smoothing })
end

--- interpolate with mode "nearest".
---@param x accelerate.Tensor
---@param opts { size: integer|integer[], scale_factor: number|number[] } one of the two
---@return accelerate.Tensor
function M.upsample_nearest(x, opts)
  local given = options.check("upsample_nearest", opts, { size = { "integer|table", optional = true },
    scale_factor = { "number|table", optional = true } })
  given.mode = "nearest"
  return require("accelerate.nn.functional").interpolate(x, given)
end

--- interpolate with mode "bilinear" and align_corners = true.
---@param x accelerate.Tensor
---@param opts { size: integer|integer[], scale_factor: number|number[] } one of the two
---@return accelerate.Tensor
function M.upsample_bilinear(x, opts)
  local given = options.check("upsample_bilinear", opts, { size = { "integer|table", optional = true },
    scale_factor = { "number|table", optional = true } })
  given.mode, given.align_corners = "bilinear", true
  return require("accelerate.nn.functional").interpolate(x, given)
end

local OPTIONAL = { "tensor", optional = true }
local ATTENTION = {
  in_proj_weight = OPTIONAL, in_proj_bias = OPTIONAL, bias_k = OPTIONAL, bias_v = OPTIONAL,
  q_proj_weight = OPTIONAL, k_proj_weight = OPTIONAL, v_proj_weight = OPTIONAL,
  out_proj_weight = { "tensor" }, out_proj_bias = OPTIONAL,
  add_zero_attn = { "boolean", default = false },
  dropout_p = { "number", default = 0, min = 0, max = 1 },
  training = { "boolean", default = true },
  key_padding_mask = OPTIONAL,
  attn_mask = OPTIONAL,
  need_weights = { "boolean", default = true },
  average_attn_weights = { "boolean", default = true },
  is_causal = { "boolean", default = false },
}

--- nn.MultiheadAttention with its parameters as options.
---@param query accelerate.Tensor (L, N, E) or (L, E)
---@param key accelerate.Tensor (S, N, ..) or (S, ..)
---@param value accelerate.Tensor (S, N, ..) or (S, ..)
---@param embed_dim integer E
---@param num_heads integer
---@param opts table in_proj_weight (3 E, E), or q_proj_weight, k_proj_weight and v_proj_weight;
---  out_proj_weight (E, E); optional: in_proj_bias, out_proj_bias, bias_k, bias_v, add_zero_attn,
---  dropout_p = 0, training = true, key_padding_mask, attn_mask, need_weights = true,
---  average_attn_weights = true, is_causal = false
---@return accelerate.Tensor output (L, N, E) or (L, E)
---@return accelerate.Tensor? weights
function M.multi_head_attention_forward(query, key, value, embed_dim, num_heads, opts)
  local where = "multi_head_attention_forward"
  local o = options.check(where, opts, ATTENTION)
  options.value(where, "embed_dim", embed_dim, { "integer", min = 1 })
  options.value(where, "num_heads", num_heads, { "integer", min = 1 })
  if embed_dim % num_heads ~= 0 then
    options.fail("%s: embed_dim must be a multiple of num_heads, got %d and %d", where, embed_dim, num_heads)
  end
  if not o.in_proj_weight and not (o.q_proj_weight and o.k_proj_weight and o.v_proj_weight) then
    options.fail("%s: give in_proj_weight, or q_proj_weight, k_proj_weight and v_proj_weight", where)
  end
  if (o.bias_k == nil) ~= (o.bias_v == nil) then options.fail("%s: give both bias_k and bias_v", where) end
  local module = { training = o.training, _values = { embed_dim = embed_dim, num_heads = num_heads,
    in_proj_weight = o.in_proj_weight, in_proj_bias = o.in_proj_bias, q_proj_weight = o.q_proj_weight,
    k_proj_weight = o.k_proj_weight, v_proj_weight = o.v_proj_weight, bias_k = o.bias_k, bias_v = o.bias_v,
    add_zero_attn = o.add_zero_attn, dropout = o.dropout_p, batch_first = false,
    out_proj = { weight = o.out_proj_weight, bias = o.out_proj_bias } } }
  local results = { pcall(require("accelerate.nn.attention").MultiheadAttention._attend, module, query, key,
    value, o) }
  if not results[1] then options.fail("%s: %s", where, tostring(results[2])) end
  return results[2], results[3]
end

return M
