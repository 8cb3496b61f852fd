--- Distributions of functions of variables.
local base = require "accelerate.distributions.base"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local Independent = require "accelerate.distributions.independent"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"
local transform = require "accelerate.distributions.transforms"

--- The distribution of a variable that transforms are applied to.
---@class accelerate.TransformedDistribution: accelerate.Distribution
---@field base_dist accelerate.Distribution
---@field transforms accelerate.Transform[]
local Transformed = base.class "TransformedDistribution"

---@param base_distribution accelerate.Distribution of the variable
---@param transforms accelerate.Transform|accelerate.Transform[] applied from the first one on
---@param opts { validate_args: boolean? }?
function Transformed:init(base_distribution, transforms, opts)
  local distribution = base_distribution
  local name = "TransformedDistribution"
  local validate = base.validates(name, opts)
  if not class.is(distribution, base.Distribution) then
    options.fail("%s: expected a distribution, got %s", name, options.show(distribution))
  end
  self.transforms = transform.list(name, transforms)
  self.has_rsample = distribution.has_rsample
  local chain, events = transform.ComposeTransform(self.transforms), #distribution.event_shape
  local given = base.joined(distribution.batch_shape, distribution.event_shape)
  local shape = chain:forward_shape(given)
  local wide = chain:inverse_shape(shape) -- parameters of transforms may be larger
  if table.concat(wide, ",") ~= table.concat(given, ",") then
    distribution = distribution:expand { unpack(wide, 1, #wide - events) }
  end
  if chain.domain_event_dim > events then -- batch dimensions that a transform takes together
    distribution = Independent(distribution, chain.domain_event_dim - events)
  end
  self.base_dist = distribution
  local cut = #shape - math.max(chain.codomain_event_dim,
    events + chain.codomain_event_dim - chain.domain_event_dim)
  self:_shapes({ unpack(shape, 1, cut) }, { unpack(shape, cut + 1) }, validate)
end

function Transformed:_dtype() return self.base_dist:_dtype() end
function Transformed:_draw(_, sample_shape)
  local inner = self.base_dist
  local x = inner:_draw(base.joined(sample_shape, inner.batch_shape, inner.event_shape), sample_shape)
  for _, part in ipairs(self.transforms) do x = part(x) end
  return x
end
function Transformed:_expanded(shape)
  local inner, wide = self.base_dist, base.joined(shape, self.event_shape)
  for i = #self.transforms, 1, -1 do wide = self.transforms[i]:inverse_shape(wide) end
  return Transformed(inner:expand { unpack(wide, 1, #wide - #inner.event_shape) }, self.transforms,
    { validate_args = self._validate })
end

function Transformed:log_prob(value)
  local y, total, dims = self:_value(value), 0, #self.event_shape
  for i = #self.transforms, 1, -1 do
    local part = self.transforms[i]
    local x = part:_inv_call(y)
    dims = dims + part.domain_event_dim - part.codomain_event_dim
    total, y = total - transform.summed(part:log_abs_det_jacobian(x, y), dims - part.domain_event_dim), x
  end
  return transform.summed(self.base_dist:log_prob(y), dims - #self.base_dist.event_shape) + total
end

local function sign_of(self)
  local sign = 1
  for _, part in ipairs(self.transforms) do
    if not part.bijective then
      options.fail("TransformedDistribution: %s has no inverse, so there is no cdf", part.__name)
    end
    sign = sign * part.sign
  end
  return sign
end

-- p where the transforms rise, 1 - p where they fall.
local function turned(sign, p) return sign * (p - 0.5) + 0.5 end
local function beside(sign, p) return core.is_tensor(sign) and sign:to(p.dtype) or sign end

function Transformed:cdf(value)
  local sign, x = sign_of(self), self:_value(value)
  for i = #self.transforms, 1, -1 do x = self.transforms[i]:_inv_call(x) end
  local p = self.base_dist:cdf(x)
  return turned(beside(sign, p), p)
end

function Transformed:icdf(p)
  p = type(p) == "number" and tensor.tensor(p, { dtype = self:_dtype() }) or p
  local x = self.base_dist:icdf(turned(beside(sign_of(self), p), p))
  for _, part in ipairs(self.transforms) do x = part(x) end
  return x
end

return Transformed
