--- Small functions and methods of PyTorch's that scripts carry along.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local kinds = require "accelerate.tensor.kinds"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"


-- ---- kinds of tensors and of types


define.plain("is_sparse", "x.is_sparse", "false: `accelerate.sparse` has the sparse ones", "field",
  function() return false end)
define.plain("layout", "x.layout", "\"strided\"", "field", function() return "strided" end)
define.plain("sparse_coo_tensor",
  "tensor.sparse_coo_tensor(indices, values, size, { dtype, device, requires_grad, is_coalesced })",
  "a sparse tensor: see accelerate.sparse", "function",
  function(...) return require("accelerate.sparse").sparse_coo_tensor(...) end)
define.plain("to_sparse", "x:to_sparse(sparse_dim)", "the elements that are not 0, as a sparse tensor",
  "method",
  function(...) return require("accelerate.sparse").to_sparse(...) end)
define("to_dense", "x:T", "x itself; sparse tensors have a method of this name", function(x) return x end,
  "method")
define.plain("spmm", "tensor.spmm(sparse, dense)", "`sparse.mm`: a product with a sparse matrix", "function",
  function(...) return require("accelerate.sparse").mm(...) end)
define.plain("itemsize", "x.itemsize", "bytes of an element", "field",
  function(x) return x:element_size() end)
local function is_complex(x) return x.dtype == "complex64" or x.dtype == "complex128" end
define("is_complex", "x:T", "whether elements are complex numbers", is_complex)
define("is_signed", "x:T", "whether elements may be below 0", function(x)
  return x.dtype ~= "uint8" and x.dtype ~= "bool"
end)
define("isreal", "x:T", "where the imaginary part is 0; everywhere in a real tensor", function(x)
  if is_complex(x) then return x:imag():eq(0) end
  return core.ones_like(x, { dtype = "bool" })
end)
define("numel", "x:T", "the number of elements", function(x) return x:numel() end, "function")
define("ndimension", "x:T", "the number of dims", function(x) return x.ndim end, "method")
define("get_device", "x:T", "the number of x's GPU, -1 on the CPU", function(x)
  return tonumber(x.device:match ":(%d+)$") or -1
end)
-- "torch.LongTensor" and "torch.cuda.LongTensor" as types are called here; anything else as it is.
local CLASSES = { Float = "float32", Double = "float64", Half = "float16", BFloat16 = "bfloat16",
  Long = "int64", Int = "int32", Byte = "uint8", Bool = "bool" }
local function without_class(x, dtype, ...)
  local class = type(dtype) == "string" and dtype:match "^torch%.([%w.]+)Tensor$"
  local name = class and CLASSES[class:match "[^.]*$"]
  if name then
    options.fail('type: "%s" is x:to("%s")%s', dtype, name, class:find("cuda", 1, true) and ":cuda()" or "")
  end
  return x, dtype, ...
end
define.prepared("type", "x:T dtype:dtype?", "x's element type, or x with another one", without_class,
  function(x, dtype) return dtype and x:to(dtype) or x.dtype end, "method")
define("is_nonzero", "x:T", "whether the one element of x is not 0", function(x)
  if x:numel() ~= 1 then
    options.fail("is_nonzero: expected one element, got shape %s", lists.shape_text(x))
  end
  local v = x:item()
  return v ~= 0 and v ~= false
end)
define.plain("result_type", "tensor.result_type(a, b)",
  "the element type of a sum of two tensors or numbers", "function", function(a, b)
    for i, v in ipairs { a, b } do
      if not core.is_tensor(v) and type(v) ~= "number" and type(v) ~= "boolean" then
        options.fail("result_type: argument %d: expected a tensor or a number, got %s", i, options.show(v))
      end
    end
    local function empty(v)
      if not core.is_tensor(v) then return v end
      return core.zeros(v.ndim > 0 and { 0 } or {}, { dtype = v.dtype })
    end
    if not core.is_tensor(a) and not core.is_tensor(b) then a, b = core.tensor(a), core.tensor(b) end
    return (core.mul(empty(a), empty(b))).dtype
  end)

