--- optim.Adafactor, as torch.optim.Adafactor.

local class = require "accelerate.utils.class"
local cut = require "accelerate.optim.cut"
local factored = require "accelerate.optim.factored"
local options = require "accelerate.utils.options"
local Optimizer = require "accelerate.optim.optimizer"
local python = require "accelerate.utils.python"
local positions = require "accelerate.utils.positions"
local recording = require "accelerate.capture.recording"
local states = require "accelerate.optim.states"

--- Adam without a mean gradient, and with the mean of squares kept as one number for each row and
--- each column of a matrix (the last two dims), so that the state is next to nothing:
--- `optim.Adafactor(model:parameters(), { lr = 0.01 })`.
---
--- A step is rho * max(eps[2], rms(p)) * u / max(1, rms(u) / d), where u is the gradient over the
--- root of the mean of squares, rho the lesser of lr and 1 / sqrt(t), and rms the root mean square.
--- The mean of squares moves by t ^ beta2_decay. eps[1] is the least root; false: the epsilon of
--- the parameter's type.
---@class accelerate.optim.Adafactor : accelerate.optim.Optimizer
local Adafactor = class("Adafactor", Optimizer)
Adafactor._no_complex = true

Adafactor._kind = "adafactor"
Adafactor._schema = {
  lr = { "number", default = 1e-2, min = 0 },
  beta2_decay = { "number", default = -0.8, max = 0 },
  eps = { "table", default = { false, 1e-3 } },
  d = { "number", default = 1, min = 1 },
  weight_decay = { "number", default = 0, min = 0 },
  maximize = { "boolean", default = false },
}

-- eps = { nil, 1e-3 } is what PyTorch's (None, 1e-3) looks like in Lua.
function Adafactor:_checked(given, schema)
  local o = Optimizer._checked(self, given, schema)
  local least, floor = o.eps[1] or false, o.eps[2]
  if least then options.value(self.__name, "eps[1]", least, { "number", min = 0 }) end
  o.eps = { least, options.value(self.__name, "eps[2]", floor, { "number", min = 0 }) }
  return o
end

function Adafactor:_hyper(group, hyper)
  hyper.lr, hyper.weight_decay, hyper.maximize = group.lr, group.weight_decay, group.maximize
  hyper.d, hyper.beta2_decay = group.d, group.beta2_decay
  hyper.eps1, hyper.eps2 = group.eps[1] or -1, group.eps[2]
end

--- Of parameters that are cut the host reads whether a step is skipped.
function Adafactor:_skips_on_device() return Optimizer._skips_on_device(self) and not cut.any(self) end

-- The core has counted their steps, and made their states.
function Adafactor:_step_cut()
  local list = {}
  for _, group in ipairs(self.param_groups) do
    local object, hyper = states.core_of(self, group), {}
    self:_hyper(group, hyper)
    for i, p in ipairs(group.params) do
      local part = p.grad and p:numel() > 0 and cut.part(p)
      if part then list[#list + 1] = { p = p, part = part, kept = object:get(i), hyper = hyper } end
    end
  end
  if not list[1] then return end
  recording.refuse("Adafactor's step over parameters that are cut over ranks",
    "its numbers would be those of the captured step")
  factored.step(list)
end

function Adafactor:_bytes_sent(ranks)
  local sum = 0
  for _, group in ipairs(self.param_groups) do
    for _, p in ipairs(group.params) do sum = sum + factored.bytes_sent(p, ranks) end
  end
  return sum
end

--- Returns PyTorch's structure; in PyTorch's files eps[1] = false is None.
---@return { state: table<integer, table>, param_groups: table[] }
function Adafactor:state_dict()
  local dict = Optimizer.state_dict(self)
  for _, group in ipairs(dict.param_groups) do python.none(group.eps, 1) end
  return dict
end

Adafactor.init = positions.arrange("Adafactor",
  "params [lr] [beta2_decay] [eps] [d] [weight_decay]", Adafactor.init, true)

return Adafactor
