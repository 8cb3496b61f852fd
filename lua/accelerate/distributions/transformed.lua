--- Distributions of functions of variables.
local base = require "accelerate.distributions.base"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"
local transforms = require "accelerate.distributions.transforms"

--- The distribution of a variable that transforms are applied to.
---@class accelerate.TransformedDistribution: accelerate.Distribution
---@field base_dist accelerate.Distribution
---@field transforms accelerate.Transform[]
local Transformed = base.class "TransformedDistribution"

---@param distribution accelerate.Distribution of the variable
---@param list accelerate.Transform|accelerate.Transform[] applied from the first one on
---@param opts { validate_args: boolean? }?
function Transformed:init(distribution, list, opts)
  local name = "TransformedDistribution"
  local validate = base.validates(name, opts)
  if not class.is(distribution, base.Distribution) then
    options.fail("%s: expected a distribution, got %s", name, options.show(distribution))
  end
  self.base_dist, self.transforms = distribution, transforms.list(name, list)
  self.has_rsample = distribution.has_rsample
  local shape = base.joined(distribution.batch_shape, distribution.event_shape)
  for _, part in ipairs(self.transforms) do -- parameters of transforms may be larger
    shape = tensor.broadcast_shapes(shape, part.loc and part.loc.shape or {},
      part.scale and part.scale.shape or {}, part.exponent and part.exponent.shape or {})
  end
  local events = #distribution.event_shape
  local batch = { unpack(shape, 1, #shape - events) }
  if table.concat(batch, ",") ~= table.concat(distribution.batch_shape, ",") then
    self.base_dist = distribution:expand(batch)
  end
  self:_shapes(batch, { unpack(shape, #shape - events + 1) }, validate)
end

function Transformed:_dtype() return self.base_dist:_dtype() end
function Transformed:_draw(shape, sample_shape)
  local x = self.base_dist:_draw(shape, sample_shape)
  for _, part in ipairs(self.transforms) do x = part(x) end
  return x
end
function Transformed:_expanded(shape)
  return Transformed(self.base_dist:expand(shape), self.transforms, { validate_args = self._validate })
end

function Transformed:log_prob(value)
  local y, total = self:_value(value), 0
  for i = #self.transforms, 1, -1 do
    local part = self.transforms[i]
    local x = part:_inverse(y)
    local stretch = part:_jacobian(x, y)
    for _ = 1, #self.event_shape do stretch = stretch:sum(-1) end
    total, y = total - stretch, x
  end
  return self.base_dist:log_prob(y) + total
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
  for i = #self.transforms, 1, -1 do x = self.transforms[i]:_inverse(x) end
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
