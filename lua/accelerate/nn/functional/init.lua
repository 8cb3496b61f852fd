--- nn.functional: the modules' computations as functions. Many of them are ops.

local core = require "accelerate.core"
local methods = require "accelerate.messages.methods"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local reduction = require "accelerate.nn.reduction"

---@class accelerate.nn.functional
local F = {
  linear = core.linear,                -- linear(x, weight, bias?): x weight^T + bias
  relu = core.relu,
  tanh = core.tanh,
  sigmoid = core.sigmoid,
  softmax = core.softmax,              -- softmax(x, dim)
  log_softmax = core.log_softmax,      -- log_softmax(x, dim)
  dropout = core.dropout,              -- dropout(x, { p = 0.5, training = true, generator = nil })
  -- cross_entropy(input, target, { weight, ignore_index = -100, reduction = "mean", label_smoothing
  -- = 0 })
  cross_entropy = core.cross_entropy,
  flatten = core.flatten,
  -- scaled_dot_product_attention(query, key, value, { attn_mask, dropout_p, is_causal, scale,
  -- enable_gqa })
  scaled_dot_product_attention = core.scaled_dot_product_attention,
  layer_norm = core.layer_norm,        -- layer_norm(x, normalized_shape, weight?, bias?, eps = 1e-5)
  rms_norm = core.rms_norm,            -- rms_norm(x, normalized_shape, weight?, eps?)
  group_norm = core.group_norm,        -- group_norm(x, num_groups, weight?, bias?, eps = 1e-5)
  one_hot = core.one_hot,              -- one_hot(x, num_classes?): int64
  -- pad(x, { before, after, .. } from the last dim on, mode = "constant", value = 0)
  pad = core.pad,
}

-- fn, whose errors name it whatever it is made of.
local function called_by(name, fn)
  local outer = core._named(name, fn)
  methods.stands_for(outer, fn)
  return outer
end

for _, part in ipairs { "distance", "dropout", "embedding", "fractional", "image", "loss", "norm", "others",
  "pooling", "resampling",
  "windows" } do
  for name, fn in next, require("accelerate.nn.functional." .. part) do
    assert(F[name] == nil, name)
    F[name] = called_by(name, fn)
  end
end

-- Ops under their own names.
for _, name in ipairs {
  "linear_gelu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus",
  "logsigmoid", "hardtanh", "hardsigmoid", "hardswish", "softshrink",
  "hardshrink", "threshold", "softsign", "tanhshrink", "prelu", "glu",
  "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
  "binary_cross_entropy_with_logits", "kl_div", "nll_loss",
} do F[name] = core[name] end

-- Losses whose order in PyTorch has size_average and reduce; see accelerate.nn.reduction.
for name, order in next, {
  cross_entropy = "weight size_average ignore_index reduce reduction label_smoothing",
  nll_loss = "weight size_average ignore_index reduce reduction",
  mse_loss = "size_average reduce reduction weight",
  l1_loss = "size_average reduce reduction weight",
  smooth_l1_loss = "size_average reduce reduction beta",
  binary_cross_entropy = "weight size_average reduce reduction",
  binary_cross_entropy_with_logits = "weight size_average reduce reduction pos_weight",
  kl_div = "size_average reduce reduction log_target",
} do F[name] = reduction.ordered(name, order, F[name]) end

-- Activations, and where PyTorch has `inplace` behind x: true rewrites x, and returns it.
for name, at in next, {
  relu = 1, relu6 = 1, selu = 1, silu = 1, mish = 1, hardsigmoid = 1, hardswish = 1, leaky_relu = 2, elu = 2,
  celu = 2, hardtanh = 3, threshold = 3,
} do
  local op = F[name]
  local function activation(x, ...)
    local n = select("#", ...)
    if n == 0 and type(x) == "table" and getmetatable(x) == nil and x.inplace ~= nil then
      local rest = {}  -- all by name
      for key, value in next, x do rest[key] = value end
      rest.x, rest.input = nil, nil
      if x.x == nil then x = x.input else x = x.x end
      return F[name](x, rest)
    end
    if n == 0 then return op(x) end
    local given, inplace = { ... }, nil
    local at_end = given[n]
    if type(at_end) == "table" and getmetatable(at_end) == nil and at_end.inplace ~= nil then
      given[n] = {}
      for key, value in next, at_end do given[n][key] = value end
      given[n].inplace = nil
      inplace = at_end.inplace
    elseif n >= at and type(given[at]) == "boolean" then
      inplace = table.remove(given, at)
      n = n - 1
    end
    if inplace == nil then return op(x, ...) end
    options.value(name, "inplace", inplace, { "boolean" })
    if not inplace then return op(x, unpack(given, 1, n)) end
    if not core.is_tensor(x) then options.fail("%s: x must be a tensor, got %s", name, options.show(x)) end
    return x[name .. "_"](x, unpack(given, 1, n))
  end
  methods.stands_for(activation, op)
  F[name] = activation
end

-- Dropout behind whose p and training PyTorch has `inplace`: x's memory takes the result, unless
-- that is recorded; the tape would have to keep a copy.
for _, name in ipairs { "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
  "feature_alpha_dropout" } do
  local op = F[name]
  F[name] = function(x, ...)
    local n = select("#", ...)
    local at_end = n > 0 and (select(n, ...))
    local named = type(at_end) == "table" and getmetatable(at_end) == nil and at_end.inplace ~= nil
    if not named and not (n >= 3 and type((select(3, ...))) == "boolean") then return op(x, ...) end
    local given, inplace = { ... }, named and at_end.inplace
    if named then
      given[n] = {}
      for key, value in next, at_end do given[n][key] = value end
      given[n].inplace = nil
    else
      inplace = table.remove(given, 3)
      n = n - 1
    end
    options.value(name, "inplace", inplace, { "boolean" })
    local y = op(x, unpack(given, 1, n))
    if inplace and not rawequal(x, y) and not y.requires_grad then return x:copy_(y) end
    return y
  end
  methods.stands_for(F[name], op)
