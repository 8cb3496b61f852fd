--- What BatchNorm and InstanceNorm have in common: a weight and a bias for each channel, and
--- running statistics.

local core = require "accelerate.core"
local init = require "accelerate.nn.initializers"
local options = require "accelerate.utils.options"
local parameter = require "accelerate.nn.parameter"

local M = {}

--- Fills a module: num_features and, as `o` says, weight and bias, and the buffers of the
--- statistics.
---@param name string the class's, for messages
---@param o { eps: number, momentum: number|boolean, affine: boolean, bias: boolean,
---  track_running_stats: boolean, dtype: string?, device: string? }
function M.fill(self, name, num_features, o)
  self.num_features = options.value(name, "num_features", num_features, { "integer", min = 1 })
  self.eps, self.momentum, self.affine, self.track_running_stats = o.eps, o.momentum, o.affine,
    o.track_running_stats
  local place = { dtype = o.dtype, device = o.device }
  if o.affine then
    self.weight = parameter.empty({ num_features }, place)
    if o.bias then self.bias = parameter.empty({ num_features }, place) end
  end
  if o.track_running_stats then
    local zeros, ones = core.zeros, core.ones
    if o.device == "meta" then zeros, ones = core.empty, core.empty end
    self:register_buffer("running_mean", zeros({ num_features }, place))
    self:register_buffer("running_var", ones({ num_features }, place))
    self:register_buffer("num_batches_tracked", zeros({}, { dtype = "int64", device = o.device }))
  end
  self:reset_parameters()
end

--- Puts the running statistics back to mean 0 and variance 1.
function M.reset_running_stats(self)
  if not self.track_running_stats then return end
  init.zeros_(self.running_mean)
  init.ones_(self.running_var)
  init.zeros_(self.num_batches_tracked)
end

--- Puts weight and bias back to 1 and 0, and the running statistics to their start.
function M.reset_parameters(self)
  M.reset_running_stats(self)
  if self.affine then
    init.ones_(self.weight)
    if self.bias then init.zeros_(self.bias) end
  end
end

return M
