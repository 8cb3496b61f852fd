--- Normal variables broken off a stick.
local base = require "accelerate.distributions.base"
local continuous = require "accelerate.distributions.continuous"
local Transformed = require "accelerate.distributions.transformed"
local vector_transforms = require "accelerate.distributions.vector_transforms"

--- The distribution of points of the simplex of n + 1 that StickBreakingTransform makes of n normal
--- variables.
---@class accelerate.LogisticNormal: accelerate.TransformedDistribution
---@field loc accelerate.Tensor [.., n]
---@field scale accelerate.Tensor [.., n]
local LogisticNormal = base.class("LogisticNormal", Transformed)

---@param loc accelerate.Tensor|number of the normal variables; a number is one of them
---@param scale accelerate.Tensor|number above 0
---@param opts { validate_args: boolean? }?
function LogisticNormal:init(loc, scale, opts)
  local normal = continuous.Normal(loc, scale, opts)
  if #normal.batch_shape == 0 then normal = normal:expand { 1 } end
  Transformed.init(self, normal, vector_transforms.StickBreakingTransform(), opts)
end

function LogisticNormal:_get_loc() return self.base_dist.base_dist.loc end
function LogisticNormal:_get_scale() return self.base_dist.base_dist.scale end
function LogisticNormal:_support(value) base.check(self, "the value", value, "simplex") end
function LogisticNormal:_expanded(shape)
  local inner = base.joined(shape, self.base_dist.event_shape)
  return LogisticNormal(self.loc:expand(inner), self.scale:expand(inner), { validate_args = self._validate })
end

return LogisticNormal
