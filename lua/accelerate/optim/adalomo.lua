--- optim.AdaLOMO, as in "AdaLomo: Low-memory Optimization with Adaptive Learning Rate" (Lv et al.,
--- arXiv 2310.10195).

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local LOMO = require "accelerate.optim.lomo"
local options = require "accelerate.utils.options"
local Optimizer = require "accelerate.optim.optimizer"

--- LOMO with a step size for each element: `optim.AdaLOMO(model, { lr = 1e-3 })`.  The mean of
--- squared gradients is kept as in Adafactor: one number for each row and each column of a matrix
--- (the last two dims), and one for each element of a vector; it moves by t ^ decay_rate.  With u
--- the gradient over the root of that mean, a parameter moves by lr * max(eps[2], rms(p)) * u /
--- max(1, rms(u) / clip_threshold).
---@class accelerate.optim.AdaLOMO : accelerate.optim.LOMO
local AdaLOMO = class("AdaLOMO", LOMO)

AdaLOMO._kind = "adalomo"
AdaLOMO._row = {
  hyper = {},
  states = { { name = "exp_avg_sq_row", form = "rows" }, { name = "exp_avg_sq_col", form = "cols" },
    { name = "exp_avg_sq", form = "small" } },
}
AdaLOMO._schema = {
  lr = { "number", default = 1e-3, min = 0 },
  eps = { "list", default = { 1e-30, 1e-3 } },
  clip_threshold = { "number", default = 1, above = 0 },
  decay_rate = { "number", default = -0.8, max = 0 },
  clip_grad_norm = { "number", optional = true, above = 0 },
  clip_grad_value = { "number", optional = true, above = 0 },
  weight_decay = { "number", default = 0, min = 0 },
}

function AdaLOMO:_checked(given, schema)
  local o = Optimizer._checked(self, given, schema)
  if #o.eps ~= 2 then options.fail("%s: eps must be two numbers, got %d", self.__name, #o.eps) end
  for i = 1, 2 do options.value(self.__name, ("eps[%d]"):format(i), o.eps[i], { "number", min = 0 }) end
  o.eps = { o.eps[1], o.eps[2] }
  return o
end

-- One count for all parameters, as the authors have it: what the mean of squares moves by depends
-- on the pass.
function AdaLOMO:_began()
  if not self._count then
    self._count = 0
    for _, state in next, self.state do self._count = math.max(self._count, state.step) end
  end
  self._count = self._count + 1
end

function AdaLOMO:load_state_dict(dict)
  Optimizer.load_state_dict(self, dict)
  self._count = nil
end

local function rms(t) return core.total_norm({ t }, 2):item() / math.sqrt(t:numel()) end

local function moved(mean, beta, by) return mean:mul_(beta):add_(by:mul_(1 - beta)) end

-- The gradient over the root of the mean of its squares.
local function normalized(state, grad, eps, beta)
  local square = (grad * grad):add_(eps)
  if grad:dim() < 2 then
    state.exp_avg_sq = state.exp_avg_sq
      or core.keep(core.zeros(grad.shape, { dtype = grad.dtype, device = grad.device }))
    return moved(state.exp_avg_sq, beta, square):rsqrt():mul_(grad)
  end
  local row, col = square:mean { dim = -1, keepdim = true }, square:mean { dim = -2, keepdim = true }
  state.exp_avg_sq_row = state.exp_avg_sq_row
    or core.keep(core.zeros(row.shape, { dtype = grad.dtype, device = grad.device }))
  state.exp_avg_sq_col = state.exp_avg_sq_col
    or core.keep(core.zeros(col.shape, { dtype = grad.dtype, device = grad.device }))
  row, col = moved(state.exp_avg_sq_row, beta, row), moved(state.exp_avg_sq_col, beta, col)
  row = (row / row:mean { dim = -2, keepdim = true }):rsqrt_()
  return (row * col:rsqrt()):mul_(grad)
end

--- Moves one parameter; `grad` may be overwritten.
function AdaLOMO:_apply(p, grad, group, lr)
  local state = self.state[p] or {}
  self.state[p], state.step = state, self._count
  local wide = grad.dtype ~= "float32" and grad.dtype ~= "float64"
  if wide then grad = grad:float() end
  local update = normalized(state, grad, group.eps[1], 1 - self._count ^ group.decay_rate)
  lr = lr * math.max(group.eps[2], rms(p))
  update:mul_(-lr / math.max(1, rms(update) / group.clip_threshold))
  if group.weight_decay > 0 then p:mul_(1 - lr * group.weight_decay) end
  p:add_(wide and update:to(p.dtype) or update)
end

return AdaLOMO
