--- optim.SGD, as torch.optim.SGD.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local gradients = require "accelerate.sparse.gradients"
local options = require "accelerate.utils.options"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Stochastic gradient descent: `optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })`. With
--- g the gradient (plus weight_decay * p), the buffer is b = momentum * b + (1 - dampening) * g
--- (the first time b = g), and p loses lr * b, or lr * (g + momentum * b) with nesterov.
---@class accelerate.optim.SGD : accelerate.optim.Optimizer
local SGD = class("SGD", Optimizer)

SGD._kind = "sgd"
SGD._schema = {
  lr = { "number", default = 1e-3, min = 0 },
  momentum = { "number", default = 0, min = 0 },
  dampening = { "number", default = 0 },
  weight_decay = { "number", default = 0, min = 0 },
  nesterov = { "boolean", default = false },
  maximize = { "boolean", default = false },
}

function SGD:_checked(given, schema)
  local o = Optimizer._checked(self, given, schema)
  if o.nesterov and (o.momentum <= 0 or o.dampening ~= 0) then
    options.fail("SGD: nesterov needs a momentum above 0 and no dampening, got momentum %g and dampening %g",
      o.momentum, o.dampening)
  end
  return o
end

function SGD:_check_saved() end

-- Sparse gradients (Embedding { sparse = true }): their rows alone lose lr * g. A momentum and a
-- decay would concern all rows.
function SGD:_step_rows(group)
  if group.momentum ~= 0 or group.weight_decay ~= 0 then
    return gradients.refuse(self.__name, group.params)
  end
  for _, p in ipairs(group.params) do
    local grad = gradients.of(p)
    if grad then
      local rows, values = grad:_indices():select(1, 1), grad:_values():to(p.dtype)
      core.no_grad(p.index_add_, p, 1, rows, values, group.maximize and group.lr or -group.lr)
    end
  end
end

-- PyTorch keeps the buffer only; the count is ours, and says whether the buffer has been filled.
function SGD:_saved(state)
  if state.momentum_buffer and state.step > 0 then return { momentum_buffer = state.momentum_buffer } end
end

function SGD:_restored(state, entry)
  state.step = entry.momentum_buffer and 1 or 0
end

SGD.init = positions.arrange("SGD",
  "params [lr] [momentum] [dampening] [weight_decay] [nesterov]", SGD.init, true)

return SGD
