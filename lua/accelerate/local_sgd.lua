--- Local SGD: ranks train independently and average their parameters from time to time ("Local SGD
--- Converges Fast and Communicates Little", Stich, arXiv 1805.09767).
---
---   LocalSGD(accelerator, model, 8, function(local_sgd)
---     for input, target in loader:iter() do
---       … accelerator:backward(loss) optimizer:step() optimizer:zero_grad()
---       local_sgd:step()
---     end
---   end)
local kinds = require "accelerate.accelerator.types"
local options = require "accelerate.utils.options"
local parallel = require "accelerate.parallel"
local properties = require "accelerate.utils.properties"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

---@class accelerate.LocalSGD
---@field enabled boolean false on one process
---@field num_steps integer number of steps so far
---@field local_sgd_steps integer
local methods = {}

--- Counts a step. After every local_sgd_steps steps the parameters become their mean over all
--- ranks.
function methods:step()
  self._steps = self._steps + 1
  if self._enabled and self._inside and self._steps % self._every == 0 then
    parallel.average_parameters(self._model)
  end
end

--- Runs fn(local_sgd, ...) without reducing gradients, then averages the parameters, and returns
--- fn's results. When fn raises, nothing is averaged: the other ranks may not get that far.
---@param fn fun(local_sgd: accelerate.LocalSGD, ...): ...
function methods:run(fn, ...)
  if not scope.callable(fn) then fail("LocalSGD: run: expected a function, got %s", options.show(fn)) end
  if not self._enabled then return fn(self, ...) end
  if self._inside then fail("LocalSGD: run was called inside itself") end
  local function averaged(...)
    parallel.average_parameters(self._model)
    return ...
  end
  return averaged(scope.with(self, "_inside", true, parallel.local_only, self._model,
    function(...) return fn(self, ...) end, ...))
end

local Class = properties.define("LocalSGD", {
  methods = methods,
  get = {
    enabled = function(self) return self._enabled end, num_steps = function(self) return self._steps end,
    local_sgd_steps = function(self) return self._every end,
  },
})

local OPTIONS = { enabled = { "boolean", default = true } }

--- Trains `model` by local steps: inside the function its gradients stay on each rank, and its
--- parameters are averaged after every `local_sgd_steps` calls of local_sgd:step() and at the end.
--- Buffers stay each rank's own until gradients are reduced again. On one process it only calls fn.
---@param accelerator accelerate.Accelerator
---@param model accelerate.nn.Module as returned by prepare
---@param local_sgd_steps integer at least 1
---@param opts { enabled: boolean? }?
---@param fn (fun(local_sgd: accelerate.LocalSGD, ...): ...)? without it the object is returned; its
---  run(fn, ...) has this effect
---@param ... any further arguments of fn
---@return any ... results of fn
M.LocalSGD = properties.callable("LocalSGD", function(accelerator, model, local_sgd_steps, ...)
  local opts, fn = ...
  if scope.callable(opts) then opts, fn = nil, opts end
  if not kinds.is_accelerator(accelerator) then
    fail("LocalSGD: argument 1 (accelerator) must be an Accelerator, got %s", options.show(accelerator))
  end
  if not kinds.is_model(model) then
    fail("LocalSGD: argument 2 (model) must be a module, got %s", options.show(model))
  end
  options.value("LocalSGD", "local_sgd_steps", local_sgd_steps, { "integer", min = 1 })
  opts = options.check("LocalSGD", opts, OPTIONS)
  if fn ~= nil then scope.body("LocalSGD", fn) end
  local kind = accelerator.distributed_type
  if kind == "DEEPSPEED" or kind == "FSDP" or kind == "MEGATRON_LM" or kind == "XLA" then
    fail("LocalSGD: each rank must hold the whole model, which it does not under %s", kind)
  end
  local self = Class.new()
  self._enabled = opts.enabled and accelerator.num_processes > 1
  if self._enabled and not parallel.record_of(model) then
    fail("LocalSGD: the model was not prepared; give it to accelerator:prepare first")
  end
  if self._enabled and not parallel.is_replicated(model) then
    fail("LocalSGD: each rank must hold the whole model, and this one is cut over ranks (%s)",
      parallel.record_of(model).strategy.plan.name)
  end
  self._model, self._every, self._steps, self._inside = model, local_sgd_steps, 0, false
  if fn then return self:run(select(scope.callable((...)) and 1 or 2, ...)) end
  return self
end)

return require("accelerate.utils.properties").strict("accelerate.local_sgd", M)
