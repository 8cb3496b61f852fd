--- Changed copies: what views give, as copies; what ops in place do, as copies.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local kinds = require "accelerate.tensor.kinds"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local signatures = {}
for _, row in ipairs(core.ops()) do signatures[row.name] = row.signature end

local function cloned(first, ...)
  if first == nil then return end
  return first:clone(), cloned(...)
end

for _, name in ipairs { "diagonal", "expand", "narrow", "permute", "squeeze", "t", "transpose", "unbind",
  "unfold",
  "unsqueeze", "view" } do
  define(name .. "_copy", (signatures[name]:gsub("%s*%->.*", "")), ("`%s` as a copy"):format(name),
    function(...) return cloned(core[name](...)) end)
end
define("split_with_sizes", "x:T split_sizes:ints dim:dim=1", "views of the listed sizes; several values",
  function(x, sizes, dim) return x:split(sizes, dim) end)
define("split_with_sizes_copy", "x:T split_sizes:ints dim:dim=1",
  "copies of the listed sizes; several values",
  function(x, sizes, dim) return cloned(x:split(sizes, dim)) end)
define("alias_copy", "x:T", "a copy", function(x) return x:clone() end)
define("resolve_conj", "x:T", "x itself: conj is never lazy", function(x) return x end)
define("resolve_neg", "x:T", "x itself: neg is never lazy", function(x) return x end)
define("conj_physical", "x:T", "another name of `conj`", function(x) return x:conj() end)

-- Flat positions of a tensor with these sizes and strides in memory that begins at offset.
local function places(where, x, size, stride, offset)
  if #size ~= #stride then
    options.fail("%s: expected a stride for each size, got %d and %d", where, #stride, #size)
  end
  local at = core.full({}, offset, { dtype = "int64", device = x.device })
  local last = offset
  for d = 1, #size do
    if size[d] < 0 or stride[d] < 0 then
      options.fail("%s: sizes and strides must be at least 0, got %d and %d", where, size[d], stride[d])
    end
    last = last + math.max(size[d] - 1, 0) * stride[d]
    at = at:unsqueeze(-1) + core.arange(size[d], { device = x.device }) * stride[d]
  end
  if at:numel() > 0 and (offset < 0 or last >= x:numel()) then
    options.fail("%s: positions %d to %d are outside the %d elements of x", where, offset, last, x:numel())
  end
  return at
end
define("as_strided_copy", "x:T size:ints stride:ints storage_offset:int=0",
  "a copy of what x's elements, in order, are with these sizes and strides",
  function(x, size, stride, offset)
    local at = places("as_strided_copy", x, size, stride, offset)
    return x:reshape(-1):index_select(1, at:view(-1)):view(at.shape)
  end)
define("as_strided_scatter", "x:T src:T size:ints stride:ints storage_offset:int=0",
  "a copy of x with src at the places that as_strided_copy reads",
  function(x, src, size, stride, offset)
    local at = places("as_strided_scatter", x, size, stride, offset)
    return x:reshape(-1):index_copy(1, at:view(-1), src:expand(at.shape):reshape(-1)):view(x.shape)
  end)

define("fill", "x:T value:TN", "a tensor like x with one number everywhere", function(x, value)
  if not core.is_tensor(value) then
    return core.where(core.ones_like(x, { dtype = "bool" }), core.full({}, value, { dtype = x.dtype,
      device = x.device }), x)
  end
  if value.ndim > 0 then
    options.fail("fill: value: expected a number or a tensor of 0 dims, got %s", lists.shape_text(value))
  end
  return value:to(x.dtype):expand(x.shape):clone()
end)

local function put(x, index, source, accumulate)
  if index.dtype ~= "int64" and index.dtype ~= "int32" then
    options.fail("put: index: expected int64, got %s", index.dtype)
  end
  if index:numel() ~= source:numel() then
    options.fail("put: index has %d elements, source %d", index:numel(), source:numel())
  end
  if source.dtype ~= x.dtype then
    options.fail("put: source: expected %s, as x has, got %s", x.dtype, source.dtype)
  end
  if index:numel() == 0 then return x:clone() end
  return x:reshape(-1):index_put({ index:reshape(-1) }, source:reshape(-1), { accumulate = accumulate })
    :view(x.shape)
end
local PUT = "x:T index:T source:T accumulate:bool=false"
define("put", PUT, "a copy of x with source at flat positions, counted from 0; accumulate: added there", put)
define("put_", PUT, "put in place", function(x, ...) return x:copy_(put(x, ...)) end, "method")

define("nonzero_static", "x:T size:int fill_value:int=-1",
  "the first `size` positions of nonzero; fill_value where there are fewer", function(x, size, fill_value)
    if size < 0 then options.fail("nonzero_static: size must be at least 0, got %d", size) end
    local found = x:nonzero()
    local have = found.shape[1]
    if have >= size then return found:narrow(1, 1, size):clone() end
    local rest = core.full({ size - have, x.ndim }, fill_value, { dtype = "int64", device = x.device })
    return core.cat({ found, rest }, 1)
  end)

define.plain("mH", "x.mH", "matrices transposed, complex numbers conjugated", "field",
  function(x) return x:transpose(-2, -1):conj() end)
define("adjoint", "x:T", "matrices transposed, complex numbers conjugated: `x.mH`",
  function(x) return x.mH end)
define.plain("H", "x.H", "a matrix transposed, complex numbers conjugated", "field", function(x)
  if x.ndim ~= 2 and x.ndim ~= 0 then
    options.fail("H: expected a matrix, got %s", lists.shape_text(x))
  end
  return x.ndim == 0 and x:conj() or x:t():conj()
end)

-- ---- in place, through a copy

for _, name in ipairs { "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
  "logical_not", "cumsum", "cumprod", "addmm", "addmv", "addbmm", "addr", "baddbmm", "copysign", "deg2rad",
  "rad2deg", "heaviside", "gcd", "lcm", "ldexp", "logit", "nextafter", "sgn", "sinc", "renorm", "i0",
  "igamma",
  "igammac", "mvlgamma", "conj_physical" } do
  define.plain(name .. "_", ("x:%s_(...)"):format(name), ("`%s` written into x"):format(name), "method",
    function(x, ...)
      if not core.is_tensor(x) then
        options.fail("%s_: argument 1 (x): expected a tensor, got %s", name, options.show(x))
      end
      local before = core.is_grad_enabled() and x:clone() or x -- the gradient needs x as it was
      local result = before[name](before, ...)
      if result.dtype ~= "bool" and not kinds.fits(result.dtype, x.dtype) then
        options.fail("%s_: the result is %s and does not fit the tensor being changed, %s", name,
          result.dtype,
          x.dtype)
      end
      return x:copy_(result)
    end)
end
