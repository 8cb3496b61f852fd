--- Forms of ops: what an argument after `+` in a row of host/core/ops/*.def makes of it. Each
--- function gets whether the result goes into the first argument (x:add_), then the row's
--- arguments as accelerate.tensor.define describes them.
local core = require "accelerate.core"
local define = require "accelerate.tensor.composed"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"


local M = {}

-- The result, or x with the result written into it.
local function place(inplace, x, result)
  if not inplace then return result end
  return x:copy_(result)
end

-- x, or a copy of it where the gradient needs x as it was.
local function kept(inplace, x)
  return inplace and core.is_grad_enabled() and x:clone() or x
end

local is_float = core._is_float

-- ---- dtype: x is cast first

local function cast(name, x, dtype)
  if x.dtype:find("complex", 1, true) and not dtype:find("complex", 1, true) then
    options.fail("%s: dtype: %s as %s would lose the imaginary part; take real, imag or abs first", name,
      x.dtype, dtype)
  end
  return x:to(dtype)
end

for _, name in ipairs { "sum", "mean", "prod", "nansum" } do
  M[name] = function(_, x, dim, keepdim, dtype)
    return core[name](cast(name, x, dtype), dim, keepdim):to(dtype)
  end
end
for _, name in ipairs { "cumsum", "cumprod", "softmax", "log_softmax" } do
  M[name] = function(_, x, dim, dtype) return core[name](cast(name, x, dtype), dim):to(dtype) end
end

for _, name in ipairs { "var", "std" } do
  M[name] = function(_, x, dim, keepdim, correction, unbiased)
    return core[name](x, { dim = dim, keepdim = keepdim, correction = unbiased and correction or 0 })
  end
end

function M.norm(_, x, p, dim, keepdim, dtype, ord)
  if dtype then x = cast("norm", x, dtype) end
  if ord == nil then return core.norm(x, p, dim, keepdim) end
  if ord == "fro" then
    if dim and #dim > 2 then options.fail('norm: p = "fro": expected at most two dims, got %d', #dim) end
    return core.norm(x, 2, dim, keepdim)
  end
  if ord == "nuc" then
    if not dim and x.ndim ~= 2 then
      options.fail('norm: p = "nuc": expected a matrix or two dims, got shape %s', lists.shape_text(x))
    end
    return require("accelerate.tensor.linalg").matrix_norm(x, "nuc", dim, keepdim)
  end
  options.fail('norm: argument 2 (p): expected a number, "fro" or "nuc", got %s', options.show(ord))
end

-- ---- arithmetic

local INTEGRAL = { bool = true, uint8 = true, int8 = true, int16 = true, int32 = true, int64 = true }

local function is_bool(x) return type(x) == "boolean" or core.is_tensor(x) and x.dtype == "bool" end

for _, name in ipairs { "add", "sub" } do
  M[name] = function(inplace, a, b, alpha)
    if alpha == 1 then return (inplace and a[name .. "_"] or core[name])(a, b) end
    if is_bool(a) and is_bool(b) and alpha ~= 0 then
      options.fail("%s: alpha: expected 0 or 1 for tensors of bool, got %g", name, alpha)
    end
    local dtype = define.functions.result_type(a, b)
    if INTEGRAL[dtype] and alpha ~= math.floor(alpha) then
      options.fail("%s: alpha: expected an integer for tensors of integers, got %g", name, alpha)
    end
    -- The product is made in the sum's type: b's own may not hold it (-1 times an uint8).
    if type(b) == "boolean" then b = b and 1 or 0 end
    local scaled = core.is_tensor(b) and b:to(dtype) * alpha or b * alpha
    if type(b) == "number" and not INTEGRAL[dtype] and not is_float(a) then -- 2 * 2.5 stays a float
      scaled = core.tensor(scaled, { dtype = dtype, device = a.device })
    end
    if is_bool(a) and is_bool(b) then scaled = core.is_tensor(b) and core.zeros_like(b) or false end
    if inplace then return a[name .. "_"](a, scaled) end
    return core[name](a, scaled)
  end
end

-- a / b rounded toward 0. Integers stay integers.
local function truncated(a, b)
  if is_float(a) or is_float(b) or type(b) == "number" and b ~= math.floor(b) then
    return core.div(a, b):trunc()
  end
  return core.floor_divide(core.sub(a, core.fmod(a, b)), b)
end
local function unrecorded(x) return core.is_tensor(x) and x:detach() or x end
function M.div(inplace, x, b, mode)
  if is_bool(x) and is_bool(b) then
    options.fail("div: rounding_mode: not defined for bool, got %s", options.show(mode))
  end
  if type(b) == "boolean" then b = b and 1 or 0 end
  local a = kept(inplace, x)
  local rounded = mode == "trunc" and truncated or core.floor_divide
  local result = rounded(unrecorded(a), unrecorded(b))
  local recorded = core.is_grad_enabled()
    and (is_float(a) and a.requires_grad or is_float(b) and b.requires_grad)
  if recorded then -- steps have no slope: a result with a record whose gradients are 0
    result = core.where(core.zeros({}, { dtype = "bool", device = result.device }), a + b, result)
  end
  return place(inplace, x, result)
end

function M.round(inplace, x, decimals)
  if decimals == 0 then return place(inplace, x, x:round()) end
  if not is_float(x) then
    options.fail("round: decimals: expected 0 for a tensor of %s, got %d", x.dtype, decimals)
  end
  local scale = 10 ^ math.abs(decimals)
  if decimals > 0 then return place(inplace, x, (x * scale):round() / scale) end
  return place(inplace, x, (x / scale):round() * scale)
end

for _, entry in ipairs { { "max", "maximum" }, { "min", "minimum" } } do
  local name, pair = entry[1], entry[2]
  M[name] = function(_, x, dim, _, other)
    if not core.is_tensor(other) then
      options.fail("%s: argument 2: expected a dim or a tensor, got %s", name, options.show(other))
    end
    if dim then options.fail("%s: expected a dim or another tensor, got both", name) end
    return core[pair](x, other)
  end
end

-- ---- values as 0-d tensors

local function check_value(name, place_of, x, value)
  if not core.is_tensor(value) then
    options.fail("%s: argument %d (value): expected a number or a tensor, got %s", name, place_of,
      options.show(value))
  end
  if value.ndim > 0 then
    options.fail("%s: argument %d (value): expected a number, got tensor %s %s; a tensor must have 0 dims",
      name,
      place_of, value.dtype, lists.shape_text(value))
  end
  if is_float(value) and not is_float(x) and not x:is_complex() then
    options.fail("%s: a value of %s does not fit a tensor of %s", name, value.dtype, x.dtype)
  end
  return value:to { dtype = x.dtype, device = x.device }
end

function M.masked_fill(inplace, x, mask, _, value)
  if mask.dtype ~= "bool" then options.fail("masked_fill: mask must be bool, got %s", mask.dtype) end
  return place(inplace, x, core.where(mask, check_value("masked_fill", 3, x, value), x))
end

function M.index_fill(inplace, x, dim, index, _, value)
  value = check_value("index_fill", 4, x, value)
  -- a place that is listed twice is written once
  local mask = core.zeros(x.shape, { dtype = "uint8", device = x.device }):index_fill(dim, index, 1):eq(1)
  return place(inplace, x, core.where(mask, value, x))
end

-- ---- positions

function M.scatter(inplace, x, dim, index, src, reduce)
  if not core.is_tensor(src) then
    src = core.full(index.shape, src, { dtype = x.dtype, device = x.device })
  end
  if reduce == "add" then return x[inplace and "scatter_add_" or "scatter_add"](x, dim, index, src) end
  return place(inplace, x, define.functions.scatter_reduce(kept(inplace, x), dim, index, src,
    "prod"))
end

function M.nonzero(_, x, as_tuple)
  if not as_tuple then return x:nonzero() end
  if x.ndim == 0 then x = x:view(1) end
  return x:nonzero():unbind(2)
end

local function as_int32(x, wanted) return wanted and x:to("int32") or x end

function M.searchsorted(_, sequence, values, right, side, out_int32, sorter)
  if side == "left" and right then
    options.fail('searchsorted: right = true and side = "left" contradict each other')
  end
  if sorter then
    if sorter.dtype ~= "int64" or lists.shape_text(sorter) ~= lists.shape_text(sequence) then
      options.fail("searchsorted: sorter: expected int64 of the sequence's shape, got %s",
        options.show(sorter))
    end
    sequence = sequence:gather(-1, sorter)
  end
  return as_int32(core.searchsorted(sequence, values, right or side == "right"), out_int32)
end

function M.bucketize(_, x, boundaries, right, out_int32)
  return as_int32(core.bucketize(x, boundaries, right), out_int32)
end

function M.repeat_interleave(_, x, repeats, dim, output_size)
  local result = core.repeat_interleave(x, repeats, dim)
  local size = result.shape[dim or 1]
  if size ~= output_size then
    options.fail("repeat_interleave: output_size is %d, but the repeats come to %d", output_size, size)
  end
  return result
end

function M.unique(_, x, sorted, return_inverse, return_counts, dim)
  if not dim then return core.unique(x, sorted, return_inverse, return_counts) end
  return require("accelerate.tensor.slices").unique(x, dim, return_inverse, return_counts, true)
end

-- ---- tensordot

local function check_dims(x, name, list)
  if type(list) == "number" then list = { list } end
  if type(list) ~= "table" then
    options.fail("tensordot: dims of %s: expected a list, got %s", name, options.show(list))
  end
  local taken, out = {}, {}
  for i, dim in ipairs(list) do
    local d = type(dim) == "number" and dim < 0 and dim + x.ndim + 1 or dim
    if type(d) ~= "number" or d ~= math.floor(d) or d < 1 or d > x.ndim then
      options.fail("tensordot: dims of %s: %s is out of range; expected 1..%d or -%d..-1", name,
        options.show(dim), x.ndim, x.ndim)
    end
    if taken[d] then options.fail("tensordot: dims of %s: dim %d is listed twice", name, d) end
    taken[d], out[i] = true, d
  end
  local free = {}
  for d = 1, x.ndim do if not taken[d] then free[#free + 1] = d end end
  return out, free
end

local function permuted(x, first, second)
  local order = {}
  for _, d in ipairs(first) do order[#order + 1] = d end
  for _, d in ipairs(second) do order[#order + 1] = d end
  return #order > 0 and x:permute(order) or x
end

function M.tensordot(_, a, b, _, both)
  if type(both) ~= "table" or #both ~= 2 then
    options.fail("tensordot: dims: expected a number or two lists, got %s", options.show(both))
  end
  local of_a, free_a = check_dims(a, "a", both[1])
  local of_b, free_b = check_dims(b, "b", both[2])
  if #of_a ~= #of_b then
    options.fail("tensordot: dims: %d of a and %d of b do not go together", #of_a, #of_b)
  end
  local shape, inner = {}, 1
  for i, d in ipairs(of_a) do
    local m, n = a.shape[d], b.shape[of_b[i]]
    if m == 1 then b = b:sum(of_b[i], true) -- PyTorch broadcasts a size of 1
    elseif n == 1 then a = a:sum(d, true)
    elseif m ~= n then
      options.fail("tensordot: dim %d of %s and dim %d of %s have sizes %d and %d", d, options.show(a),
        of_b[i],
        options.show(b), m, n)
    end
    inner = inner * math.min(m, n)
  end
  local rows, columns = 1, 1
  for _, d in ipairs(free_a) do shape[#shape + 1], rows = a.shape[d], rows * a.shape[d] end
  for _, d in ipairs(free_b) do shape[#shape + 1], columns = b.shape[d], columns * b.shape[d] end
  return permuted(a, free_a, of_a):reshape(rows, inner)
    :matmul(permuted(b, of_b, free_b):reshape(inner, columns)):reshape(shape)
end

-- ---- positions of what was chosen

for _, name in ipairs { "max_pool1d", "max_pool2d" } do
  M[name] = function(_, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    local pool = return_indices and core[name .. "_with_indices"] or core[name]
    return pool(x, kernel_size, stride, padding, dilation, ceil_mode)
  end
end
for _, name in ipairs { "adaptive_max_pool1d", "adaptive_max_pool2d" } do
  M[name] = function(_, x, output_size, return_indices)
    return core[return_indices and name .. "_with_indices" or name](x, output_size)
  end
end

-- ---- losses with a weight for each element

local function check_weight(name, input, weight)
  if lists.shape_text(weight) ~= lists.shape_text(input) then
    options.fail("%s: weight: expected the shape of input, %s, got %s", name, options.show(input),
      options.show(weight))
  end
end
for _, name in ipairs { "mse_loss", "l1_loss" } do
  M[name] = function(_, input, target, reduction, weight)
    check_weight(name, input, weight)
    local each = core[name](input, target, { reduction = "none" }) * weight
    if reduction == "none" then return each end
    return reduction == "sum" and each:sum() or each:sum() / weight:sum()
  end
end
function M.huber_loss(_, input, target, reduction, delta, weight)
  check_weight("huber_loss", input, weight)
  local each = core.huber_loss(input, target, { reduction = "none", delta = delta }) * weight
  if reduction == "none" then return each end
  return reduction == "sum" and each:sum() or each:mean()
end

return M
