--- optim.SparseAdam, as torch.optim.SparseAdam.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local first_step = require "accelerate.optim.first_step"
local gradients = require "accelerate.sparse.gradients"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local TableOptimizer = require "accelerate.optim.tables"
local positions = require "accelerate.utils.positions"
local rates = require "accelerate.optim.rates"

--- Adam for sparse gradients: `optim.SparseAdam(embedding:parameters(), { lr = 1e-3 })` with
--- `nn.Embedding(count, size, { sparse = true })`. Only the rows that the gradient has are looked
--- at: their means move to the gradient and its square, and the rows by lr times mean / (root of
--- the mean square + eps), both means divided by 1 - beta^step. Other rows and their means stay as
--- they are, where Adam would let the means decay and move these rows, too.
---
--- Parameters whose gradient is dense raise: they belong to another optimizer.
---@class accelerate.optim.SparseAdam : accelerate.optim.TableOptimizer
local SparseAdam = class("SparseAdam", TableOptimizer)
SparseAdam._no_complex = true

SparseAdam._kind = "sparse_adam"
SparseAdam._row = { states = { { name = "exp_avg", form = "each" }, { name = "exp_avg_sq", form = "each" } },
  hyper = {} }
SparseAdam._schema = {
  lr = { "number", default = 1e-3, above = 0 },
  betas = { "list", default = { 0.9, 0.999 } },
  eps = { "number", default = 1e-8, above = 0 },
  maximize = { "boolean", default = false },
}

local function zeros_of(p) return core.keep(core.zeros(p.shape, { dtype = p.dtype, device = p.device })) end

-- Brings the listed rows of a mean nearer to new values, by the share; returns these rows.
local function moved(mean, rows, values, share)
  local old = mean:index_select(1, rows)
  local new = old + (values - old) * share
  mean:index_copy_(1, rows, new)
  return new
end

local function move(self, p, grad, group)
  local kept = self.state[p] or { step = 0, exp_avg = zeros_of(p), exp_avg_sq = zeros_of(p) }
  self.state[p] = kept
  kept.step = kept.step + 1
  grad = grad:coalesce()
  if grad:nnz() == 0 then return end
  local rows, values = grad:indices():select(1, 1), grad:values():to(p.dtype)
  if group.maximize then values = -values end
  local beta1, beta2 = group.betas[1], group.betas[2]
  local mean = moved(kept.exp_avg, rows, values, 1 - beta1)
  local square = moved(kept.exp_avg_sq, rows, values * values, 1 - beta2)
  local size = group.lr * math.sqrt(1 - beta2 ^ kept.step) / (1 - beta1 ^ kept.step)
  p:index_add_(1, rows, mean / (square:sqrt() + group.eps), -size)
end

local function check_dense(self, g, i, p)
  if p.grad and not p.grad.is_sparse then
    options.fail("%s: parameter %d of group %d has a dense gradient: give it to Adam, or make its module " ..
      "with sparse = true", self.__name, i, g)
  end
end

--- Updates the rows that have a gradient. Parameters without a gradient do not change.
---@param closure? fun(): any computes the loss anew, with gradients on; its result is returned
---@return any
function SparseAdam:step(closure)
  recording.refuse("SparseAdam's step", "its rows would be those of the captured step")
  local result = self:_evaluate(closure)
  if not first_step.seen[self] then first_step.optimizer(self) end
  rates.agree(self)
  for g, group in ipairs(self.param_groups) do
    for i, p in ipairs(group.params) do check_dense(self, g, i, p) end
  end
  for _, group in ipairs(self.param_groups) do
    for _, p in ipairs(group.params) do
      local grad = gradients.of(p)
      if grad then core.no_grad(core.scope, move, self, p, grad, group) end
    end
  end
  if closure then return result end
end

--- Drops the gradients.
---@param set_to_none? boolean|{ set_to_none: boolean } default true
function SparseAdam:zero_grad(set_to_none)
  TableOptimizer.zero_grad(self, set_to_none)
  for _, group in ipairs(self.param_groups) do gradients.drop(group.params) end
end

SparseAdam.init = positions.arrange("SparseAdam", "params [lr] [betas] [eps]", SparseAdam.init, true)

return SparseAdam
