--- Invertible functions of tensors, with the logarithm of how much they stretch.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local orders = require "accelerate.distributions.orders"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"

local M = {}

--- A function with an inverse: `t(x)` is its value, `t.inv(y)` goes back. Most are elementwise;
--- others take vectors or matrices, which are the last dimensions of x. Each constructor has the
--- option cache_size: 1 keeps the last x and y, so that the inverse of y is that x itself, with its
--- gradient; 0, the default, keeps nothing.
---
--- A script's own transform is `accelerate.utils.class("Mine", distributions.Transform)` with the
--- methods `_call(x)`, `_inverse(y)` and `log_abs_det_jacobian(x, y)`.
---@class accelerate.Transform
---@field inv accelerate.Transform
---@field bijective boolean
---@field sign integer|accelerate.Tensor 1 where it rises, -1 where it falls
---@field domain_event_dim integer dimensions of what it takes: 0 where it is elementwise
---@field codomain_event_dim integer dimensions of what comes out
---@field event_dim integer|nil both, where they are one number
local Transform = class "Transform"
class.optional(Transform, "event_dim")
orders.arrange(Transform)
Transform.bijective, Transform.sign = true, 1
Transform.domain_event_dim, Transform.codomain_event_dim = 0, 0

local Inverse

local function event_dim_of(self)
  local dims = self.domain_event_dim
  return dims == self.codomain_event_dim and dims or nil
end

-- Derived classes take this over.
function Transform:__index(key)
  if key == "inv" then return Inverse(self) end
  if key == "event_dim" then return event_dim_of(self) end
  return getmetatable(self)[key]
end

--- Makes a class of transforms.
---@param name string
function M.class(name)
  local Class = class(name, Transform)
  orders.arrange(Class)
  return Class
end

local function define(name)
  M[name] = M.class(name)
  return M[name]
end

--- Returns x summed over its last n dimensions.
---@param x accelerate.Tensor
---@param n integer
---@return accelerate.Tensor
function M.summed(x, n)
  for _ = 1, n do x = x:sum(-1) end
  return x
end
local summed = M.summed

local function tensor_of(where, x)
  if type(x) == "number" then return tensor.tensor(x) end
  if not core.is_tensor(x) then
    options.fail("%s: expected a tensor or a number, got %s", where, options.show(x))
  end
  return x
end

local function fits(self, dims, needed)
  if dims >= needed then return end
  options.fail("%s: expected at least %d dimensions, got %d", self.__name, needed, dims)
end

local CACHE = { cache_size = { "integer", default = 0, min = 0, max = 1 } }

--- Takes the option that all transforms have.
---@param opts? { cache_size: integer }
function Transform:init(opts)
  self._cache_size = options.check(self.__name, opts, CACHE).cache_size
end

--- Reads the options of a constructor that has others than cache_size.
---@param opts table?
---@param schema table of the others
---@return table
function M.take(self, opts, schema)
  schema.cache_size = CACHE.cache_size
  local o = options.check(self.__name, opts, schema)
  self._cache_size = o.cache_size
  return o
end

-- Keeps x and y, when there is a cache.
local function keep(self, x, y)
  if (rawget(self, "_cache_size") or 0) > 0 then self._kept = { x = x, y = y } end
end

function Transform:__call(x)
  x = tensor_of(self.__name, x)
  fits(self, x:dim(), self.domain_event_dim)
  local kept = rawget(self, "_kept")
  if kept and rawequal(kept.x, x) then return kept.y end
  local y = self:_call(x)
  keep(self, x, y)
  return y
end

--- Returns the x of y.
function Transform:_inv_call(y)
  local kept = rawget(self, "_kept")
  if kept and rawequal(kept.y, y) then return kept.x end
  local x = self:_inverse(y)
  keep(self, x, y)
  return x
end

--- Returns the transform with another cache.
---@param cache_size? integer default 1
---@return accelerate.Transform
function Transform:with_cache(cache_size)
  local size = options.check("with_cache", { cache_size = cache_size or 1 }, CACHE).cache_size
  local copy = setmetatable({}, getmetatable(self))
  for key, value in next, self do copy[key] = value end
  copy._cache_size, copy._kept = size, nil
  return copy
end

