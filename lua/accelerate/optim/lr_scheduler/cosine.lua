--- Learning rates along a cosine: CosineAnnealingLR, CosineAnnealingWarmRestarts.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local base = require "accelerate.optim.lr_scheduler.base"

local LRScheduler = base.LRScheduler

local cos, pi = math.cos, math.pi

-- Returns the rates after `share` of half a cosine from base_lrs to eta_min.
local function annealed(self, share)
  local rates = {}
  for i, rate in ipairs(self.base_lrs) do
    rates[i] = self.eta_min + (rate - self.eta_min) * (1 + cos(pi * share)) / 2
  end
  return rates
end

--- lr falls from initial_lr to eta_min along half a cosine in T_max steps, and rises again after
--- that.
---@class accelerate.optim.CosineAnnealingLR : accelerate.optim.LRScheduler
local CosineAnnealingLR = class("CosineAnnealingLR", LRScheduler)

---@param optimizer table
---@param opts { T_max: integer, eta_min: number, last_epoch: integer } eta_min: default 0
function CosineAnnealingLR:init(optimizer, opts)
  local o = base.check(self, opts, { T_max = { "integer", min = 1 }, eta_min = { "number", default = 0 } })
  self.T_max, self.eta_min = o.T_max, o.eta_min
  self:_attach(optimizer, o.last_epoch)
end

function CosineAnnealingLR:get_lr()
  local rates = base.scaled(self)
  if self._is_initial then return rates end
  local t, T_max, eta_min = self.last_epoch, self.T_max, self.eta_min
  if self._step_count == 1 and t > 0 then return annealed(self, t / T_max) end
  for i, rate in ipairs(self.base_lrs) do
    if (t - 1 - T_max) % (2 * T_max) == 0 then  -- the factor below would be 0 / 0
      rates[i] = rates[i] + (rate - eta_min) * (1 - cos(pi / T_max)) / 2
    else
      rates[i] = (1 + cos(pi * t / T_max)) / (1 + cos(pi * (t - 1) / T_max)) * (rates[i] - eta_min) + eta_min
    end
  end
  return rates
end

function CosineAnnealingLR:_closed_form_lr() return annealed(self, self.last_epoch / self.T_max) end

--- lr falls from initial_lr to eta_min along half a cosine in T_0 steps, then starts over; each
--- cycle is T_mult times as long as the one before.
---@class accelerate.optim.CosineAnnealingWarmRestarts : accelerate.optim.LRScheduler
---@field T_i number the length of this cycle
---@field T_cur number steps since it began
local CosineAnnealingWarmRestarts = class("CosineAnnealingWarmRestarts", LRScheduler)

---@param optimizer table
---@param opts { T_0: integer, T_mult: integer, eta_min: number, last_epoch: integer } T_mult: 1,
---  eta_min: 0
function CosineAnnealingWarmRestarts:init(optimizer, opts)
  local o = base.check(self, opts, {
    T_0 = { "integer", min = 1 }, T_mult = { "integer", default = 1, min = 1 },
    eta_min = { "number", default = 0 },
  })
  self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = o.T_0, o.T_0, o.T_mult, o.eta_min, o.last_epoch
  self:_attach(optimizer, o.last_epoch)
end

function CosineAnnealingWarmRestarts:get_lr() return annealed(self, self.T_cur / self.T_i) end

-- Finds the cycle that contains step `epoch`.
local function enter(self, epoch)
  self.T_cur, self.T_i = epoch, self.T_0
  while self.T_cur >= self.T_i do
    self.T_cur = self.T_cur - self.T_i
    self.T_i = self.T_i * self.T_mult
    if self.T_mult == 1 then self.T_cur = self.T_cur % self.T_i end
  end
end

local function move_restarts(self, epoch)
  if epoch ~= nil then options.value(self.__name .. ":step", "epoch", epoch, { "number", min = 0 }) end
  if epoch == nil and self.last_epoch < 0 then epoch = 0 end
  if epoch == nil then
    epoch = self.last_epoch + 1
    self.T_cur = self.T_cur + 1
    if self.T_cur >= self.T_i then
      self.T_cur = self.T_cur % self.T_i
      self.T_i = self.T_i * self.T_mult
    end
  else
    enter(self, epoch)
  end
  self.last_epoch = math.floor(epoch)
  self:_apply(self:get_lr())
end

--- Sets the next learning rates, or those of `epoch`, which may be fractional: step(epoch + batch /
--- batches).
---@param epoch? number at least 0
function CosineAnnealingWarmRestarts:step(epoch, ...)
  return recording.schedule(self, move_restarts, base.epoch(self, epoch, ...))
end

return { CosineAnnealingLR = CosineAnnealingLR, CosineAnnealingWarmRestarts = CosineAnnealingWarmRestarts }