-- ---- new tensors

for _, name in ipairs { "zeros", "ones", "empty", "full", "rand", "randn" } do
  local full = name == "full"
  define.plain(name .. "_like", ("x:%s_like(%s{ dtype, device, requires_grad })"):format(name,
    full and "value, " or ""), ("`tensor.%s_like` as a method"):format(name), "method", core[name .. "_like"])
end
define.plain("randint_like", "tensor.randint_like(x, low, high, { dtype, device })",
  "integers from low (0 when one number is given) to high - 1, of x's shape and type", "both",
  function(x, ...)
    if not core.is_tensor(x) then
      options.fail("randint_like: argument 1 (x): expected a tensor, got %s", options.show(x))
    end
    local o = options.read("randint_like", { "low", "high" }, { low = { "integer", optional = true },
      high = { "integer", optional = true }, dtype = { "string", default = x.dtype },
      device = { "string", default = x.device }, generator = { "Generator", optional = true } }, ...)
    if o.high == nil and type((...)) == "number" then o.low, o.high = nil, o.low end
    if o.high == nil then options.fail("randint_like: high is missing (expected an integer)") end
    return core.randint(o.low or 0, o.high, x.shape,
      { device = o.device, generator = o.generator }):to(o.dtype)
  end)
define.plain("scalar_tensor", "tensor.scalar_tensor(value, { dtype, device })", "a tensor of 0 dims",
  "function",
  function(value, opts)
    options.value("scalar_tensor", "value", value, { "number|boolean" })
    return core.tensor(value, opts)
  end)
define("diagflat", "x:T offset:int=0", "a matrix with the elements of x on a diagonal", function(x, offset)
  return x:reshape(-1):diag(offset)
end)
-- ---- cuts and changed copies

for _, entry in ipairs { { "vsplit", 1 }, { "dsplit", 3 } } do
  local name, dim = entry[1], entry[2]
  define(name, "x:T sections:ints", ("tensor_split along dim %d"):format(dim), function(x, sections)
    if x.ndim < dim then
      options.fail("%s: expected at least %d dims, got %s", name, dim, lists.shape_text(x))
    end
    return define.functions.tensor_split(x, sections, dim)
  end)
end
define("hsplit", "x:T sections:ints", "tensor_split along dim 2; of a vector along dim 1",
  function(x, sections)
  if x.ndim == 0 then options.fail("hsplit: expected at least 1 dim, got a 0-d tensor") end
  return define.functions.tensor_split(x, sections, math.min(x.ndim, 2))
end)
define("select_scatter", "x:T src:T dim:dim index:int",
  "a copy of x with src at position index (from 1) of dim",
  function(x, src, dim, index)
    local out = x:clone()
    out:select(dim, index):copy_(src)
    return out
  end)
define("diagonal_scatter", "x:T src:T offset:int=0 dim1:dim=1 dim2:dim=2",
  "a copy of x with src on a diagonal",
  function(x, src, offset, dim1, dim2)
    local out = x:clone()
    out:diagonal(offset, dim1, dim2):copy_(src)
    return out
  end)
define("slice_scatter", "x:T src:T dim:dim=1 start:int=1 stop:int=-1 step:int=1",
  "a copy of x with src in the range start .. stop (both from 1 and included) of dim",
  function(x, src, dim, start, stop, step)
    local key, out = {}, x:clone()
    for d = 1, x.ndim do key[d] = d == dim and { start, stop, step } or {} end
    out[key] = src
    return out
  end)
