--- Transforms made of others, or of a distribution: of parts of a tensor, of reshaped values.
local base = require "accelerate.distributions.base"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local transforms = require "accelerate.distributions.transforms"

local M = {}

local summed = transforms.summed

local function define(name)
  M[name] = transforms.class(name)
  return M[name]
end

-- Sets the fields that a list of transforms gives.
local function take(self, list)
  local before, after = 0, 0
  for _, part in ipairs(list) do
    before, after = math.max(before, part.domain_event_dim), math.max(after, part.codomain_event_dim)
    self.bijective = self.bijective and part.bijective
  end
  self.transforms, self.domain_event_dim, self.codomain_event_dim = list, before, after
  self._dims = before -- of the parts' values
end

-- Raises unless the dimension dim of x has a size.
local function check(self, x, size)
  local dim, dims = self.dim, x:dim()
  if dim > dims or dim < -dims then
    options.fail("%s: dim %d of a tensor of %d dimensions", self.__name, dim, dims)
  end
  if x:size(dim) ~= size then
    options.fail("%s: expected %d elements in dimension %d, got %d", self.__name, size, dim, x:size(dim))
  end
end

local function dim_of(name, dim)
  if dim == 0 then options.fail("%s: dimensions count from 1, or from -1 backward; got 0", name) end
  return dim
end

-- The logarithms of the parts, joined where the dimension is not one of a value's, else summed.
local function jacobian(self, x, y, join)
  local dims = self._dims
  local terms = self:_each(function(part, a, b)
    return summed(part:log_abs_det_jacobian(a, b), dims - part.domain_event_dim)
  end, x, y)
  local dim = (self.dim > 0 and self.dim - 1 - x:dim() or self.dim) + dims
  if dim < 0 then return join(terms, dim) end
  local total = terms[1]
  for i = 2, #terms do total = total + terms[i] end
  return total
end

-- ---- CatTransform

--- Transforms of the parts of a tensor along a dimension, as tensor.cat joins them.
---@class accelerate.CatTransform: accelerate.Transform
---@field transforms accelerate.Transform[]
---@field dim integer
---@field lengths integer[]
local Cat = define "CatTransform"

