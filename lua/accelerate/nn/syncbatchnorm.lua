--- nn.SyncBatchNorm: batch normalisation over the batches of all ranks.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local functional = require "accelerate.distributed.functional"
local groups = require "accelerate.distributed.group"
local batchnorm = require "accelerate.nn.batchnorm"
local running_stats = require "accelerate.nn.running_stats"

local OPTIONS = {
  eps = { "number", default = 1e-5, min = 0 },
  momentum = { "number|boolean", default = 0.1 },
  affine = { "boolean", default = true },
  bias = { "boolean", default = true },
  track_running_stats = { "boolean", default = true },
  process_group = { "any", optional = true },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}

---@class accelerate.nn.SyncBatchNorm : accelerate.nn.Module
---@field weight accelerate.Tensor? (num_features)
---@field bias accelerate.Tensor? (num_features)
---@field running_mean accelerate.Tensor?
---@field running_var accelerate.Tensor?
---@field num_batches_tracked accelerate.Tensor? int64, 0-d
local SyncBatchNorm = class("SyncBatchNorm", Module)
SyncBatchNorm._builtin = true
SyncBatchNorm.reset_running_stats = running_stats.reset_running_stats
SyncBatchNorm.reset_parameters = running_stats.reset_parameters

--- Normalises each channel of (n, c, ..) over the batches of all ranks together, or of those of
--- process_group; each of them must call it. In evaluation, or with one rank, it is BatchNorm.
---@param num_features integer
---@param opts? { eps: number, momentum: number|false, affine: boolean, bias: boolean,
---  track_running_stats: boolean, process_group: accelerate.ProcessGroup?, dtype: string,
---  device: string } as BatchNorm2d's; process_group: default the world
function SyncBatchNorm:init(num_features, opts)
  local o = options.check("SyncBatchNorm", opts, OPTIONS)
  if o.momentum == true then
    options.fail("SyncBatchNorm: momentum: expected a number, or false for a cumulative average")
  end
  if o.process_group then groups.handle_of("SyncBatchNorm", o.process_group) end
  running_stats.fill(self, "SyncBatchNorm", num_features, o)
  self._group = o.process_group
end

local function over_batch(x) -- sums of each channel
  return x:transpose(1, 2):flatten(2):sum(2)
end

-- Mean and variance of each channel over the group's ranks, and the number of elements.
local function statistics(x, group)
  local function over_ranks(t) return functional.all_reduce(t, { group = group }) end
  local channels = x.shape[2]
  local count = core.full({ 1 }, x:numel() / channels, { dtype = x.dtype, device = x.device })
  local sums = over_ranks(core.cat({ over_batch(x), count }))
  local total = sums:narrow(1, channels + 1, 1):detach()
  local mean = sums:narrow(1, 1, channels) / total
  local shape = { 1, channels }
  for d = 3, x.ndim do shape[d] = 1 end
  local centered = x - mean:view(shape)
  return mean, over_ranks(over_batch(centered:square())) / total, total:item(), centered, shape
end

local function track(self, mean, var, total)
  local v = self._values
  if not v.track_running_stats then return end
  local momentum = v.momentum
  core.no_grad(function()
    v.num_batches_tracked:add_(1)
    if momentum == false then momentum = 1 / v.num_batches_tracked:item() end
    local unbiased = var * (total / math.max(total - 1, 1))
    v.running_mean:mul_(1 - momentum):add_(mean:to(v.running_mean.dtype) * momentum)
    v.running_var:mul_(1 - momentum):add_(unbiased:to(v.running_var.dtype) * momentum)
  end)
end

local function normalized(self, given)
  local v = self._values
  local half = given.dtype == "float16" or given.dtype == "bfloat16"
  local x = half and given:float() or given
  local mean, var, total, centered, shape = statistics(x, self._group)
  if total <= 1 then
    options.fail("SyncBatchNorm: expected more than one value for each channel over all ranks, got shape %s",
      Module._tuple(given.shape))
  end
  track(self, mean, var, total)
  local y = centered * (var + v.eps):rsqrt():view(shape)
  if v.weight then y = y * v.weight:to(x.dtype):view(shape) end
  if v.bias then y = y + v.bias:to(x.dtype):view(shape) end
  return y:to(given.dtype)
end

function SyncBatchNorm:forward(x)
  local v = self._values
  if not core.is_tensor(x) or x.ndim < 2 or x.shape[2] ~= v.num_features then
    options.fail("SyncBatchNorm: expected an input (n, %d, ..), got %s (in %s)", v.num_features,
      options.show(x), self:_brief())
  end
  local training = self.training or not v.track_running_stats
  if training and (self._group or groups.world()).size > 1 then return self:_run(normalized, self, x) end
  local momentum = v.momentum
  if self.training and v.track_running_stats then
    v.num_batches_tracked:add_(1)
    if momentum == false then momentum = 1 / v.num_batches_tracked:item() end
  end
  return self:_run(core.batch_norm, x, v.running_mean, v.running_var, v.weight, v.bias, training,
    momentum or 0, v.eps)
end

function SyncBatchNorm:extra_repr()
  return ("%d, eps=%g, momentum=%s, affine=%s, bias=%s, track_running_stats=%s"):format(self.num_features,
    self.eps,
    self.momentum and Module._show(self.momentum) or "None", Module._show(self.affine),
    Module._show(self.bias ~= nil), Module._show(self.track_running_stats))
end

local KINDS = { [batchnorm.BatchNorm1d] = true, [batchnorm.BatchNorm2d] = true,
  [batchnorm.BatchNorm3d] = true }

-- The SyncBatchNorm that takes a BatchNorm's place, with its tensors.
local function converted(module, process_group)
  local v = module._values
  if v.activation ~= "none" then
    options.fail("convert_sync_batchnorm: a BatchNorm with activation = %q cannot be converted", v.activation)
  end
  local made = SyncBatchNorm(v.num_features, { eps = v.eps, momentum = v.momentum, affine = v.affine,
    bias = v.bias ~= nil, track_running_stats = v.track_running_stats, process_group = process_group })
  for _, name in ipairs { "weight", "bias", "running_mean", "running_var", "num_batches_tracked" } do
    if v[name] then made[name] = v[name] end
  end
  made.training = module.training
  return made
end

--- Replaces all BatchNorms in a module by SyncBatchNorms, which take over their tensors.
---@param module accelerate.nn.Module changed in place, unless it is a BatchNorm itself
---@param process_group accelerate.ProcessGroup? default the world
---@return accelerate.nn.Module module, or the SyncBatchNorm in its place
function SyncBatchNorm.convert_sync_batchnorm(module, process_group)
  if not Module._is_module(module) then
    options.fail("convert_sync_batchnorm: expected a module, got %s", options.show(module))
  end
  if KINDS[class.of(module)] then return converted(module, process_group) end
  for name, child in module:named_children() do
    local new = SyncBatchNorm.convert_sync_batchnorm(child, process_group)
    if new ~= child then module[name] = new end
  end
  return module
end

return { SyncBatchNorm = SyncBatchNorm }
