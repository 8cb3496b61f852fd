--- optim.swa_utils: averages of a model's weights over training (stochastic weight averaging,
--- exponential moving averages), as in torch.optim.swa_utils.
---
---   local ema = optim.swa_utils.AveragedModel(model, { multi_avg_fn =
---     swa_utils.get_ema_multi_avg_fn(0.999) })
---   … optimizer:step(); ema:update_parameters(model) …
---   evaluate(ema)

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local parameter = require "accelerate.nn.parameter"
local positions = require "accelerate.utils.positions"
local base = require "accelerate.optim.lr_scheduler.base"

local fail = options.fail

local M = {}

-- What parallel.sharded.averages does for models that are cut over ranks; false: it is not loaded.
---@type table|false
M.parts = false

-- ---- averages

local DECAY = { "number", default = 0.999, min = 0, max = 1 }

--- Returns a function for `avg_fn`: the mean of all models so far.
---@return function avg_fn(averaged, current, n)
function M.get_swa_avg_fn()
  return function(averaged, current, n) return averaged + (current - averaged) / (n + 1) end
end

--- Returns a function for `avg_fn`: decay * averaged + (1 - decay) * current.
---@param decay number? 0 to 1, default 0.999
---@return function avg_fn(averaged, current, n)
function M.get_ema_avg_fn(decay)
  decay = options.value("get_ema_avg_fn", "decay", decay, DECAY)
  return function(averaged, current) return averaged * decay + current * (1 - decay) end
end

-- Moves each average by a share of the way to the model's value, in place.
local function move(averaged, current, share)
  for i, t in ipairs(averaged) do
    if core._is_float(t) then t:lerp_(current[i], share)
    else t:copy_(t * (1 - share) + current[i] * share) end
  end
end

--- Returns a function for `multi_avg_fn`: the mean of all models so far, in place.
---@return function multi_avg_fn(averaged, current, n): lists of one device and type
function M.get_swa_multi_avg_fn()
  return function(averaged, current, n) move(averaged, current, 1 / (n + 1)) end
end

--- Returns a function for `multi_avg_fn`: the exponential moving average, in place.
---@param decay number? 0 to 1, default 0.999
---@return function multi_avg_fn(averaged, current, n): lists of one device and type
function M.get_ema_multi_avg_fn(decay)
  decay = options.value("get_ema_multi_avg_fn", "decay", decay, DECAY)
  return function(averaged, current) move(averaged, current, 1 - decay) end
end

-- ---- AveragedModel

local OPTIONS = {
  device = { "string", optional = true },
  avg_fn = { "function", optional = true },
  multi_avg_fn = { "function", optional = true },
  use_buffers = { "boolean", default = false },
}

--- A copy of a model (`averaged.module`) whose parameters are averages of the model's. It is called
--- as the model is. `averaged.n_averaged` counts the updates.
---@class accelerate.optim.AveragedModel : accelerate.nn.Module
---@field module accelerate.nn.Module
---@field n_averaged accelerate.Tensor int64, 0-d
local AveragedModel = class("AveragedModel", nn.Module)

