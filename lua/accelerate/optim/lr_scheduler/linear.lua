--- Learning rates that change for total_iters steps and then stay: ConstantLR, LinearLR,
--- PolynomialLR.

local class = require "accelerate.utils.class"
local base = require "accelerate.optim.lr_scheduler.base"

local LRScheduler = base.LRScheduler

--- lr is initial_lr * factor for total_iters steps, then initial_lr.
---@class accelerate.optim.ConstantLR : accelerate.optim.LRScheduler
local ConstantLR = class("ConstantLR", LRScheduler)

---@param optimizer table
---@param opts? { factor: number, total_iters: integer, last_epoch: integer } factor: 1/3, in 0 to
---  1; total_iters: 5
function ConstantLR:init(optimizer, opts)
  local o = base.check(self, opts, {
    factor = { "number", default = 1 / 3, min = 0, max = 1 },
    total_iters = { "integer", default = 5, min = 0 },
  })
  self.factor, self.total_iters = o.factor, o.total_iters
  self:_attach(optimizer, o.last_epoch)
end

function ConstantLR:get_lr()
  if self.last_epoch == 0 then return base.scaled(self, self.factor) end
  if self.last_epoch == self.total_iters then return base.scaled(self, 1 / self.factor) end
  return base.scaled(self)
end

function ConstantLR:_closed_form_lr()
  return base.from_base(self, self.last_epoch >= self.total_iters and 1 or self.factor)
end

--- lr goes from initial_lr * start_factor to initial_lr * end_factor linearly in total_iters steps.
---@class accelerate.optim.LinearLR : accelerate.optim.LRScheduler
local LinearLR = class("LinearLR", LRScheduler)

---@param optimizer table
---@param opts? { start_factor: number, end_factor: number, total_iters: integer, last_epoch:
---  integer } 1/3, 1 and 5
function LinearLR:init(optimizer, opts)
  local o = base.check(self, opts, {
    start_factor = { "number", default = 1 / 3, above = 0, max = 1 },
    end_factor = { "number", default = 1, min = 0, max = 1 },
    total_iters = { "integer", default = 5, min = 1 },
  })
  self.start_factor, self.end_factor, self.total_iters = o.start_factor, o.end_factor, o.total_iters
  self:_attach(optimizer, o.last_epoch)
end

function LinearLR:get_lr()
  if self.last_epoch == 0 then return base.scaled(self, self.start_factor) end
  if self._is_initial or self.last_epoch > self.total_iters then return base.scaled(self) end
  local rise = self.end_factor - self.start_factor
  return base.scaled(self, 1 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))
end

function LinearLR:_closed_form_lr()
  local rise = self.end_factor - self.start_factor
  return base.from_base(self,
    self.start_factor + rise * math.min(self.total_iters, self.last_epoch) / self.total_iters)
end

--- lr = initial_lr * (1 - step / total_iters) ^ power, and 0 after that.
---@class accelerate.optim.PolynomialLR : accelerate.optim.LRScheduler
local PolynomialLR = class("PolynomialLR", LRScheduler)

---@param optimizer table
---@param opts? { total_iters: integer, power: number, last_epoch: integer } total_iters: 5, power:
---  1
function PolynomialLR:init(optimizer, opts)
  local o = base.check(self, opts,
    { total_iters = { "integer", default = 5, min = 1 }, power = { "number", default = 1 } })
  self.total_iters, self.power = o.total_iters, o.power
  self:_attach(optimizer, o.last_epoch)
end

function PolynomialLR:get_lr()
  local t, total = self.last_epoch, self.total_iters
  if self._is_initial or t > total then return base.scaled(self) end
  return base.scaled(self, ((1 - t / total) / (1 - (t - 1) / total)) ^ self.power)
end

function PolynomialLR:_closed_form_lr()
  return base.from_base(self,
    (1 - math.min(self.total_iters, self.last_epoch) / self.total_iters) ^ self.power)
end

return { ConstantLR = ConstantLR, LinearLR = LinearLR, PolynomialLR = PolynomialLR }
