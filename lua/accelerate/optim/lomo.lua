--- optim.LOMO, as in "Full Parameter Fine-tuning for Large Language Models with Limited Resources"
--- (Lv et al., arXiv 2306.09782).
---
--- The update happens inside the backward pass: as soon as a parameter's gradient is whole, the
--- parameter moves and the gradient's memory is free again, so that there is hardly more than one
--- parameter's gradient at any time.
---
---   local optimizer = optim.LOMO(model, { lr = 1e-3 })
---   optimizer:fused_backward(loss, 1e-3)           -- backward and update; or
---     accelerator:backward(loss, { learning_rate = 1e-3 })

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"
local TableOptimizer = require "accelerate.optim.tables"
local rates = require "accelerate.optim.rates"

local fail = options.fail

---@class accelerate.optim.LOMO : accelerate.optim.TableOptimizer
--- Plain gradient descent, p = (1 - lr * weight_decay) * p - lr * g, applied parameter by parameter
--- inside backward.
local LOMO = class("LOMO", TableOptimizer)
LOMO._no_complex = true

LOMO._kind = "lomo"
LOMO._schema = {
  lr = { "number", default = 1e-3, min = 0 },
  clip_grad_norm = { "number", optional = true, above = 0 },
  clip_grad_value = { "number", optional = true, above = 0 },
  weight_decay = { "number", default = 0, min = 0 },
}

--- Marks optimizers that update inside backward.
LOMO.fuses_backward = true

