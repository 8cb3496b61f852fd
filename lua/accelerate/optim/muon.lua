--- optim.Muon, as torch.optim.Muon ("Muon: An optimizer for hidden layers in neural networks",
--- Jordan et al. 2024).

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local cut = require "accelerate.optim.cut"
local first_step = require "accelerate.optim.first_step"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local TableOptimizer = require "accelerate.optim.tables"
local positions = require "accelerate.utils.positions"
local rates = require "accelerate.optim.rates"
local rounds = require "accelerate.optim.rounds"

local fail = options.fail

--- Steps by the nearest orthogonal matrix to a mean gradient, for the matrices of hidden layers:
--- `optim.Muon(matrices, { lr = 0.02 })`. All other parameters (vectors, embeddings, the last
--- layer) belong to another optimizer, such as AdamW.
---
--- The mean is m = lerp(m, g, 1 - momentum); with nesterov, lerp(g, m, momentum) takes its place.
--- ns_steps steps of a Newton-Schulz iteration (ns_coefficients, in bfloat16) bring its singular
--- values near to 1. p shrinks by lr * weight_decay of itself and loses the result times lr,
--- adjusted to p's shape [A, B]: sqrt(max(1, A / B)) with adjust_lr_fn = "original", the default;
--- 0.2 * sqrt(max(A, B)) with "match_rms_adamw"; sqrt(A / B) with "spectral_unclamped".
---
--- Where a matrix is cut over ranks each of them has its elements of m, and one rank of the group
--- makes the whole orthogonal; see docs/sharding.md.
---@class accelerate.optim.Muon : accelerate.optim.TableOptimizer
local Muon = class("Muon", TableOptimizer)
Muon._no_complex = true

Muon._kind = "muon"
Muon._row = { states = { { name = "momentum_buffer", form = "each" } }, hyper = {} }
Muon._schema = {
  lr = { "number", default = 1e-3, min = 0 },
  weight_decay = { "number", default = 0.1, min = 0 },
  momentum = { "number", default = 0.95, min = 0 },
  nesterov = { "boolean", default = true },
  ns_coefficients = { "list", default = { 3.4445, -4.7750, 2.0315 } },
  eps = { "number", default = 1e-7, min = 0 },
  ns_steps = { "integer", default = 5, min = 0, below = 100 },
  adjust_lr_fn = { "string", default = "original",
    one_of = { "original", "match_rms_adamw", "spectral_unclamped" } },
}

function Muon:_checked(given, schema)
  local o = TableOptimizer._checked(self, given, schema)
  if #o.ns_coefficients ~= 3 then
    fail("%s: ns_coefficients must be three numbers, got %d", self.__name, #o.ns_coefficients)
  end
  for i = 1, 3 do
    options.value(self.__name, ("ns_coefficients[%d]"):format(i), o.ns_coefficients[i], { "number" })
  end
  return o
end

--- Adds a group of matrices; see Optimizer:add_param_group.
function Muon:add_param_group(group)
  for i, p in ipairs(type(group) == "table" and type(group.params) == "table" and group.params or {}) do
    if core.is_tensor(p) and p:dim() ~= 2 then
      fail("%s: parameter %d of group %d has the shape [%s]; only matrices (two dims) can be optimized",
        self.__name, i, #self.param_groups + 1, table.concat(p.shape, ", "))
    end
  end
  TableOptimizer.add_param_group(self, group)
end

-- Brings the singular values of a matrix in bfloat16 near to 1.
local function orthogonal(x, group)
  local a, b, c = unpack(group.ns_coefficients)
  local tall = x.shape[1] > x.shape[2]
  if tall then x = x:t() end
  x = x:div(x:norm():clamp { min = group.eps })
  for _ = 1, group.ns_steps do
    local gram = x:matmul(x:t())
    x = core.addmm(x, core.addmm(gram, gram, gram, { beta = b, alpha = c }), x, { beta = a })
  end
  return tall and x:t() or x
end

local ADJUST = {
  original = function(rows, cols) return math.sqrt(math.max(1, rows / cols)) end,
  match_rms_adamw = function(rows, cols) return 0.2 * math.sqrt(math.max(rows, cols)) end,
  spectral_unclamped = function(rows, cols) return math.sqrt(rows / cols) end,
}

-- The mean of the gradients of a parameter, or of the elements that this rank has of it.
local function mean_of(self, p, part)
  local kept = self.state[p] or {}
  self.state[p] = kept
  kept.momentum_buffer = kept.momentum_buffer
    or core.keep(core.zeros(part and { part.n } or p.shape, { dtype = p.dtype,
      device = (part and part.grad or p).device }))
  return kept.momentum_buffer
end

-- Moves the mean gradient. Returns the update before it is made orthogonal.
local function update_of(mean, grad, group)
  mean:lerp_(grad, 1 - group.momentum)
  return (group.nesterov and grad:lerp(mean, group.momentum) or mean):to("bfloat16")
end

-- value: the parameter, or the elements that this rank has of it.
local function apply(value, update, shape, group)
  local adjust = ADJUST[group.adjust_lr_fn](shape[1], shape[2])
  value:mul_(1 - group.lr * group.weight_decay)
  value:sub_(update:to(value.device):to(value.dtype):mul_(group.lr * adjust))
end

local function move(self, p, group)
  apply(p, orthogonal(update_of(mean_of(self, p), p.grad, group), group), p.shape, group)
end

-- Matrices that are cut over ranks come together in bfloat16, which all of them are rounded to.
local function move_cut(list)
  rounds.run(list, {
    dtype = "bfloat16",
    give = function(one) return update_of(one.mean, one.part.grad, one.group):to(one.device) end,
    whole = function(one, matrix) return orthogonal(matrix, one.group) end,
    take = function(one, piece) apply(one.part.value, piece, one.shape, one.group) end,
  })
end

-- The multiplications of a Newton-Schulz step.
local function cost_of(shape)
  local low, high = math.min(shape[1], shape[2]), math.max(shape[1], shape[2])
  return low * low * (2 * high + low)
end

local function step_all(self)
  local list = {}
  for _, group in ipairs(self.param_groups) do
    for _, p in ipairs(group.params) do
      local part = p.grad and cut.part(p)
      if part and p:numel() > 0 then
        list[#list + 1] = { mean = mean_of(self, p, part), group = group, part = part, shape = p.shape,
          cost = cost_of(p.shape), device = p.device }
      elseif p.grad and not part then core.scope(move, self, p, group) end
    end
  end
  move_cut(list)
end

function Muon:_bytes_sent(ranks)
  local sum = 0
  for _, group in ipairs(self.param_groups) do
    for _, p in ipairs(group.params) do sum = sum + rounds.bytes_sent(p:numel(), 2, ranks) end
  end
  return sum
end

--- Updates the parameters once. Parameters without a gradient do not change.
---@param closure? fun(): any computes the loss anew, with gradients on; its result is returned
---@return any
function Muon:step(closure)
  recording.refuse("Muon's step", "its numbers would be those of the captured step")
  local result = self:_evaluate(closure)
  if not first_step.seen[self] then first_step.optimizer(self) end
  rates.agree(self)
  core.no_grad(step_all, self)
  if closure then return result end
end

function Muon:_check_saved(entry, p, number, kept)
  TableOptimizer._check_saved(self, { step = 0, momentum_buffer = entry.momentum_buffer }, p, number, kept)
end

function Muon:_restored(state) state.step = nil end

Muon.init = positions.arrange("Muon",
  "params [lr] [weight_decay] [momentum] [nesterov] [ns_coefficients] [eps] [ns_steps]", Muon.init, true)

return Muon
