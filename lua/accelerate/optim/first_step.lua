--- What an optimizer's first steps show of a script: gradients that are not there, objects that
--- were prepared and are not used. Each is a notice, once; nothing is looked at any more when a
--- step has found a gradient.
local core = require "accelerate.core"
local notice = require "accelerate.messages.notice"

local M = {}

local WEAK = { __mode = "k" }
local stepped = setmetatable({}, WEAK) -- optimizers that made a step
local wrapped = setmetatable({}, WEAK) -- optimizers and schedulers for which prepare returned another object

--- Optimizers and schedulers at which there is nothing more to see.
M.seen = setmetatable({}, WEAK)

local function count_parameters(optimizer)
  local count = 0
  for _, group in ipairs(optimizer.param_groups) do count = count + #group.params end
  return count
end

local function has_gradient(optimizer)
  for _, group in ipairs(optimizer.param_groups) do
    for _, p in ipairs(group.params) do
      if p.grad then return true end
    end
  end
  return false
end

-- Whether it makes a difference which of an object and what `prepare` made of it is used.
local function differs()
  local gradient_state = package.loaded["accelerate.state"] and require("accelerate.state").GradientState()
  return core.dist.world_size() > 1 or gradient_state ~= nil and gradient_state.num_steps > 1
end

-- A step of an optimizer that no wrapper called.
local function check_raw(optimizer)
  local name, ranks = optimizer.__name, core.dist.world_size()
  if wrapped[optimizer] then
    if differs() then
      notice.trap("optimizer given to prepare", "%s: step of the optimizer that was given to prepare, not " ..
        "of the one that it returned: gradients are not accumulated and reduced before it; use the " ..
        "results: optimizer = accelerator:prepare(optimizer)", name)
    end
  elseif ranks > 1 then
    notice.trap("optimizer not prepared", "%s: step, on %d ranks, of an optimizer that was not prepared: " ..
      "unless the script reduces the gradients itself, each rank trains a model of its own; model, " ..
      "optimizer = accelerator:prepare(model, optimizer)", name, ranks)
  end
end

-- Checks that the gradients of a prepared optimizer's parameters are reduced by some model.
local function check_prepared(optimizer, models)
  local ranks = core.dist.world_size()
  if ranks == 1 or optimizer.fuses_backward then return end
  local known = {}
  for _, model in ipairs(models) do
    for _, p in ipairs(model:parameters()) do known[p] = true end
  end
  for _, group in ipairs(optimizer.param_groups or {}) do
    for _, p in ipairs(group.params) do
      if known[p] then return end
    end
  end
  notice.trap("model not prepared", "%s: step on parameters that belong to no prepared model: unless the " ..
    "script reduces their gradients itself, each of the %d ranks trains a model of its own; model, " ..
    "optimizer = accelerator:prepare(model, optimizer)", optimizer.__name, ranks)
end

--- Called before an optimizer's step, until it is `seen`.
---@param optimizer table
---@param models accelerate.nn.Module[]? of the Accelerator that steps it; nil: the script does
function M.optimizer(optimizer, models)
  if not stepped[optimizer] then
    stepped[optimizer] = true
    if models then check_prepared(optimizer, models) else check_raw(optimizer) end
  end
  if models then return end -- its own step comes next
  if has_gradient(optimizer) then
    M.seen[optimizer] = true
  else
    notice.trap("no gradient", "%s: step, and none of the %d parameters has a gradient: nothing is " ..
      "changed; is it their loss whose backward was called, and were they not replaced since the " ..
      "optimizer was made?", optimizer.__name, count_parameters(optimizer))
  end
end

--- Says that `prepare` returned another object for this optimizer or scheduler.
function M.prepared(object) wrapped[object], stepped[object], M.seen[object] = true, nil, nil end

-- Whether it is known of an optimizer when it steps.
local function is_watched(optimizer)
  return type(optimizer) == "table" and not optimizer.fuses_backward
    and optimizer.step == require("accelerate.optim.optimizer").step
end

--- Called before a scheduler's first step.
---@param scheduler table
---@param inside boolean? whether the object that prepare returned calls it
function M.scheduler(scheduler, inside)
  M.seen[scheduler] = true
  local optimizer = scheduler.optimizer
  -- what prepare returned stands for the optimizer inside it
  optimizer = type(optimizer) == "table" and optimizer.optimizer or optimizer
  local first = scheduler.last_epoch == 0 and is_watched(optimizer)
  if first and not stepped[optimizer] and not optimizer:_has_state() then
    notice.trap("scheduler before optimizer", "%s: step before the optimizer's first one: the schedule's " ..
      "first learning rate is not used; call optimizer:step() before scheduler:step()", scheduler.__name)
  end
  if wrapped[scheduler] and not inside and differs() then
    notice.trap("scheduler given to prepare", "%s: step of the scheduler that was given to prepare, " ..
      "not of the one that it returned: it does not follow the optimizer's real steps; use the results: " ..
      "scheduler = accelerator:prepare(scheduler)", scheduler.__name)
  end
end

return M
