--- Tensors like other tensors, and what types can hold.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local options = require "accelerate.utils.options"

-- The arguments of a constructor with x's type and device where the options do not say others.
local function like(name, x, ...)
  if not core.is_tensor(x) then
    options.fail("%s: argument 1 (x): expected a tensor, got %s; write x:%s(...)", name, options.show(x),
      name)
  end
  local given = { n = select("#", ...), ... }
  local last = given[given.n]
  local o = { dtype = x.dtype, device = x.device }
  if type(last) == "table" and #last == 0 and next(last) ~= nil then
    for key, value in pairs(last) do o[key] = value end
    given.n = given.n - 1
  end
  given[given.n + 1] = o
  return unpack(given, 1, given.n + 1)
end

for _, name in ipairs { "zeros", "ones", "empty" } do
  define.plain("new_" .. name, ("x:new_%s(sizes..., { dtype, device, requires_grad })"):format(name),
    ("`%s` with the element type and device of x"):format(name), "method",
    function(x, ...)
      return core[name](like("new_" .. name, x, ...))
    end)
end
define.plain("new_full", "x:new_full(shape, value, { dtype, device, requires_grad })",
  "`full` with the element type and device of x", "method",
  function(x, ...) return core.full(like("new_full", x, ...)) end)
define.plain("new_tensor", "x:new_tensor(value, { dtype, device, requires_grad })",
  "`tensor` with the element type and device of x", "method",
  function(x, value, ...)
    if value == nil then
      options.fail("new_tensor: argument 2 (value): expected a list, a number, " ..
        "a boolean or a tensor, got nil")
    end
    return core.tensor(like("new_tensor", x, value, ...))
  end)

local AS_TENSOR = { dtype = { "string", optional = true }, device = { "string", optional = true } }
define.plain("as_tensor", "tensor.as_tensor(value, { dtype, device })",
  "a tensor as it is where type and device fit, else a new one",
  "function", function(value, opts)
    local o = options.check("as_tensor", opts, AS_TENSOR)
    if not core.is_tensor(value) then return core.tensor(value, opts) end
    if o.dtype == nil and o.device == nil then return value end
    return value:to { dtype = o.dtype, device = o.device }
  end)

define.plain("asarray", "tensor.asarray(value, { dtype, device })", "another name of `as_tensor`", "function",
  define.functions.as_tensor)

define("type_as", "x:T other:T", "x with the element type of other", function(x, other)
  return x:to(other.dtype)
end, "method")
define("cpu", "x:T", "x on the CPU", function(x) return x:to("cpu") end, "method")
define("cuda", "x:T index:int?", "x on a GPU: the current one, or that of the index", function(x, index)
  return x:to(index and ("cuda:%d"):format(index) or "cuda")
end, "method")
define.plain("is_cuda", "x.is_cuda", "whether the tensor is on a GPU", "field",
  function(x) return x.device:find("cuda", 1, true) == 1 end)
define.plain("is_cpu", "x.is_cpu", "whether the tensor is on the CPU", "field",
  function(x) return x.device == "cpu" end)
define("nelement", "x:T", "the number of elements", function(x) return x:numel() end, "method")
define("is_floating_point", "x:T", "whether elements are of a floating type", function(x)
  return core._is_float(x)
end)

-- eps, largest number, smallest normal number, decimal digits (IEEE 754; bfloat16: 8 bits of
-- mantissa)
local FLOATS = {
  float64 = { bits = 64, eps = 2 ^ -52, max = (2 - 2 ^ -52) * 2 ^ 1023, tiny = 2 ^ -1022,
    resolution = 1e-15 },
  float32 = { bits = 32, eps = 2 ^ -23, max = (2 - 2 ^ -23) * 2 ^ 127, tiny = 2 ^ -126, resolution = 1e-6 },
  float16 = { bits = 16, eps = 2 ^ -10, max = 65504, tiny = 2 ^ -14, resolution = 1e-3 },
  bfloat16 = { bits = 16, eps = 2 ^ -7, max = (2 - 2 ^ -7) * 2 ^ 127, tiny = 2 ^ -126, resolution = 1e-2 },
  float8_e4m3fn = { bits = 8, eps = 2 ^ -3, max = 448, tiny = 2 ^ -6, resolution = 1 },
  float8_e5m2 = { bits = 8, eps = 2 ^ -2, max = 57344, tiny = 2 ^ -14, resolution = 1 },
}
local INTEGERS = {
  int64 = { bits = 64, min = -2 ^ 63, max = 2 ^ 63 }, int32 = { bits = 32, min = -2 ^ 31, max = 2 ^ 31 - 1 },
  uint8 = { bits = 8, min = 0, max = 255 },
}

local PARTS = { complex64 = "float32", complex128 = "float64" }

local function info(where, types, kind, dtype)
  local name = core.is_tensor(dtype) and dtype.dtype or dtype
  if types[PARTS[name]] then name = PARTS[name] end
  local found = types[name]
  if not found then
    options.fail("%s: expected %s type, got %s", where, kind, options.show(dtype))
  end
  local copy = { dtype = name }
  for key, value in pairs(found) do copy[key] = value end
  return copy
end
define.plain("finfo", "tensor.finfo([dtype])",
  "limits of a floating type (the default one), or of a complex one's parts: bits, eps, max, min, tiny, " ..
  "smallest_normal, resolution",
  "function", function(dtype)
    if dtype == nil then dtype = core.get_default_dtype() end
    local f = info("finfo", FLOATS, "a floating", dtype)
    f.min, f.smallest_normal = -f.max, f.tiny
    return f
  end)
define.plain("iinfo", "tensor.iinfo(dtype)",
  "limits of an integer type: bits, min, max; int64's max is 2^63 - 1, which a Lua " ..
  "number rounds up", "function", function(dtype) return info("iinfo", INTEGERS, "an integer", dtype) end)

define("promote_types", "a:dtype b:dtype", "the element type of a sum of tensors of two types", function(a, b)
  return (core.empty({ 0 }, { dtype = a }) + core.empty({ 0 }, { dtype = b })).dtype
end, "function")
define.plain("inference_mode", "tensor.inference_mode([mode], fn, ...)",
  "`no_grad` under another name; with mode = false `enable_grad`", "function",
  require("accelerate.autograd.calls").inference_mode)

define("logspace", "start:num stop:num steps:int base:num=10 dtype:dtype?",
  "base ^ linspace(start, stop, steps); for an integer type start and stop are cut off first",
  function(start, stop, steps, base, dtype)
    if INTEGERS[dtype] and steps > 1 then start, stop = (math.modf(start)), (math.modf(stop)) end
    return core.pow(base, core.linspace(start, stop, steps, { dtype = "float64" }))
      :to(dtype or core.get_default_dtype())
  end, "function")

for _, part in ipairs { "tril", "triu" } do
  define(part .. "_indices", "rows:int columns:int offset:int=0 dtype:dtype?",
    ("positions of %s, counted from 0, as a tensor of 2 rows"):format(part),
    function(rows, columns, offset, dtype)
      local ones = core.ones(rows, columns)
      return ones[part](ones, offset):nonzero():t():contiguous():to(dtype or "int64")
    end, "function")
end