---@param model accelerate.nn.Module|accelerate.Tensor[]|table[] the model, its parameters, or
---  parameter groups
---@param opts { lr: number?, weight_decay: number?, clip_grad_norm: number?, clip_grad_value:
---  number? }? lr: used where a backward pass names none; clip_grad_norm: the joint norm that
---  gradients are scaled down to, which takes a backward pass of its own (grad_norm);
---  clip_grad_value: limits each element
function LOMO:init(model, opts)
  if type(model) == "table" and type(model.parameters) == "function" then
    local list = {}
    for _, p in ipairs(model:parameters()) do
      if p.requires_grad then list[#list + 1] = p end
    end
    model = list
  end
  self._hooked, self._applied = setmetatable({}, { __mode = "k" }), true
  TableOptimizer.init(self, model, opts)
end

--- Adds a group of parameters; see Optimizer:add_param_group.
function LOMO:add_param_group(group)
  TableOptimizer.add_param_group(self, group)
  -- Gradients get ready in about the reverse order of registration. All ranks must go through them
  -- in one order, so this is the order, whatever a rank's graph looks like.
  self._order, self._place = {}, {}
  for g = #self.param_groups, 1, -1 do
    local params = self.param_groups[g].params
    for i = #params, 1, -1 do
      local p = params[i]
      self._order[#self._order + 1] = { param = p, group = self.param_groups[g] }
      self._place[p] = #self._order
      self:_hook(p)
    end
  end
end

-- The hook refers to the optimizer weakly: a model may outlive it.
function LOMO:_hook(p)
  if self._hooked[p] or not p.requires_grad then return end
  self._hooked[p] = true
  local me = setmetatable({ self }, { __mode = "v" })
  p:register_post_accumulate_grad_hook(function(param)
    local optimizer = me[1]
    if not optimizer then return end
    if optimizer._pass then optimizer:_arrived(param) else optimizer._applied = false end
  end)
end

-- ---- one pass

-- On ranks: the mean over all of them, of a parameter that any of them has a gradient for; else
-- nil. Ranks without one count as zeros.
local function averaged(self, p)
  if not self._reduce then return p.grad end
  return self._reduce(p)
end

local function move(self, p, grad, group, pass)
  if group.clip_grad_value then grad:clamp_(-group.clip_grad_value, group.clip_grad_value) end
  if pass.coefficient then grad:mul_(pass.coefficient) end
  self:_apply(p, grad, group, pass.lr or group.lr)
end

-- Takes the gradient at a place of the order: measures it, or applies it.
local function take(self, at)
  local entry, pass = self._order[at], self._pass
  local p = entry.param
  local grad = averaged(self, p)
  p.grad = nil
  if not grad then return end
  if pass.squares then
    pass.squares = pass.squares + core.total_norm({ grad }, 2):item() ^ 2
    pass.count = pass.count + 1
  else
    core.no_grad(core.scope, move, self, p, grad, entry.group, pass)
  end
  -- inside backward, where nothing else holds it: not only when it is collected
  if pass.here then core.release(grad) end
end

-- Alone, a gradient is taken when it is whole. On ranks it is taken in the order that all ranks
-- share.
function LOMO:_arrived(p)
  local pass, place = self._pass, self._place[p]
  if not self._reduce then return take(self, place) end
  pass.here[place] = true
  while pass.here[pass.next] do
    pass.next = pass.next + 1
    take(self, pass.next - 1)
  end
end

-- What is left at the end: gradients that were there before; on ranks, parameters that this one's
-- loss did not reach and what waited behind them.
local function rest(self)
  local pass = self._pass
  if not self._reduce then
    for at, entry in ipairs(self._order) do
      if entry.param.grad ~= nil then take(self, at) end
    end
    return
  end
  while pass.next <= #self._order do
    pass.next = pass.next + 1
    take(self, pass.next - 1)
  end
end

-- Runs backward with the optimizers' hooks at work. Gradients of an earlier loss:backward() are
-- taken along.
local function run(optimizers, passes, loss, graph)
  return scope.run(function()
    for i, optimizer in ipairs(optimizers) do
      passes[i].here, passes[i].next = {}, 1
      optimizer._pass = passes[i]
      -- some may have been unfrozen since
      for _, entry in ipairs(optimizer._order) do optimizer:_hook(entry.param) end
    end
  end, function()
    for _, optimizer in ipairs(optimizers) do optimizer._pass = nil end
  end, function()
    loss:backward(graph)
    for _, optimizer in ipairs(optimizers) do rest(optimizer) end
  end)
end

local function check_loss(where, loss)
  if not core.is_tensor(loss) then
    fail("%s: expected the loss as a tensor, got %s", where, options.show(loss))
  end
end

--- Returns the joint norm of the gradients, by a backward pass that keeps the graph and no
--- gradient. The next fused_backward of the same loss scales by it.
---@param loss accelerate.Tensor
---@return accelerate.Tensor norm 0-d
function LOMO:grad_norm(loss)
  check_loss("grad_norm", loss)
  local pass = { squares = 0, count = 0 }
  run({ self }, { pass }, loss, { retain_graph = true })
  if pass.count == 0 then fail("grad_norm: the loss reaches no parameter of this %s", self.__name) end
  self._norm = math.sqrt(pass.squares)
  return core.tensor(self._norm)
end

-- The factor of this pass, or nil where none clips.
local function coefficient(self, loss)
  local limit
  for _, group in ipairs(self.param_groups) do limit = limit or group.clip_grad_norm end
  if not limit then return nil end
  if not self._norm then self:grad_norm(loss) end
  local factor = limit / (self._norm + 1e-6)
  self._norm = nil
  return math.min(factor, 1)
end

local GRAPH = { retain_graph = { "boolean", default = false } }

--- Runs backward and update for several optimizers of this kind in one pass.
---@param optimizers accelerate.optim.LOMO[]
---@param loss accelerate.Tensor
---@param lr number? nil: each group's own
function LOMO.backward_all(optimizers, loss, lr, opts)
  local graph = options.check("fused_backward", opts, GRAPH)
  local passes = {}
  for i, optimizer in ipairs(optimizers) do
    passes[i] = { coefficient = coefficient(optimizer, loss), lr = lr }
  end
  for _, optimizer in ipairs(optimizers) do optimizer:_began() end
  run(optimizers, passes, loss, graph)
  for _, optimizer in ipairs(optimizers) do optimizer._applied = true end
end

--- Runs backward from `loss` and updates each parameter when its gradient is complete. No gradient
--- is left.
---@param loss accelerate.Tensor
---@param lr number? in place of the groups' own
function LOMO:fused_backward(loss, lr)
  check_loss("fused_backward", loss)
  if lr ~= nil then options.value("fused_backward", "lr", lr, { "number", min = 0 }) end
  LOMO.backward_all({ self }, loss, lr)
end

--- Applies the gradients of a plain loss:backward(). Does nothing after a fused one, which leaves
--- no gradients.
---@param closure? fun(): any as other optimizers'
---@return any
function LOMO:step(closure)
  local result = self:_evaluate(closure)
  if not self._applied then
    self:_began()
    rates.agree(self)
    scope.with(self, "_pass", {}, function()
      for at = 1, #self._order do take(self, at) end
    end)
    self._applied = true
  end
  if closure then return result end
end

-- ---- the rule

--- A pass that updates begins.
function LOMO:_began() end

--- Moves one parameter; `grad` may be overwritten.
function LOMO:_apply(p, grad, group, lr)
  if group.weight_decay > 0 then p:mul_(1 - lr * group.weight_decay) end
  if grad.dtype ~= p.dtype then grad = grad:to(p.dtype) end
  p:add_(grad:mul_(-lr))
end

return LOMO