---@param tseq accelerate.Transform[]
---@param opts { dim: integer?, lengths: integer[]?, cache_size: integer? }? dim: default 1, the
---  first; lengths: of the parts, default 1 for each
function Cat:init(tseq, opts)
  take(self, transforms.list("CatTransform", tseq))
  local o = transforms.take(self, opts, { dim = { "integer", default = 1 },
    lengths = { "list", optional = true } })
  local lengths = o.lengths
  self.dim, self.lengths, self._length = dim_of("CatTransform", o.dim), {}, 0
  if lengths and #lengths ~= #self.transforms then
    options.fail("CatTransform: got %d lengths for %d transforms", #lengths, #self.transforms)
  end
  for i = 1, #self.transforms do
    local length = lengths and lengths[i] or 1
    options.value("CatTransform", ("lengths[%d]"):format(i), length, { "integer", min = 0 })
    self.lengths[i], self._length = length, self._length + length
  end
end

-- What a function makes of each transform and its part of x and of y, in a list.
function Cat:_each(of, x, y)
  check(self, x, self._length)
  if y then check(self, y, self._length) end
  local start, out = 1, {}
  for i, part in ipairs(self.transforms) do
    local length = self.lengths[i]
    out[i] = of(part, x:narrow(self.dim, start, length), y and y:narrow(self.dim, start, length))
    start = start + length
  end
  return out
end
function Cat:_call(x) return core.cat(self:_each(function(part, a) return part(a) end, x), self.dim) end
function Cat:_inverse(y)
  return core.cat(self:_each(function(part, b) return part:_inv_call(b) end, y), self.dim)
end
function Cat:_jacobian(x, y)
  return jacobian(self, x, y, core.cat)
end

-- ---- StackTransform

--- Transforms of the elements of a dimension, as tensor.stack joins them.
---@class accelerate.StackTransform: accelerate.Transform
---@field transforms accelerate.Transform[]
---@field dim integer
local Stack = define "StackTransform"

---@param tseq accelerate.Transform[]
---@param opts { dim: integer?, cache_size: integer? }? dim: default 1, the first
function Stack:init(tseq, opts)
  take(self, transforms.list("StackTransform", tseq))
  self.dim = dim_of("StackTransform", transforms.take(self, opts, { dim = { "integer", default = 1 } }).dim)
  if self.dim < 0 then -- it may be one of a value's dimensions
    if self.dim + self.domain_event_dim >= 0 then self.domain_event_dim = self.domain_event_dim + 1 end
    if self.dim + self.codomain_event_dim >= 0 then self.codomain_event_dim = self.codomain_event_dim + 1 end
  end
end
function Stack:_each(of, x, y)
  check(self, x, #self.transforms)
  if y then check(self, y, #self.transforms) end
  local out = {}
  for i, part in ipairs(self.transforms) do
    out[i] = of(part, x:select(self.dim, i), y and y:select(self.dim, i))
  end
  return out
end
function Stack:_call(x) return core.stack(self:_each(function(part, a) return part(a) end, x), self.dim) end
function Stack:_inverse(y)
  return core.stack(self:_each(function(part, b) return part:_inv_call(b) end, y), self.dim)
end
function Stack:_jacobian(x, y) return jacobian(self, x, y, core.stack) end

-- ---- ReshapeTransform

--- The last dimensions in another shape.
---@class accelerate.ReshapeTransform: accelerate.Transform
---@field in_shape integer[]
---@field out_shape integer[]
local Reshape = define "ReshapeTransform"

local function elements(where, shape)
  options.value("ReshapeTransform", where, shape, { "table" })
  return lists.product(shape)
end

---@param in_shape integer[] of a value
---@param out_shape integer[] of what it becomes, with as many elements
---@param opts { cache_size: integer? }?
function Reshape:init(in_shape, out_shape, opts)
  transforms.Transform.init(self, opts)
  local before, after = elements("in_shape", in_shape), elements("out_shape", out_shape)
  if before ~= after then
    options.fail("ReshapeTransform: in_shape has %d elements, and out_shape %d", before, after)
  end
  self.in_shape, self.out_shape = in_shape, out_shape
  self.domain_event_dim, self.codomain_event_dim = #in_shape, #out_shape
end
local function exchanged(shape, from, to)
  local cut = #shape - #from
  for i, size in ipairs(from) do
    if shape[cut + i] ~= size then
      options.fail("ReshapeTransform: expected the last dimensions to be {%s}, got {%s}",
        table.concat(from, ", "), table.concat({ unpack(shape, cut + 1) }, ", "))
    end
  end
  return base.joined({ unpack(shape, 1, cut) }, to)
end
function Reshape:_forward_shape(shape) return exchanged(shape, self.in_shape, self.out_shape) end
function Reshape:_inverse_shape(shape) return exchanged(shape, self.out_shape, self.in_shape) end
function Reshape:_call(x) return x:reshape(self:_forward_shape(x.shape)) end
function Reshape:_inverse(y) return y:reshape(self:_inverse_shape(y.shape)) end
function Reshape:_jacobian(x) return summed(core.zeros_like(x), #self.in_shape) end

-- ---- IndependentTransform

--- A transform some of whose batch dimensions are dimensions of one value: log_abs_det_jacobian is
--- summed over them.
---@class accelerate.IndependentTransform: accelerate.Transform
---@field base_transform accelerate.Transform
---@field reinterpreted_batch_ndims integer
local Independent = define "IndependentTransform"

---@param base_transform accelerate.Transform
---@param reinterpreted_batch_ndims integer how many dimensions, from the last one
---@param opts { cache_size: integer? }?
function Independent:init(base_transform, reinterpreted_batch_ndims, opts)
  local transform, ndims = base_transform, reinterpreted_batch_ndims
  transforms.Transform.init(self, opts)
  if not class.is(transform, transforms.Transform) then
    options.fail("IndependentTransform: expected a transform, got %s", options.show(transform))
  end
  options.value("IndependentTransform", "reinterpreted_batch_ndims", ndims, { "integer", min = 0 })
  self.base_transform, self.reinterpreted_batch_ndims = transform, ndims
  self.bijective, self.sign = transform.bijective, transform.sign
  self.domain_event_dim = transform.domain_event_dim + ndims
  self.codomain_event_dim = transform.codomain_event_dim + ndims
end
function Independent:_call(x) return self.base_transform(x) end
function Independent:_inverse(y) return self.base_transform:_inv_call(y) end
function Independent:_jacobian(x, y)
  return summed(self.base_transform:log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)
end
function Independent:_forward_shape(shape) return self.base_transform:forward_shape(shape) end
function Independent:_inverse_shape(shape) return self.base_transform:inverse_shape(shape) end

-- ---- CumulativeDistributionTransform

--- y is the probability of values up to x.
---@class accelerate.CumulativeDistributionTransform: accelerate.Transform
---@field distribution accelerate.Distribution
local Cumulative = define "CumulativeDistributionTransform"

---@param distribution accelerate.Distribution with a cdf and an icdf
---@param opts { cache_size: integer? }?
function Cumulative:init(distribution, opts)
  transforms.Transform.init(self, opts)
  if not class.is(distribution, base.Distribution) then
    options.fail("CumulativeDistributionTransform: expected a distribution, got %s",
      options.show(distribution))
  end
  self.distribution = distribution
end
function Cumulative:_call(x) return self.distribution:cdf(x) end
function Cumulative:_inverse(y) return self.distribution:icdf(y) end
function Cumulative:_jacobian(x) return self.distribution:log_prob(x) end

return M
