--- Writing at the places of a key, as x[key] = value does.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local reduce_into = core._row "_scatter_reduce"

-- What a reduction begins with where x itself does not count.
local function identity(reduce, x)
  if reduce == "prod" then return 1 end
  if reduce ~= "amax" and reduce ~= "amin" then return 0 end
  if core._is_float(x) then return reduce == "amax" and -math.huge or math.huge end
  local limits = define.functions.iinfo(x)
  return reduce == "amax" and limits.min or math.min(limits.max, 2 ^ 63 - 1024)
end

-- A sum divided by how many elements are in it.
local function scatter_mean(x, sum, dim, index, include_self)
  local count = core[include_self and "ones_like" or "zeros_like"](x)
  count = count:scatter_add(dim, index, core.ones(index.shape, { dtype = x.dtype, device = x.device }))
  count = count:clamp { min = 1 }
  if core._is_float(x) then return sum / count end
  return core.floor_divide(sum, count)
end

-- The gradient needs x as it was.
local function kept(x) return core.is_grad_enabled() and x:clone() or x end

local REDUCTIONS = "sum|prod|mean|amax|amin"
local function scatter_reduce(x, dim, index, src, reduce, include_self)
  if x.dtype == "bool" and src.dtype == "bool" and reduce ~= "sum" and reduce ~= "mean" then
    return scatter_reduce(x:byte(), dim, index, src:byte(), reduce, include_self):bool()
  end
  if x.dtype == "bool" and reduce == "mean" then options.fail("scatter_reduce: bool has no mean") end
  for d, size in ipairs(index.shape) do
    if src.ndim == index.ndim and src.shape[d] > size then src = src:narrow(d, 1, size) end
  end
  if not include_self then x = x:scatter(dim, index, identity(reduce, x)) end
  if reduce == "sum" then return x:scatter_add(dim, index, src) end
  if reduce == "mean" then
    return scatter_mean(x, x:scatter_add(dim, index, src), dim, index, include_self)
  end
  return reduce_into(x, dim, index, src, reduce)
end
define("scatter_reduce", ("x:T dim:dim index:T src:T reduce:%s include_self:bool=true"):format(REDUCTIONS),
  "x reduced with src at the positions of dim that index gives; include_self = false: without the " ..
  "elements of x there", scatter_reduce)
define("scatter_reduce_", ("x:T dim:dim index:T src:T reduce:%s include_self:bool=true"):format(REDUCTIONS),
  "scatter_reduce in place", function(x, ...) return x:copy_(scatter_reduce(kept(x), ...)) end, "method")

local function index_reduce(x, dim, index, source, reduce, include_self)
  if index.ndim > 1 or source.ndim ~= x.ndim or x.ndim > 0 and source.shape[dim] ~= index:numel() then
    options.fail("index_reduce: source %s does not fit dim %d of %s and index %s", lists.shape_text(source),
      dim,
      lists.shape_text(x), lists.shape_text(index))
  end
  local shape = {}
  for d = 1, x.ndim do shape[d] = d == dim and index:numel() or 1 end
  return scatter_reduce(x, dim, index:reshape(shape):expand(source.shape), source, reduce, include_self)
end
define("index_reduce", "x:T dim:dim index:T source:T reduce:prod|mean|amax|amin include_self:bool=true",
  "x reduced with slices of source at the positions of dim in index", index_reduce)
define("index_reduce_", "x:T dim:dim index:T source:T reduce:prod|mean|amax|amin include_self:bool=true",
  "index_reduce in place", function(x, ...) return x:copy_(index_reduce(kept(x), ...)) end, "method")

local OPTIONS = { accumulate = { "boolean", default = false } }
local function put(name, x, key, value, ...)
  local o = options.read(name, { "accumulate" }, OPTIONS, ...)
  return core._index_put(x, key, value, o.accumulate)
end

define.plain("index_put_", "x:index_put_(key, values, { accumulate = false })",
  "x[key] = values; accumulate: adds them, a place that is named twice gets both", "method",
  function(x, key, values, ...) return put("index_put_", x, key, values, ...) end)
define.plain("index_put", "x:index_put(key, values, { accumulate = false })",
  "a copy of x with values written (or added) at the places of the key", "both",
  function(x, key, values, ...)
    if not core.is_tensor(x) then
      options.fail("index_put: argument 1 (x): expected a tensor, got %s", options.show(x))
    end
    return put("index_put", x:clone(), key, values, ...)
  end)
