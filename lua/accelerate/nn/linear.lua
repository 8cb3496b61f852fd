--- nn.Linear, nn.LazyLinear.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"
local init = require "accelerate.nn.initializers"
local lazy = require "accelerate.nn.lazy"

local linear = core.linear

---@class accelerate.nn.Linear : accelerate.nn.Module
---@field weight accelerate.Tensor (out_features, in_features)
---@field bias accelerate.Tensor? (out_features)
local Linear = class("Linear", Module)
Linear._builtin = true

local SIZE = { "integer", min = 1 }
local OPTIONS = {
  bias = { "boolean", default = true },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}

--- y = x W^T + b over the last dim: (.., in_features) -> (.., out_features).
---@param in_features integer
---@param out_features integer
---@param opts? { bias: boolean, dtype: string, device: string }
function Linear:init(in_features, out_features, opts)
  local o = options.check("Linear", opts, OPTIONS)
  self.in_features = options.value("Linear", "in_features", in_features, SIZE)
  self.out_features = options.value("Linear", "out_features", out_features, SIZE)
  local place = { dtype = o.dtype, device = o.device }
  self.weight = parameter.empty({ out_features, in_features }, place)
  if o.bias then self.bias = parameter.empty({ out_features }, place) end
  self:reset_parameters()
end

--- Draws weight and bias anew, as PyTorch does: both uniform in +-1/sqrt(in_features).
function Linear:reset_parameters()
  init.kaiming_uniform_(self.weight, { a = math.sqrt(5) })
  if self.bias then
    local bound = 1 / math.sqrt(self.in_features)
    init.uniform_(self.bias, -bound, bound)
  end
end

function Linear:forward(x)
  local values = self._values
  return self:_run(linear, x, values.weight, values.bias)
end

function Linear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s"):format(self.in_features, self.out_features,
    Module._show(self.bias ~= nil))
end

---@class accelerate.nn.LazyLinear : accelerate.nn.Linear
local LazyLinear = lazy.class("LazyLinear", Linear)

--- A Linear whose in_features is the size of the last dim of what it is first called with. Until
--- then it has no parameters.
---@param out_features integer
---@param opts? { bias: boolean, dtype: string, device: string }
function LazyLinear:init(out_features, opts)
  local o = options.check("LazyLinear", opts, OPTIONS)
  self.in_features = 0
  self.out_features = options.value("LazyLinear", "out_features", out_features, SIZE)
  self.bias = o.bias or nil -- for print
  lazy.keep(self, function(x)
    if x.ndim < 1 then options.fail("LazyLinear: expected at least one dim, got %s", options.show(x)) end
    return x:size(-1), out_features, o
  end)
end

return { Linear = Linear, LazyLinear = LazyLinear }
