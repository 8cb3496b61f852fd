--- nn.init: fills tensors in place. Nothing here is recorded for gradients. Draws come from the
--- default generator, or from { generator = tensor.Generator(seed) }; the same seed gives the same
--- values on every device, rank and number of threads. Without a seed, too, the values are the same
--- on all ranks. Arguments go by position, in PyTorch's order, or by name.

local core = require "accelerate.core"
local deferred = require "accelerate.deferred"
local options = require "accelerate.utils.options"
local parameter = require "accelerate.nn.parameter"

local fail = options.fail

---@class accelerate.nn.init
local init = {}

local function check(where, t)
  if not core.is_tensor(t) then fail("%s: expected a tensor, got %s", where, options.show(t)) end
  return t
end

local function floating(where, t)
  check(where, t)
  if not core._is_float(t) then
    fail("%s: only floating-point tensors can be drawn, got %s", where, t.dtype)
  end
end

-- Of complex tensors, too.
local function drawn(where, t)
  if not check(where, t):is_complex() then floating(where, t) end
end

-- Makes an edit without recording it for gradients, so that leaves that require gradients may be
-- written. Of parameters that are to be cut over ranks, and of those on the device "meta", it is
-- noted (accelerate.deferred).
local function write(t, edit, a, generator)
  if not deferred.is_skipped() then deferred.edit(t, edit, a, generator, parameter.is(t)) end
  return t
end

-- Returns whether tensors are left as they are.
init._is_skipped = deferred.is_skipped
-- Returns fn(...), in which nothing here writes: the values come from a file afterwards.
init._skip = deferred.skip

local DRAW = { generator = { "Generator", optional = true } }
local UNIFORM = { a = { "number", default = 0 }, b = { "number", default = 1 }, generator = DRAW.generator }
local NORMAL = { mean = { "number", default = 0 }, std = { "number", default = 1 },
  generator = DRAW.generator }

local function uniform(t, low, high, generator) return write(t, "uniform", { low, high }, generator) end

local function normal(t, mean, std, generator) return write(t, "normal", { mean, std }, generator) end

--- Uniform in [a, b); each part of complex numbers is.
---@param tensor accelerate.Tensor
---@param ... any a = 0, b = 1, generator, or a table of them
---@return accelerate.Tensor tensor
function init.uniform_(tensor, ...)
  drawn("uniform_", tensor)
  local o = options.read("uniform_", { "a", "b", "generator" }, UNIFORM, ...)
  if o.a > o.b then fail("uniform_: a must not be above b, got %g and %g", o.a, o.b) end
  return uniform(tensor, o.a, o.b, o.generator)
end

--- Normal with a mean and a standard deviation; the variance of complex numbers is half in each
--- part.
---@param tensor accelerate.Tensor
---@param ... any mean = 0, std = 1, generator, or a table of them
---@return accelerate.Tensor tensor
function init.normal_(tensor, ...)
  drawn("normal_", tensor)
  local o = options.read("normal_", { "mean", "std", "generator" }, NORMAL, ...)
  if o.std < 0 then fail("normal_: std must be at least 0, got %g", o.std) end
  return normal(tensor, o.mean, o.std, o.generator)
end

---@param tensor accelerate.Tensor
---@param ... any val (a number), or a table with it
---@return accelerate.Tensor tensor
function init.constant_(tensor, ...)
  check("constant_", tensor)
  local value = options.read("constant_", { "val" }, { val = { "number" } }, ...).val
  return write(tensor, "constant", { value })
end

---@return accelerate.Tensor tensor
function init.zeros_(tensor)
  check("zeros_", tensor)
  return write(tensor, "constant", { 0 })
end

---@return accelerate.Tensor tensor
function init.ones_(tensor)
  check("ones_", tensor)
  return write(tensor, "constant", { 1 })
end

--- Ones on the main diagonal of a matrix, zeros elsewhere.
---@return accelerate.Tensor tensor
function init.eye_(tensor)
  check("eye_", tensor)
  if tensor:dim() ~= 2 then fail("eye_: expected 2 dims, got %d", tensor:dim()) end
  return write(tensor, "eye", {})
end

-- fits: raises for a value that is no tensor to draw, or no tensor
local function fans(where, t, fits)
  (fits or drawn)(where, t)
  local shape = t.shape
  if #shape < 2 then
    fail("%s: fan in and fan out need at least 2 dims, got a tensor of shape [%s]", where,
      table.concat(shape, ", "))
  end
  local field = 1
  for i = 3, #shape do field = field * shape[i] end
  return shape[2] * field, shape[1] * field
end

--- Returns how many elements of the input make one of the output, and the reverse.
---@param tensor accelerate.Tensor the weight of a layer (out, in, ...)
---@return integer fan_in
---@return integer fan_out
function init._calculate_fan_in_and_fan_out(tensor)
  return fans("_calculate_fan_in_and_fan_out", tensor, check)
