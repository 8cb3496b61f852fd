--- optim.Rprop, as torch.optim.Rprop.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Resilient propagation, for full batches: `optim.Rprop(model:parameters(), { lr = 0.01 })`. Each
--- element has a step size, lr at first. It grows by etas[2] while the gradient keeps its sign and
--- shrinks by etas[1] where the sign changes, within step_sizes; there the element stays where it
--- is for a step. Else it moves by its step size, against the gradient's sign.
---@class accelerate.optim.Rprop : accelerate.optim.Optimizer
local Rprop = class("Rprop", Optimizer)

Rprop._kind = "rprop"
Rprop._schema = {
  lr = { "number", default = 1e-2, min = 0 },
  etas = { "list", default = { 0.5, 1.2 } },
  step_sizes = { "list", default = { 1e-6, 50 } },
  maximize = { "boolean", default = false },
}

local function check_pair(self, name, pair)
  if #pair ~= 2 then options.fail("%s: %s must be two numbers, got %d", self.__name, name, #pair) end
  for i = 1, 2 do
    options.value(self.__name, ("%s[%d]"):format(name, i), pair[i], { "number", min = 0 })
  end
  return { pair[1], pair[2] }
end

function Rprop:_checked(given, schema)
  local o = Optimizer._checked(self, given, schema)
  o.etas, o.step_sizes = check_pair(self, "etas", o.etas), check_pair(self, "step_sizes", o.step_sizes)
  if not (0 < o.etas[1] and o.etas[1] < 1 and 1 < o.etas[2]) then
    options.fail("%s: etas must be one number between 0 and 1 and one above 1, got %g and %g", self.__name,
      o.etas[1], o.etas[2])
  end
  return o
end

Rprop.init = positions.arrange("Rprop", "params [lr] [etas] [step_sizes]", Rprop.init, true)

return Rprop