end

-- PyTorch takes true and false as the value that masks are padded with: 1 and 0, also in a table of
-- options.
local function numbered(v)
  if type(v) == "boolean" then return v and 1 or 0 end
  if type(v) ~= "table" or type(v.value) ~= "boolean" then return v end
  local copy = {}
  for name, option in next, v do copy[name] = option end
  copy.value = numbered(v.value)
  return copy
end

local function pad(x, sizes, mode, value, ...)
  return core.pad(numbered(x), numbered(sizes), numbered(mode), numbered(value), ...)
end
F.pad = pad
methods.stands_for(pad, core.pad)

-- PyTorch's _stacklevel, a number, stands between dim and dtype, and has no effect.
for _, name in ipairs { "softmax", "log_softmax" } do
  local op = F[name]
  F[name] = function(x, dim, level, ...)
    if type(level) == "number" or level == nil and select("#", ...) > 0 then return op(x, dim, ...) end
    return op(x, dim, level, ...)
  end
  methods.stands_for(F[name], op)
end

--- Returns softmax(-x) along a dim.
---@param x accelerate.Tensor
---@param dim integer
---@param ... any dtype: the type to compute in; without it a floating-point x is expected. As in
---  PyTorch a number, without effect, may stand before it.
---@return accelerate.Tensor
function F.softmin(x, dim, ...)
  if not core.is_tensor(x) then options.fail("softmin: x must be a tensor, got %s", options.show(x)) end
  return F.softmax(-x, dim, ...)
end
F.softmin = called_by("softmin", F.softmin)

--- Returns softmax of (logits + Gumbel draws) / tau: see the op of this name.
---@param logits accelerate.Tensor
---@param ... any tau = 1, hard = false, dim = -1, generator, or a table of them. PyTorch's eps,
---  which has no effect, may stand before dim.
---@return accelerate.Tensor
function F.gumbel_softmax(logits, ...)
  if not core.is_tensor(logits) then
    options.fail("gumbel_softmax: logits must be a tensor, got %s", options.show(logits))
  end
  local tau, hard, eps = ...
  local fraction = type(eps) == "number" and eps % 1 ~= 0
  if fraction or type(eps) ~= "table" and type((select(4, ...))) == "number" then
    return logits:gumbel_softmax(tau, hard, select(4, ...))
  end
  return logits:gumbel_softmax(...)
end

-- The order of arguments of functions that read a table of options; see accelerate.utils.positions.
-- What is not in brackets is a tensor.
local REDUCED = " [size_average] [reduce] [reduction]"
local ORDERS = {
  normalize = "x [p] [dim] [eps]",
  cosine_similarity = "x1 x2 [dim] [eps]",
  pairwise_distance = "x1 x2 [p] [eps] [keepdim]",
  cdist = "x1 x2 [p] [compute_mode]",
  interpolate = "x [size] [scale_factor] [mode] [align_corners] [recompute_scale_factor] [antialias]",
  upsample = "x [size] [scale_factor] [mode] [align_corners]",
  hinge_embedding_loss = "input target [margin]" .. REDUCED,
  soft_margin_loss = "input target" .. REDUCED,
  margin_ranking_loss = "input1 input2 target [margin]" .. REDUCED,
  cosine_embedding_loss = "input1 input2 target [margin]" .. REDUCED,
  triplet_margin_loss = "anchor positive negative [margin] [p] [eps] [swap]" .. REDUCED,
  triplet_margin_with_distance_loss = "anchor positive negative",
  multi_margin_loss = "input target [p] [margin] [weight]" .. REDUCED,
  multilabel_margin_loss = "input target" .. REDUCED,
  multilabel_soft_margin_loss = "input target [weight]" .. REDUCED,
  poisson_nll_loss = "input target [log_input] [full] [size_average] [eps] [reduce] [reduction]",
}

-- fn, which gets tensors for these names and then its options.
local function of_tensors(title, names, fn)
  local function checked(...)
    for i, name in ipairs(names) do
      local value = (select(i, ...))
      if not core.is_tensor(value) then
        options.fail("%s: %s must be a tensor, got %s", title, name, options.show(value))
      end
    end
    local n = select("#", ...)
    if n == #names then return fn(...) end
    local given = { ... }
    given[n] = reduction.settle(title, given[n])
    return fn(unpack(given, 1, n))
  end
  methods.stands_for(checked, fn)
  return checked
end

for name, order in next, ORDERS do
  local names = {}
  for word in order:gmatch "%S+" do
    if word:sub(1, 1) ~= "[" then names[#names + 1] = word end
  end
  F[name] = positions.arrange(name, order, of_tensors(name, names, F[name]))
end

-- What else may be given by name, too.
for name, order in next, {
  affine_grid = "theta size ...", unfold = "x kernel_size ...", fold = "x output_size kernel_size ...",
  ctc_loss = "log_probs targets input_lengths target_lengths ...", gaussian_nll_loss = "input target var ...",
  embedding_bag = "input weight ...", gumbel_softmax = "logits ...", local_response_norm = "x size ...",
  lp_pool1d = "x norm_type kernel_size ...", lp_pool2d = "x norm_type kernel_size ...",
  lp_pool3d = "x norm_type kernel_size ...", max_unpool1d = "x indices kernel_size ...",
  max_unpool2d = "x indices kernel_size ...", max_unpool3d = "x indices kernel_size ...",
} do F[name] = positions.arrange(name, order, F[name]) end

return require("accelerate.utils.properties").strict("accelerate.nn.functional", F)