end

local MODE = { "string", default = "fan_in", one_of = { "fan_in", "fan_out" } }

--- Returns the fan that `mode` names.
---@param tensor accelerate.Tensor the weight of a layer (out, in, ...)
---@param mode "fan_in"|"fan_out" in letters of either case
---@return integer
function init._calculate_correct_fan(tensor, mode)
  local where = "_calculate_correct_fan"
  mode = options.value(where, "mode", type(mode) == "string" and mode:lower() or mode,
    { "string", one_of = MODE.one_of })
  local fan_in, fan_out = fans(where, tensor, check)
  return mode == "fan_in" and fan_in or fan_out
end

local GAINS = {
  linear = 1, sigmoid = 1, conv1d = 1, conv2d = 1, conv3d = 1, conv_transpose1d = 1, conv_transpose2d = 1,
  conv_transpose3d = 1,
  tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4,
}
local GAIN_NAMES = { "linear", "sigmoid", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
  "conv_transpose2d", "conv_transpose3d", "tanh",
  "relu", "leaky_relu", "selu" }

local SLOPE = { param = { "number", default = 0.01 } }

--- Returns the factor that keeps a signal's scale through a nonlinearity.
---@param nonlinearity string
---@param ... any param (the negative slope, for "leaky_relu"; default 0.01), or a table with it
---@return number
function init.calculate_gain(nonlinearity, ...)
  local slope = options.read("calculate_gain", { "param" }, SLOPE, ...).param
  if nonlinearity == "leaky_relu" then
    return math.sqrt(2 / (1 + slope * slope))
  end
  local gain = GAINS[nonlinearity]
  if not gain then
    fail("calculate_gain: unknown nonlinearity %s%s", options.show(nonlinearity),
      options.hint(nonlinearity, GAIN_NAMES))
  end
  return gain
end

local KAIMING = {
  a = { "number", default = 0 },
  mode = MODE,
  nonlinearity = { "string", default = "leaky_relu", one_of = GAIN_NAMES },
  generator = DRAW.generator,
}

local KAIMING_ORDER = { "a", "mode", "nonlinearity", "generator" }

local function kaiming_std(where, t, o)
  local fan_in, fan_out = fans(where, t)
  return init.calculate_gain(o.nonlinearity, o.a) / math.sqrt(o.mode == "fan_in" and fan_in or fan_out)
end

--- Uniform in +-gain * sqrt(3 / fan).
---@param tensor accelerate.Tensor
---@param ... any a = 0 (the negative slope of "leaky_relu"), mode = "fan_in" or "fan_out",
---  nonlinearity = "leaky_relu", generator, or a table of them
---@return accelerate.Tensor tensor
function init.kaiming_uniform_(tensor, ...)
  local o = options.read("kaiming_uniform_", KAIMING_ORDER, KAIMING, ...)
  local bound = math.sqrt(3) * kaiming_std("kaiming_uniform_", tensor, o)
  return uniform(tensor, -bound, bound, o.generator)
end

--- Normal with standard deviation gain / sqrt(fan).
---@param tensor accelerate.Tensor
---@param ... any as of kaiming_uniform_
---@return accelerate.Tensor tensor
function init.kaiming_normal_(tensor, ...)
  local o = options.read("kaiming_normal_", KAIMING_ORDER, KAIMING, ...)
  return normal(tensor, 0, kaiming_std("kaiming_normal_", tensor, o), o.generator)
end

local XAVIER = { gain = { "number", default = 1 }, generator = DRAW.generator }

local XAVIER_ORDER = { "gain", "generator" }

local function xavier_std(where, t, o)
  local fan_in, fan_out = fans(where, t)
  return o.gain * math.sqrt(2 / (fan_in + fan_out))
end

--- Uniform in +-gain * sqrt(6 / (fan_in + fan_out)).
---@param tensor accelerate.Tensor
---@param ... any gain = 1, generator, or a table of them
---@return accelerate.Tensor tensor
function init.xavier_uniform_(tensor, ...)
  local o = options.read("xavier_uniform_", XAVIER_ORDER, XAVIER, ...)
  local bound = math.sqrt(3) * xavier_std("xavier_uniform_", tensor, o)
  return uniform(tensor, -bound, bound, o.generator)
end

--- Normal with standard deviation gain * sqrt(2 / (fan_in + fan_out)).
---@param tensor accelerate.Tensor
---@param ... any gain = 1, generator, or a table of them
---@return accelerate.Tensor tensor
function init.xavier_normal_(tensor, ...)
  local o = options.read("xavier_normal_", XAVIER_ORDER, XAVIER, ...)
  return normal(tensor, 0, xavier_std("xavier_normal_", tensor, o), o.generator)
