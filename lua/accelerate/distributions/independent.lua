--- Batch dimensions as parts of one event.
local base = require "accelerate.distributions.base"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"

--- A distribution whose last batch dimensions are dimensions of the event: log_prob and entropy are
--- summed over them.
---@class accelerate.Independent: accelerate.Distribution
---@field base_dist accelerate.Distribution
---@field reinterpreted_batch_ndims integer
local Independent = base.class "Independent"

---@param base_distribution accelerate.Distribution
---@param reinterpreted_batch_ndims integer how many batch dimensions, from the last one
---@param opts { validate_args: boolean? }? default: as the distribution does
function Independent:init(base_distribution, reinterpreted_batch_ndims, opts)
  local distribution, ndims = base_distribution, reinterpreted_batch_ndims
  if not class.is(distribution, base.Distribution) then
    options.fail("Independent: expected a distribution, got %s", options.show(distribution))
  end
  local batch = distribution.batch_shape
  options.value("Independent", "reinterpreted_batch_ndims", ndims, { "integer", min = 0 })
  if ndims > #batch then
    options.fail(
      "Independent: expected reinterpreted_batch_ndims of at most %d, the batch dimensions, got %d",
      #batch, ndims)
  end
  local kept, event = {}, {}
  for i, size in ipairs(batch) do
    if i <= #batch - ndims then kept[i] = size else event[#event + 1] = size end
  end
  self.base_dist, self.reinterpreted_batch_ndims = distribution, ndims
  self.has_rsample = distribution.has_rsample
  local validate = distribution._validate
  if opts then validate = base.validates("Independent", opts) end
  self:_shapes(kept, base.joined(event, distribution.event_shape), validate)
end

local function summed(self, x)
  for _ = 1, self.reinterpreted_batch_ndims do x = x:sum(-1) end
  return x
end
Independent._summed = summed

function Independent:_dtype() return self.base_dist:_dtype() end
function Independent:_get_mean() return self.base_dist.mean end
function Independent:_get_mode() return self.base_dist.mode end
function Independent:_get_variance() return self.base_dist.variance end
function Independent:_draw(shape, sample_shape) return self.base_dist:_draw(shape, sample_shape) end
function Independent:_expanded(shape)
  local inner, n = base.joined(shape), #self.event_shape - #self.base_dist.event_shape
  for i = 1, n do inner[#inner + 1] = self.event_shape[i] end
  return Independent(self.base_dist:expand(inner), self.reinterpreted_batch_ndims)
end
function Independent:log_prob(value) return summed(self, self.base_dist:log_prob(value)) end
function Independent:entropy() return summed(self, self.base_dist:entropy()) end

return Independent