--- Returns the shape of t(x) for the shape of x.
---@param shape integer[]
---@return integer[]
function Transform:forward_shape(shape)
  fits(self, #shape, self.domain_event_dim)
  return self:_forward_shape(shape)
end

--- Returns the shape of x for the shape of t(x).
---@param shape integer[]
---@return integer[]
function Transform:inverse_shape(shape)
  fits(self, #shape, self.codomain_event_dim)
  return self:_inverse_shape(shape)
end

function Transform:_forward_shape(shape) return shape end
function Transform:_inverse_shape(shape) return self:_forward_shape(shape) end

function Transform:_jacobian()
  options.fail("%s: there is no log_abs_det_jacobian", self.__name)
end

--- Returns the logarithm of |dy / dx| of each element, or of the determinant's absolute value for
--- each vector or matrix.
---@param x accelerate.Tensor
---@param y accelerate.Tensor t(x)
---@return accelerate.Tensor
function Transform:log_abs_det_jacobian(x, y)
  return self:_jacobian(tensor_of(self.__name, x), tensor_of(self.__name, y))
end

-- A metamethod is taken over when a class is made, so derived ones are made from here on.
Inverse = class("InverseTransform", Transform)
function Inverse:init(transform) self.transform = transform end
-- Fields of an inverse, which are fields of what it is the inverse of.
local SAME = { sign = "sign", bijective = "bijective", domain_event_dim = "codomain_event_dim",
  codomain_event_dim = "domain_event_dim" }
Inverse.__index = function(self, key)
  if key == "inv" then return rawget(self, "transform") end
  if key == "event_dim" then return event_dim_of(self) end
  local same = SAME[key]
  if same then return rawget(self, "transform")[same] end
  return Inverse[key]
end
function Inverse:_call(y) return self.transform:_inv_call(y) end
function Inverse:_inverse(x) return self.transform(x) end
function Inverse:_jacobian(y, x) return -self.transform:log_abs_det_jacobian(x, y) end
function Inverse:_forward_shape(shape) return self.transform:_inverse_shape(shape) end
function Inverse:_inverse_shape(shape) return self.transform:_forward_shape(shape) end

--- y = loc + scale x.
---@class accelerate.AffineTransform: accelerate.Transform
local Affine = define "AffineTransform"
---@param loc accelerate.Tensor|number
---@param scale accelerate.Tensor|number
---@param opts { event_dim: integer?, cache_size: integer? }? event_dim: how many of the last
---  dimensions are one value, default 0
function Affine:init(loc, scale, opts)
  local dims = M.take(self, opts, { event_dim = { "integer", default = 0, min = 0 } }).event_dim
  if dims > 0 then self.domain_event_dim, self.codomain_event_dim = dims, dims end
  self.loc, self.scale = tensor_of("AffineTransform", loc), tensor_of("AffineTransform", scale)
  self.sign = self.scale:detach():sign()
end
-- Numbers become tensors of x's type.
local function beside(value, x) return value:dim() == 0 and value:to(x.dtype):to(x.device) or value end
function Affine:_call(x) return beside(self.loc, x) + beside(self.scale, x) * x end
function Affine:_inverse(y) return (y - beside(self.loc, y)) / beside(self.scale, y) end
function Affine:_jacobian(x)
  return summed(beside(self.scale, x):abs():log() + core.zeros_like(x), self.domain_event_dim)
end
function Affine:_forward_shape(shape)
  return tensor.broadcast_shapes(shape, self.loc.shape, self.scale.shape)
end

--- y = exp(x).
---@class accelerate.ExpTransform: accelerate.Transform
local Exp = define "ExpTransform"
function Exp:_call(x) return x:exp() end
function Exp:_inverse(y) return y:log() end
function Exp:_jacobian(x) return x end

--- y = 1 / (1 + exp(-x)).
---@class accelerate.SigmoidTransform: accelerate.Transform
local Sigmoid = define "SigmoidTransform"
local function inside(y, low)
  local least = y.dtype == "float64" and 2 ^ -52 or 2 ^ -23
  return y:clamp { min = low + (low == 0 and 2 ^ -126 or least), max = 1 - least }
end
function Sigmoid:_call(x) return inside(x:sigmoid(), 0) end
function Sigmoid:_inverse(y)
  y = inside(y, 0)
  return y:log() - (-y):log1p()
end
function Sigmoid:_jacobian(x) return x:logsigmoid() + (-x):logsigmoid() end

--- y = tanh(x).
---@class accelerate.TanhTransform: accelerate.Transform
local Tanh = define "TanhTransform"
function Tanh:_call(x) return x:tanh() end
function Tanh:_inverse(y)
  y = inside(y, -1)
  return 0.5 * (y:log1p() - (-y):log1p())
end
function Tanh:_jacobian(x) return 2 * (math.log(2) - x - core.softplus(-2 * x)) end

--- y = log(1 + exp(x)).
---@class accelerate.SoftplusTransform: accelerate.Transform
local Softplus = define "SoftplusTransform"
function Softplus:_call(x) return core.softplus(x) end
function Softplus:_inverse(y) return (-(-y):expm1()):log() + y end
function Softplus:_jacobian(x) return x:logsigmoid() end

--- y = x^exponent, for x above 0.
---@class accelerate.PowerTransform: accelerate.Transform
local Power = define "PowerTransform"
---@param exponent accelerate.Tensor|number not 0
---@param opts { cache_size: integer? }?
function Power:init(exponent, opts)
  Transform.init(self, opts)
  self.exponent = tensor_of("PowerTransform", exponent)
  if self.exponent:detach():eq(0):any():item() then
    options.fail("PowerTransform: the exponent must not be 0, got %s", options.show(exponent))
  end
  self.sign = self.exponent:detach():sign()
end
function Power:_call(x) return x:pow(beside(self.exponent, x)) end
function Power:_inverse(y) return y:pow(1 / beside(self.exponent, y)) end
function Power:_forward_shape(shape) return tensor.broadcast_shapes(shape, self.exponent.shape) end
function Power:_jacobian(x, y) return (beside(self.exponent, x) * y / x):abs():log() end

--- y = |x|; its inverse is the value itself.
---@class accelerate.AbsTransform: accelerate.Transform
local Abs = define "AbsTransform"
Abs.bijective = false
function Abs:_call(x) return x:abs() end
function Abs:_inverse(y) return y end

--- Several transforms, the first one first.
---@class accelerate.ComposeTransform: accelerate.Transform
local Compose = define "ComposeTransform"

--- Returns a list of transforms, checked.
function M.list(where, parts)
  if class.is(parts, Transform) then parts = { parts } end
  options.value(where, "transforms", parts, { "table" })
  local fault = lists.fault(parts)
  if fault then options.fail("%s: expected a list of transforms, but it has %s", where, fault) end
  for i, part in ipairs(parts) do
    if not class.is(part, Transform) then
      options.fail("%s: transforms[%d] must be a transform, got %s", where, i, options.show(part))
    end
  end
  return parts
end

---@param parts accelerate.Transform[]
---@param opts { cache_size: integer? }?
function Compose:init(parts, opts)
  Transform.init(self, opts)
  self.parts = M.list("ComposeTransform", parts)
  local n = #self.parts
  if n == 0 then return end
  for _, part in ipairs(self.parts) do
    self.bijective, self.sign = self.bijective and part.bijective, self.sign * part.sign
  end
  -- the dimensions that all parts need, seen from either end
  local before, after = self.parts[n].codomain_event_dim, self.parts[1].domain_event_dim
  for i = 1, n do
    local part, back = self.parts[i], self.parts[n + 1 - i]
    after = math.max(after + part.codomain_event_dim - part.domain_event_dim, part.codomain_event_dim)
    before = math.max(before + back.domain_event_dim - back.codomain_event_dim, back.domain_event_dim)
  end
  self.domain_event_dim, self.codomain_event_dim = before, after
end
function Compose:_call(x)
  for _, part in ipairs(self.parts) do x = part(x) end
  return x
end
function Compose:_inverse(y)
  for i = #self.parts, 1, -1 do y = self.parts[i]:_inv_call(y) end
  return y
end
function Compose:_jacobian(x)
  local total, dims = nil, self.domain_event_dim
  for _, part in ipairs(self.parts) do
    local y = part(x)
    local term = summed(part:log_abs_det_jacobian(x, y), dims - part.domain_event_dim)
    total, x, dims = total and total + term or term, y, dims + part.codomain_event_dim - part.domain_event_dim
  end
  return total or core.zeros_like(x)
end
function Compose:_forward_shape(shape)
  for _, part in ipairs(self.parts) do shape = part:forward_shape(shape) end
  return shape
end
function Compose:_inverse_shape(shape)
  for i = #self.parts, 1, -1 do shape = self.parts[i]:inverse_shape(shape) end
  return shape
end

M.Transform = Transform

return M
