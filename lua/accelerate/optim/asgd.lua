--- optim.ASGD, as torch.optim.ASGD.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Averaged gradient descent: `optim.ASGD(model:parameters(), { lr = 0.01 })`. The step size of
--- step t is lr / (1 + lambd * lr * (t - 1)) ^ alpha; p shrinks by lambd * step size of itself and
--- loses the step size times the gradient. `state[p].ax` is the mean of p over the steps since
--- step t0, and p itself until then.
---@class accelerate.optim.ASGD : accelerate.optim.Optimizer
local ASGD = class("ASGD", Optimizer)

ASGD._kind = "asgd"
ASGD._schema = {
  lr = { "number", default = 1e-2, min = 0 },
  lambd = { "number", default = 1e-4, min = 0 },
  alpha = { "number", default = 0.75, min = 0 },
  t0 = { "number", default = 1e6 },
  weight_decay = { "number", default = 0, min = 0 },
  maximize = { "boolean", default = false },
}

-- PyTorch keeps mu, the weight of the next step in the mean, which follows from the count.
function ASGD:_saved(state, group)
  local saved = Optimizer._saved(self, state)
  saved.mu = 1 / math.max(1, state.step - group.t0)
  return saved
end

function ASGD:_check_entry(entry, p, number)
  local own = {}
  for name, value in next, entry do own[name] = value end
  if own.mu ~= nil and type(own.mu) ~= "number" and not (own.mu.numel and own.mu:numel() == 1) then
    options.fail("%s:load_state_dict: mu of parameter %d must be a number, got %s", self.__name, number,
      options.show(own.mu))
  end
  own.mu = nil
  Optimizer._check_entry(self, own, p, number)
end

ASGD.init = positions.arrange("ASGD", "params [lr] [lambd] [alpha] [t0] [weight_decay]", ASGD.init, true)

return ASGD