---@param model accelerate.nn.Module stays as it is; of one that is cut over ranks the averages are
---  cut, too: all ranks make and update them, and functions get parts, one dim
---@param opts? table device: where the averages are (default: the model's); avg_fn(averaged,
---  current, n): returns a tensor's new average after n updates; multi_avg_fn(averaged, current,
---  n): changes lists of averages of one device and type in place; default: the mean of all;
---  use_buffers: average buffers as well (default: copy the model's)
function AveragedModel:init(model, opts)
  local o = options.check("AveragedModel", opts, OPTIONS)
  if not class.is(model, nn.Module) then
    fail("AveragedModel: expected a module, got %s", options.show(model))
  end
  if o.avg_fn and o.multi_avg_fn then fail("AveragedModel: give avg_fn or multi_avg_fn, not both") end
  local cut = M.parts and M.parts.clone(model)
  if cut and o.device then
    fail("AveragedModel: device: the model is cut over ranks, and its averages are where it is")
  end
  self.module = cut or model:clone()
  if o.device then self.module:to(o.device) end
  self:register_buffer("n_averaged", core.zeros({}, { dtype = "int64", device = o.device }))
  self.avg_fn, self.multi_avg_fn, self.use_buffers = o.avg_fn, o.multi_avg_fn, o.use_buffers
end

function AveragedModel:forward(...) return self.module(...) end

-- Detached pairs of the two modules' tensors, or of this rank's parts of them; the second ones are
-- on the devices of the first.
local function pairs_of(averaged, model, what)
  if #averaged ~= #model then
    fail("update_parameters: the model has %d %s, the average has %d", #model, what, #averaged)
  end
  local list = {}
  for i, t in ipairs(averaged) do
    if table.concat(t.shape, ",") ~= table.concat(model[i].shape, ",") then
      fail("update_parameters: %s %d of the model have the shape [%s], the average's [%s]", what, i,
        table.concat(model[i].shape, ", "), table.concat(t.shape, ", "))
    end
    local own, current = t:detach(), model[i]:detach()
    if M.parts then own, current = M.parts.beside(t, model[i]) end
    if own then
      local is_code = parameter.is(t) and not core._is_float(t) and not t:is_complex()
      list[#list + 1] = { own, current:to(own.device), is_code = is_code or parameter.keeps_type(t) }
    end
  end
  return list
end

-- One call for each device and type, in the order of their first tensors.
local function average_together(fn, list, n)
  local groups, known = {}, {}
  for _, pair in ipairs(list) do
    local key = pair[1].device .. pair[1].dtype
    if not known[key] then
      known[key] = { {}, {} }
      groups[#groups + 1] = known[key]
    end
    local group = known[key]
    group[1][#group[1] + 1], group[2][#group[2] + 1] = pair[1], pair[2]
  end
  for _, group in ipairs(groups) do fn(group[1], group[2], n) end
end

local function average_each(fn, list, n)
  for _, pair in ipairs(list) do
    local made = fn(pair[1], pair[2], n)
    if not core.is_tensor(made) then
      fail("update_parameters: avg_fn must return a tensor, got %s", options.show(made))
    end
    pair[1]:copy_(made)
  end
end

-- The pairs without codes of weights and the scales of codes, which are copied: there is no code
-- between two others.
local function without_codes(list)
  local rest = {}
  for _, pair in ipairs(list) do
    if pair.is_code then pair[1]:copy_(pair[2]) else rest[#rest + 1] = pair end
  end
  return rest
end

local function update(self, model)
  local list = without_codes(pairs_of(self.module:parameters(), model:parameters(), "parameters"))
  local buffers = pairs_of(self.module:buffers(), model:buffers(), "buffers")
  if self.use_buffers then
    for _, pair in ipairs(without_codes(buffers)) do list[#list + 1] = pair end
  end
  local n = self.n_averaged:item()
  if n == 0 then
    for _, pair in ipairs(list) do pair[1]:copy_(pair[2]) end
  elseif self.multi_avg_fn then
    average_together(self.multi_avg_fn, list, n)
  else
    average_each(self.avg_fn or M.get_swa_avg_fn(), list, n)
  end
  if not self.use_buffers then
    for _, pair in ipairs(buffers) do pair[1]:copy_(pair[2]) end
  end
  self.n_averaged:add_(1)
end

--- Takes the model's present weights into the average; the first call copies them.
---@param model accelerate.nn.Module
function AveragedModel:update_parameters(model)
  if not class.is(model, nn.Module) then
    fail("update_parameters: expected a module, got %s", options.show(model))
  end
  core.no_grad(function()
    if M.parts then return M.parts.write(self.module, function() update(self, model) end) end
    update(self, model)
  end)
end

M.AveragedModel = AveragedModel

-- ---- update_bn

local function is_batch_norm(module)
  for _, name in ipairs { "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm" } do
    if class.is(module, nn[name]) then return true end
  end
  return false
end

-- A loader's batches, or those of a plain list.
local function batches_of(loader)
  if type(loader) == "table" and getmetatable(loader) == nil and loader.iter == nil and loader[1] ~= nil then
    local at = 0
    return function()
      at = at + 1
      return loader[at]
    end
  end
  if not (type(loader) == "table" or type(loader) == "userdata") or core.is_tensor(loader)
    or not options.callable(loader.iter) then
    fail("update_bn: loader: expected a loader with iter(), or a list of batches, got %s",
      options.show(loader))
  end
  return loader:iter()
end

local function first_of(batch, device)
  if type(batch) == "table" then batch = batch[1] end
  if not core.is_tensor(batch) then
    fail("update_bn: a batch must be a tensor or a list that begins with one, got %s", options.show(batch))
  end
  return device and batch:to(device) or batch
end

--- Computes the running statistics of a model's batch norms anew in one pass over a loader: their
--- means over all batches. Modes and momenta are restored.
---@param loader table with iter(), or a list of batches; the first part of each batch is the
---  model's argument
---@param model accelerate.nn.Module
---@param opts? { device: string? } device: where batches are moved
function M.update_bn(loader, model, opts)
  local o = options.check("update_bn", opts, { device = { "string", optional = true } })
  if not class.is(model, nn.Module) then fail("update_bn: expected a module, got %s", options.show(model)) end
  local norms, modes, modules = {}, {}, model:modules()
  for i, module in ipairs(modules) do
    modes[i] = module.training
    if is_batch_norm(module) then
      module:reset_running_stats()
      norms[#norms + 1] = { module, module.momentum }
    end
  end
  if #norms == 0 then return end
  model:train()
  for _, norm in ipairs(norms) do norm[1].momentum = false end
  local ok, why = pcall(core.no_grad, function()
    for batch in batches_of(loader) do model(first_of(batch, o.device)) end
  end)
  for _, norm in ipairs(norms) do norm[1].momentum = norm[2] end
  for i, module in ipairs(modules) do module.training = modes[i] end
  if not ok then error(why, 0) end
end

-- ---- SWALR

--- lr goes from where it is to swa_lr in anneal_epochs steps, and stays there.
---@class accelerate.optim.SWALR : accelerate.optim.LRScheduler
local SWALR = class("SWALR", base.LRScheduler)

---@param optimizer table
---@param opts table swa_lr: a number, or a list with one for each group; anneal_epochs: default 10;
---  anneal_strategy: "cos" (default) or "linear"; last_epoch: default -1
function SWALR:init(optimizer, opts)
  local o = base.check(self, opts, {
    swa_lr = { "number|list" }, anneal_epochs = { "integer", default = 10, min = 0 },
    anneal_strategy = { "string", default = "cos", one_of = { "cos", "linear" } },
  })
  local groups = base.groups_of(self, optimizer)
  local rates = base.for_each_group(self, groups, "swa_lr", o.swa_lr)
  for i, group in ipairs(groups) do group.swa_lr = rates[i] end
  self.anneal_epochs, self._anneal_strategy = o.anneal_epochs, o.anneal_strategy
  self:_attach(optimizer, o.last_epoch)
end

-- The share of the way to swa_lr that is done after some steps.
local function share_of(self, steps)
  local t = math.max(0, math.min(1, steps / math.max(1, self.anneal_epochs)))
  return self._anneal_strategy == "cos" and (1 - math.cos(math.pi * t)) / 2 or t
end

--- Returns the learning rates for this step, one for each group.
---@return number[]
function SWALR:get_lr()
  local step = self._step_count - 1
  if self.anneal_epochs == 0 then step = math.max(1, step) end
  local before, now = share_of(self, step - 1), share_of(self, step)
  local rates = {}
  for i, group in ipairs(self.optimizer.param_groups) do
    local from = before == 1 and group.swa_lr or (group.lr - before * group.swa_lr) / (1 - before)
    rates[i] = group.swa_lr * now + from * (1 - now)
  end
  return rates
end

M.SWALR = SWALR

M.update_bn = positions.arrange("update_bn", "loader model [device]", M.update_bn)
positions.constructors(M, {
  AveragedModel = "model [device] [avg_fn] [multi_avg_fn] [use_buffers]",
  SWALR = "optimizer +swa_lr [anneal_epochs] [anneal_strategy] [last_epoch]",
})

return require("accelerate.utils.properties").strict("accelerate.optim.swa_utils", M)
