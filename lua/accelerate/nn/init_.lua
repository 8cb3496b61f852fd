--- nn.init: fills tensors in place. Nothing here is recorded for gradients. Draws come from the default generator, or from
--- { generator = tensor.Generator(seed) }; the same seed gives the same values on every device, rank and number of threads.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

---@class accelerate.nn.init
local init = {}

local function check(where, t)
  if not core.is_tensor(t) then fail("%s: expected a tensor, got %s", where, options.show(t)) end
  return t
end

local function floating(where, t)
  check(where, t)
  if not t.dtype:find("float", 1, true) then
    fail("%s: only floating-point tensors can be drawn, got %s", where, t.dtype)
  end
end

local function number(where, what, value, default)
  return options.value(where, what, value, { "number", default = default })
end

-- Runs fn without recording, so that leaves that require gradients may be written.
local function write(t, fn)
  core.no_grad(fn)
  return t
end

local DRAW = { generator = { "Generator", optional = true } }

local function uniform(t, low, high, generator)
  return write(t, function()
    local u = core.rand(t.shape, { dtype = t.dtype, device = t.device, generator = generator })
    u:mul_(high - low)
    t:copy_(u:add_(low))
  end)
end

local function normal(t, mean, std, generator)
  return write(t, function()
    local z = core.randn(t.shape, { dtype = t.dtype, device = t.device, generator = generator })
    z:mul_(std)
    t:copy_(z:add_(mean))
  end)
end

--- Uniform in [a, b).
---@param t accelerate.Tensor
---@param a? number default 0
---@param b? number default 1
---@param opts? { generator: accelerate.Generator }
---@return accelerate.Tensor t
function init.uniform_(t, a, b, opts)
  floating("uniform_", t)
  a, b = number("uniform_", "a", a, 0), number("uniform_", "b", b, 1)
  if a > b then fail("uniform_: a must not be above b, got %g and %g", a, b) end
  return uniform(t, a, b, options.check("uniform_", opts, DRAW).generator)
end

--- Normal with a mean and a standard deviation.
---@param t accelerate.Tensor
---@param mean? number default 0
---@param std? number default 1
---@param opts? { generator: accelerate.Generator }
---@return accelerate.Tensor t
function init.normal_(t, mean, std, opts)
  floating("normal_", t)
  mean, std = number("normal_", "mean", mean, 0), number("normal_", "std", std, 1)
  if std < 0 then fail("normal_: std must be at least 0, got %g", std) end
  return normal(t, mean, std, options.check("normal_", opts, DRAW).generator)
end

---@param t accelerate.Tensor
---@param value number
---@return accelerate.Tensor t
function init.constant_(t, value)
  check("constant_", t)
  value = number("constant_", "value", value)
  return write(t, function() t:fill_(value) end)
end

---@return accelerate.Tensor t
function init.zeros_(t)
  check("zeros_", t)
  return write(t, function() t:zero_() end)
end

---@return accelerate.Tensor t
function init.ones_(t)
  check("ones_", t)
  return write(t, function() t:fill_(1) end)
end

--- Ones on the main diagonal of a matrix, zeros elsewhere.
---@return accelerate.Tensor t
function init.eye_(t)
  check("eye_", t)
  if t:dim() ~= 2 then fail("eye_: expected 2 dims, got %d", t:dim()) end
  return write(t, function()
    t:zero_()
    t:diagonal():fill_(1)
  end)
end

local function fans(where, t)
  floating(where, t)
  local shape = t.shape
  if #shape < 2 then
    fail("%s: fan in and fan out need at least 2 dims, got a tensor of shape [%s]", where, table.concat(shape, ", "))
  end
  local field = 1
  for i = 3, #shape do field = field * shape[i] end
  return shape[2] * field, shape[1] * field
end

local GAINS = {
  linear = 1, sigmoid = 1, conv1d = 1, conv2d = 1, conv3d = 1, tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4,
}
local GAIN_NAMES = { "linear", "sigmoid", "conv1d", "conv2d", "conv3d", "tanh", "relu", "leaky_relu", "selu" }

--- The factor that keeps a signal's scale through a nonlinearity.
---@param nonlinearity string
---@param param? number negative slope, for "leaky_relu"; default 0.01
---@return number
function init.calculate_gain(nonlinearity, param)
  if nonlinearity == "leaky_relu" then
    local slope = number("calculate_gain", "param", param, 0.01)
    return math.sqrt(2 / (1 + slope * slope))
  end
  local gain = GAINS[nonlinearity]
  if not gain then
    fail("calculate_gain: unknown nonlinearity %s%s", options.show(nonlinearity), options.hint(nonlinearity, GAIN_NAMES))
  end
  return gain
end

local KAIMING = {
  a = { "number", default = 0 },
  mode = { "string", default = "fan_in", one_of = { "fan_in", "fan_out" } },
  nonlinearity = { "string", default = "leaky_relu", one_of = GAIN_NAMES },
  generator = DRAW.generator,
}

local function kaiming_std(where, t, o)
  local fan_in, fan_out = fans(where, t)
  return init.calculate_gain(o.nonlinearity, o.a) / math.sqrt(o.mode == "fan_in" and fan_in or fan_out)
end

--- Uniform in +-gain * sqrt(3 / fan).
---@param t accelerate.Tensor
---@param opts? { a: number, mode: "fan_in"|"fan_out", nonlinearity: string, generator: accelerate.Generator }
---@return accelerate.Tensor t
function init.kaiming_uniform_(t, opts)
  local o = options.check("kaiming_uniform_", opts, KAIMING)
  local bound = math.sqrt(3) * kaiming_std("kaiming_uniform_", t, o)
  return uniform(t, -bound, bound, o.generator)
end

--- Normal with standard deviation gain / sqrt(fan).
---@return accelerate.Tensor t
function init.kaiming_normal_(t, opts)
  local o = options.check("kaiming_normal_", opts, KAIMING)
  return normal(t, 0, kaiming_std("kaiming_normal_", t, o), o.generator)
end

local XAVIER = { gain = { "number", default = 1 }, generator = DRAW.generator }

local function xavier_std(where, t, o)
  local fan_in, fan_out = fans(where, t)
  return o.gain * math.sqrt(2 / (fan_in + fan_out))
end

--- Uniform in +-gain * sqrt(6 / (fan_in + fan_out)).
---@param t accelerate.Tensor
---@param opts? { gain: number, generator: accelerate.Generator }
---@return accelerate.Tensor t
function init.xavier_uniform_(t, opts)
  local o = options.check("xavier_uniform_", opts, XAVIER)
  local bound = math.sqrt(3) * xavier_std("xavier_uniform_", t, o)
  return uniform(t, -bound, bound, o.generator)
end

--- Normal with standard deviation gain * sqrt(2 / (fan_in + fan_out)).
---@return accelerate.Tensor t
function init.xavier_normal_(t, opts)
  local o = options.check("xavier_normal_", opts, XAVIER)
  return normal(t, 0, xavier_std("xavier_normal_", t, o), o.generator)
end

return init