define("masked_scatter_", "x:T mask:T source:T", "masked_scatter in place", function(x, mask, source)
  return x:copy_(x:masked_scatter(mask, source))
end, "method")
define("sum_to_size", "x:T shape:ints", "x summed over dims until it has the shape", function(x, shape)
  local lead = x.ndim - #shape
  local dims = {}
  for d = 1, x.ndim do
    local size = shape[d - lead]
    if d <= lead or size == 1 and x.shape[d] ~= 1 then dims[#dims + 1] = d
    elseif size ~= x.shape[d] then lead = -1 end
  end
  if lead < 0 then
    options.fail("sum_to_size: %s does not come from [%s] by broadcasting", lists.shape_text(x),
      table.concat(shape, ", "))
  end
  if #shape == 0 then return x:sum() end -- as PyTorch does: of a bool an int64
  return #dims > 0 and x:sum(dims, true):view(shape) or x
end)
define("unravel_index", "indices:T shape:ints", "the coordinates of flat positions, one tensor for each dim",
  function(indices, shape)
    if core._is_float(indices) or indices:is_complex() or indices.dtype == "bool" then
      options.fail("unravel_index: indices: expected integers, got %s", indices.dtype)
    end
    local parts = {}
    indices = indices:long()
    for d = #shape, 1, -1 do
      parts[d] = indices:remainder(shape[d])
      indices = indices:floor_divide(shape[d])
    end
    return unpack(parts)
  end, "function")

-- ---- arithmetic

define("rsub", "a:TN b:TN alpha:num=1", "b - alpha a", function(a, b, alpha) return core.sub(b, a, alpha) end)
define("float_power", "a:TN b:TN", "a to the power b, in float64 or complex128", function(a, b)
  local function double(v)
    if not core.is_tensor(v) then return v end
    return v:is_complex() and v:to("complex128") or v:double()
  end
  return core.pow(double(a), double(b))
end)
local LARGEST = 4400 -- 2 ^ 2200 is infinite in float64, and 2 ^ -2200 is 0

define("ldexp", "x:T other:T", "x * 2 ^ other", function(x, other)
  local a, exponent, dtype = kinds.floats(x, other)
  if exponent:is_complex() then return (a * core.pow(2, exponent)):to(dtype) end
  exponent = exponent:clamp(-LARGEST, LARGEST) -- the parts of an infinite one would be NaN
  local half = (exponent * 0.5):trunc() -- 2 ^ exponent alone may be too large or too small
  return (a * core.pow(2, half) * core.pow(2, exponent - half)):to(dtype)
end)
define("logaddexp2", "a:T b:T", "log2(2 ^ a + 2 ^ b), safe for large numbers", function(a, b)
  local x, y, dtype = kinds.floats(a, b)
  return (core.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)):to(dtype)
end)

-- ---- gradients of results

-- What retain_grad was called on -> a value of the last call.
local retained = setmetatable({}, { __mode = "k" })

--- The hook must not hold the tensor that it is on.
define.plain("retain_grad", "x:retain_grad()",
  "keeps the gradient of a result in x.grad; of a leaf nothing changes",
  "method", function(x)
    if not core.is_tensor(x) then
      options.fail("retain_grad: argument 1 (x): expected a tensor, got %s", options.show(x))
    end
    if not x.requires_grad then options.fail("retain_grad: the tensor does not require a gradient") end
    if x.is_leaf then return end
    local call = {}
    retained[x] = call
    local weak = setmetatable({ x }, { __mode = "v" })
    core._keep_hook(x, function(g)
      local kept = weak[1]
      if not kept or retained[kept] ~= call then return end -- a later call took over
      core._keep_grad(kept, kept.grad and kept.grad + g or core.no_grad(function() return g:clone() end))
    end)
  end)

define.plain("retains_grad", "x.retains_grad", "whether retain_grad was called on this result", "field",
  function(x) return retained[x] ~= nil and not x.is_leaf end)

-- ---- how tensors are shown

define.plain("set_printoptions",
  "tensor.set_printoptions { precision, threshold, edgeitems, linewidth, profile, sci_mode }",
  "how tensors are shown from now on; by position in this order, too", "function",
  function(...) return require("accelerate.utils.format").set_options(...) end)
define.plain("get_printoptions", "tensor.get_printoptions()", "the settings of set_printoptions", "function",
  function() return require("accelerate.utils.format").get_options() end)

--- For an object that has become another tensor: retain_grad goes on there.
---@param x accelerate.Tensor
local function retain_again(x)
  if not retained[x] then return end
  retained[x] = nil
  if not x.is_leaf then x:retain_grad() end
end

return { retain_again = retain_again }
