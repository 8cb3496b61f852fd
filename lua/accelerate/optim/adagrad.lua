--- optim.Adagrad, as torch.optim.Adagrad.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local gradients = require "accelerate.sparse.gradients"
local states = require "accelerate.optim.states"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Divides the gradient by the root of the sum of all its squares:
--- `optim.Adagrad(model:parameters(), { lr = 0.01 })`. The learning rate of step t is lr / (1 + (t
--- - 1) * lr_decay); the sums begin at initial_accumulator_value. Of a sparse gradient (Embedding {
--- sparse = true }) it looks at the rows alone; there must be no weight_decay then.
---@class accelerate.optim.Adagrad : accelerate.optim.Optimizer
local Adagrad = class("Adagrad", Optimizer)

Adagrad._kind = "adagrad"
Adagrad._schema = {
  lr = { "number", default = 1e-2, min = 0 },
  lr_decay = { "number", default = 0, min = 0 },
  weight_decay = { "number", default = 0, min = 0 },
  initial_accumulator_value = { "number", default = 0, min = 0 },
  eps = { "number", default = 1e-10, min = 0 },
  maximize = { "boolean", default = false },
}

local function move(p, grad, entry, group)
  grad = grad:coalesce()
  if grad:nnz() == 0 then return end
  local rows, sum = grad:indices():select(1, 1), entry.sum
  local values = grad:values():to(sum.dtype)
  if group.maximize then values = -values end
  local squares = sum:index_select(1, rows) + values * values
  sum:index_copy_(1, rows, squares)
  local lr = group.lr / (1 + (entry.step - 1) * group.lr_decay)
  p:index_add_(1, rows, (values / (squares:sqrt() + group.eps)):to(p.dtype), -lr)
end

local function sums_of(p, start)
  return core.keep(core.full(p.shape, start, { dtype = p.dtype, device = p.device }))
end

function Adagrad:_step_rows(group)
  if group.weight_decay ~= 0 then return gradients.refuse(self.__name, group.params) end
  for _, p in ipairs(group.params) do
    local grad = gradients.of(p)
    if grad then
      local entry = self.state[p] or { step = 0, sum = sums_of(p, group.initial_accumulator_value) }
      entry.step = entry.step + 1
      core.no_grad(core.scope, move, p, grad, entry, group)
      self.state[p] = entry
    end
  end
  states.take(self)
end

Adagrad.init = positions.arrange("Adagrad",
  "params [lr] [lr_decay] [weight_decay] [initial_accumulator_value] [eps]", Adagrad.init, true)

return Adagrad
