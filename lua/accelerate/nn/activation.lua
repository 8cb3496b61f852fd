--- Activations: modules of one input, all but PReLU without parameters; and Flatten.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"

local rrelu = require("accelerate.nn.functional.dropout").rrelu

local M = {}

local NONE = {}

local function simple(name, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(opts) options.check(name, opts, NONE) end
  function Class:forward(x) return self:_run(op, x) end
  return Class
end

--- Hyperbolic tangent of each element.
---@class accelerate.nn.Tanh : accelerate.nn.Module
M.Tanh = simple("Tanh", core.tanh)

--- 1 / (1 + exp(-x)) of each element.
---@class accelerate.nn.Sigmoid : accelerate.nn.Module
M.Sigmoid = simple("Sigmoid", core.sigmoid)

---@class accelerate.nn.ReLU : accelerate.nn.Module
local ReLU = class("ReLU", Module)
ReLU._builtin = true

--- max(x, 0) of each element.
---@param opts? { inplace: boolean } inplace: the input itself is rewritten
function ReLU:init(opts)
  self.inplace = options.check("ReLU", opts, { inplace = { "boolean", default = false } }).inplace
end

local relu = core.relu

local function relu_(x) return x:relu_() end

function ReLU:forward(x) return self:_run(self._values.inplace and relu_ or relu, x) end

function ReLU:extra_repr() return self.inplace and "inplace=True" or "" end

M.ReLU = ReLU

-- As Python shows a float: 1.0, 0.01.
local function shown(v)
  if type(v) ~= "number" then return ("'%s'"):format(tostring(v)) end
  return v == math.floor(v) and ("%.1f"):format(v) or ("%.14g"):format(v)
end

--- A module class over the row `name` with numbers (or words) that the constructor takes by
--- position or by name.
---@param title string the class's name
---@param name string the row; with `inplace`, its in-place form
---@param order string[] options in the order of positions
---@param schema table what options.check wants of them; with `inplace` when the row may rewrite its
---  input
---@param bare? boolean print values without their names
local function activation(title, name, order, schema, bare)
  local op, op_ = core[name], nil
  local Class = class(title, Module)
  Class._builtin = true
  if schema.inplace then op_ = function(x, ...) return x[name .. "_"](x, ...) end end
  function Class:init(...)
    local opts = ...
    if type(opts) ~= "table" then
      opts = {}
      for k, value in ipairs { ... } do
        if not order[k] then
          options.fail("%s: %d arguments given, at most %d expected", title, select("#", ...), #order)
        end
        opts[order[k]] = value
      end
    end
    local o = options.check(title, opts, schema)
    for _, key in ipairs(order) do self[key] = o[key] end
    if schema.inplace then self.inplace = o.inplace end
  end
  local a, b = order[1], order[2]
  function Class:forward(x)
    local values = self._values
    local fn = values.inplace and op_ or op
    if b then return self:_run(fn, x, values[a], values[b]) end
    if a then return self:_run(fn, x, values[a]) end
    return self:_run(fn, x)
  end
  function Class:extra_repr()
    local parts = {}
    for _, key in ipairs(order) do
      parts[#parts + 1] = (bare and "" or key .. "=") ..
        (schema[key][1] == "integer" and tostring(self[key]) or shown(self[key]))
    end
    if self._values.inplace then parts[#parts + 1] = "inplace=True" end
    return table.concat(parts, ", ")
  end
  M[title] = Class
end

local function num(default) return { "number", default = default } end
local INPLACE = { "boolean", default = false }

-- Each takes its numbers by position or by name: nn.LeakyReLU(0.2), nn.LeakyReLU { negative_slope =
-- 0.2, inplace = true }.
--- x times the normal distribution function of x; approximate = "tanh" takes the tanh form.
activation("GELU", "gelu", { "approximate" },
  { approximate = { "string", default = "none", one_of = { "none", "tanh" } } })
--- x * sigmoid(x), also called swish.
activation("SiLU", "silu", {}, { inplace = INPLACE })
--- x * tanh(softplus(x)).
activation("Mish", "mish", {}, { inplace = INPLACE })
--- x where it is positive, else negative_slope * x (0.01).
activation("LeakyReLU", "leaky_relu", { "negative_slope" }, { negative_slope = num(0.01), inplace = INPLACE })
--- x where it is positive, else alpha * (exp(x) - 1); alpha = 1.
activation("ELU", "elu", { "alpha" }, { alpha = num(1), inplace = INPLACE })
--- max(0, x) + min(0, alpha * (exp(x / alpha) - 1)); alpha = 1.
activation("CELU", "celu", { "alpha" }, { alpha = num(1), inplace = INPLACE })
--- The self-normalising ELU, with the constants of arXiv 1706.02515.
activation("SELU", "selu", {}, { inplace = INPLACE })
--- log(1 + exp(beta x)) / beta, and x itself where beta x is above threshold; beta = 1, threshold =
--- 20.
activation("Softplus", "softplus", { "beta", "threshold" }, { beta = num(1), threshold = num(20) })
--- log(sigmoid(x)).
activation("LogSigmoid", "logsigmoid", {}, {})
--- min(max(x, 0), 6).
activation("ReLU6", "relu6", {}, { inplace = INPLACE })
--- x kept within min_val .. max_val (-1, 1).
activation("Hardtanh", "hardtanh", { "min_val", "max_val" },
  { min_val = num(-1), max_val = num(1), inplace = INPLACE })
--- min(max(x / 6 + 1 / 2, 0), 1).
activation("Hardsigmoid", "hardsigmoid", {}, { inplace = INPLACE })
--- x * hardsigmoid(x).
activation("Hardswish", "hardswish", {}, { inplace = INPLACE })
--- x moved by lambd (0.5) towards 0, and 0 where it would pass it.
activation("Softshrink", "softshrink", { "lambd" }, { lambd = { "number", default = 0.5, min = 0 } }, true)
--- 0 where |x| <= lambd (0.5), else x.
activation("Hardshrink", "hardshrink", { "lambd" }, { lambd = num(0.5) }, true)
--- x where it is above threshold, else value.
activation("Threshold", "threshold", { "threshold", "value" },
  { threshold = { "number" }, value = { "number" }, inplace = INPLACE })
--- x / (1 + |x|).
activation("Softsign", "softsign", {}, {})
--- x - tanh(x).
activation("Tanhshrink", "tanhshrink", {}, {})
--- The first half along dim (-1), times the sigmoid of the second half.
activation("GLU", "glu", { "dim" }, { dim = { "integer", default = -1 } })

---@class accelerate.nn.PReLU : accelerate.nn.Module
local PReLU = class("PReLU", Module)
PReLU._builtin = true

--- x where positive, else weight * x: one weight, or one for each position of dim 2.
---@param num_parameters? integer|{ num_parameters: integer, init: number } default 1
---@param init? number default 0.25
function PReLU:init(num_parameters, init)
  local o = type(num_parameters) == "table" and num_parameters
    or { num_parameters = num_parameters, init = init }
  o = options.check("PReLU", o, { num_parameters = { "integer", default = 1, min = 1 },
    init = { "number", default = 0.25 } })
  self.num_parameters = o.num_parameters
  self.weight = parameter.new(core.full({ o.num_parameters }, o.init))
end

function PReLU:forward(x) return self:_run(core.prelu, x, self.weight) end

function PReLU:extra_repr() return ("num_parameters=%d"):format(self.num_parameters) end

M.PReLU = PReLU

---@class accelerate.nn.RReLU : accelerate.nn.Module
local RReLU = class("RReLU", Module)
RReLU._builtin = true

--- x where positive, else x times a slope: drawn between lower and upper in training, their mean
--- otherwise.
---@param ... any lower = 1/8, upper = 1/3, generator, or a table of them
function RReLU:init(...)
  local o = options.check("RReLU", options.gather("RReLU", { "lower", "upper" }, ...), { lower = num(1 / 8),
    upper = num(1 / 3), generator = { "Generator", optional = true } })
  if o.lower > o.upper then
    options.fail("RReLU: lower must not be above upper, got %g and %g", o.lower, o.upper)
  end
  self.lower, self.upper, self.generator = o.lower, o.upper, o.generator
end

function RReLU:forward(x)
  local v = self._values
  return self:_run(rrelu, x, { lower = v.lower, upper = v.upper, training = self.training,
    generator = v.generator })
end

function RReLU:extra_repr()
  return ("lower=%s, upper=%s"):format(("%.16g"):format(self.lower), ("%.16g"):format(self.upper))
end

M.RReLU = RReLU

local DIM = { dim = { "integer" } }

local function along(name, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(dim)
    local o = type(dim) == "table" and dim or { dim = dim }
    self.dim = options.check(name, o, DIM).dim
  end
  function Class:forward(x) return self:_run(op, x, self.dim) end
  function Class:extra_repr() return ("dim=%d"):format(self.dim) end
  return Class
end

--- `nn.Softmax(-1)`: exp(x) / sum(exp(x)) along a dim (1-based, -1 is the last).
---@class accelerate.nn.Softmax : accelerate.nn.Module
M.Softmax = along("Softmax", core.softmax)

--- `nn.Softmin(-1)`: Softmax of -x.
---@class accelerate.nn.Softmin : accelerate.nn.Module
M.Softmin = along("Softmin", function(x, dim) return core.softmax(-x, dim) end)

--- `nn.Softmax2d()`: Softmax over the channels of (n, c, h, w) or (c, h, w).
---@class accelerate.nn.Softmax2d : accelerate.nn.Module
local Softmax2d = class("Softmax2d", Module)
Softmax2d._builtin = true
function Softmax2d:forward(x)
  if x.ndim ~= 3 and x.ndim ~= 4 then
    options.fail("Softmax2d: expected (n, c, h, w) or (c, h, w), got %s", options.show(x))
  end
  return self:_run(core.softmax, x, -3)
end
M.Softmax2d = Softmax2d

--- `nn.LogSoftmax(-1)`: the logarithm of Softmax, computed safely.
---@class accelerate.nn.LogSoftmax : accelerate.nn.Module
M.LogSoftmax = along("LogSoftmax", core.log_softmax)

---@class accelerate.nn.Flatten : accelerate.nn.Module
local Flatten = class("Flatten", Module)
Flatten._builtin = true

local FLATTEN = { start_dim = { "integer", default = 2 }, end_dim = { "integer", default = -1 } }

--- Dims start_dim..end_dim as one; by default all but the first (the batch).
---@param start_dim? integer|{ start_dim: integer, end_dim: integer } default 2
---@param end_dim? integer default -1
function Flatten:init(start_dim, end_dim)
  local o = start_dim
  if type(o) ~= "table" then o = { start_dim = start_dim, end_dim = end_dim } end
  o = options.check("Flatten", o, FLATTEN)
  self.start_dim, self.end_dim = o.start_dim, o.end_dim
end

local flatten = core.flatten

function Flatten:forward(x)
  local values = self._values
  return self:_run(flatten, x, values.start_dim, values.end_dim)
end

function Flatten:extra_repr() return ("start_dim=%d, end_dim=%d"):format(self.start_dim, self.end_dim) end

M.Flatten = Flatten

return M