end

-- ---- truncated normal

-- 1/2 erfc(-x / sqrt 2), by a continued fraction far out and the series near 0: what decides
-- between limits need not be fast.
local function normal_cdf(x)
  if x == math.huge then return 1 elseif x == -math.huge then return 0 end
  local z = math.abs(x) / math.sqrt(2)
  local tail
  if z < 3 then
    local term, sum, n = z, z, 0
    repeat
      n = n + 1
      term = -term * z * z / n
      sum = sum + term / (2 * n + 1)
    until math.abs(term) < 1e-18
    tail = 1 - 2 / math.sqrt(math.pi) * sum
  else
    local f = 0
    for k = 60, 1, -1 do f = k / 2 / (z + f) end
    tail = math.exp(-z * z) / math.sqrt(math.pi) / (z + f)
  end
  return x > 0 and 1 - tail / 2 or tail / 2
end

local TRUNC = { mean = NORMAL.mean, std = NORMAL.std, a = { "number", default = -2 },
  b = { "number", default = 2 }, generator = DRAW.generator }

--- Normal, with values outside a..b drawn out: uniform over what the distribution function gives
--- between them. The limits are values, not numbers of standard deviations.
---@param tensor accelerate.Tensor
---@param ... any mean = 0, std = 1, a = -2, b = 2, generator, or a table of them
---@return accelerate.Tensor tensor
function init.trunc_normal_(tensor, ...)
  floating("trunc_normal_", tensor)
  local o = options.read("trunc_normal_", { "mean", "std", "a", "b", "generator" }, TRUNC, ...)
  local mean, std = o.mean, o.std
  if std <= 0 then fail("trunc_normal_: std must be above 0, got %g", std) end
  if o.a >= o.b then fail("trunc_normal_: a must be below b, got %g and %g", o.a, o.b) end
  local low, high = normal_cdf((o.a - mean) / std), normal_cdf((o.b - mean) / std)
  return write(tensor, "trunc_normal", { low, high, mean, std, o.a, o.b }, o.generator)
end

-- ---- structured

--- A (semi-)orthogonal matrix times gain; dims after the first count as one.
---@param tensor accelerate.Tensor at least 2 dims
---@param ... any gain = 1, generator, or a table of them
---@return accelerate.Tensor tensor
function init.orthogonal_(tensor, ...)
  floating("orthogonal_", tensor)
  local o = options.read("orthogonal_", XAVIER_ORDER, XAVIER, ...)
  if tensor:dim() < 2 then
    fail("orthogonal_: expected at least 2 dims, got a tensor of shape [%s]",
      table.concat(tensor.shape, ", "))
  end
  if tensor:numel() == 0 then return tensor end
  return write(tensor, "orthogonal", { o.gain }, o.generator)
end

local SPARSE = { sparsity = { "number", min = 0, max = 1 }, std = { "number", default = 0.01, min = 0 },
  generator = DRAW.generator }

--- Normal, with a share of each column set to zero.
---@param tensor accelerate.Tensor 2 dims
---@param ... any sparsity (the share of zeros in each column), std = 0.01, generator, or a table of
---  them
---@return accelerate.Tensor tensor
function init.sparse_(tensor, ...)
  floating("sparse_", tensor)
  local o = options.read("sparse_", { "sparsity", "std", "generator" }, SPARSE, ...)
  if tensor:dim() ~= 2 then
    fail("sparse_: expected 2 dims, got a tensor of shape [%s]", table.concat(tensor.shape, ", "))
  end
  return write(tensor, "sparse", { math.ceil(o.sparsity * tensor:size(1)), o.std }, o.generator)
end

--- The Dirac delta function for the weight of a convolution (out, in / groups, ...): it passes its
--- input channels through.
---@param tensor accelerate.Tensor 3, 4 or 5 dims
---@param ... any groups = 1, or a table with it
---@return accelerate.Tensor tensor
function init.dirac_(tensor, ...)
  check("dirac_", tensor)
  local groups = options.read("dirac_", { "groups" }, { groups = { "integer", default = 1, min = 1 } },
    ...).groups
  local shape = tensor.shape
  if #shape < 3 or #shape > 5 then
    fail("dirac_: expected 3, 4 or 5 dims, got a tensor of shape [%s]", table.concat(shape, ", "))
  end
  if shape[1] % groups ~= 0 then
    fail("dirac_: %d output channels cannot be cut into %d groups", shape[1], groups)
  end
  return write(tensor, "dirac", { groups })
end

local orders = {}
for name in next, init do
  if name:find "_$" then
    orders[name] = debug.getinfo(init[name], "u").isvararg and "tensor ..." or "tensor"
  end
end
require("accelerate.utils.positions").functions(init, orders)

return require("accelerate.utils.properties").strict("accelerate.nn.init", init)
