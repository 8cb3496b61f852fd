--- optim.LBFGS, as torch.optim.LBFGS.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local line_search = require "accelerate.optim.line_search"
local options = require "accelerate.utils.options"
local parts = require "accelerate.nn.parts"
local recording = require "accelerate.capture.recording"
local TableOptimizer = require "accelerate.optim.tables"
local positions = require "accelerate.utils.positions"
local rates = require "accelerate.optim.rates"

local fail = options.fail

--- Limited-memory BFGS, for full batches:
---
---   optimizer:step(function()
---     optimizer:zero_grad()
---     local loss = loss_fn(model(x), y)
---     loss:backward()
---     return loss
---   end)
---
--- A step takes up to max_iter iterations and calls the closure up to max_eval times (default:
--- max_iter * 5 / 4). It ends early when no element of the gradient exceeds tolerance_grad, or
--- neither the parameters nor the loss change by more than tolerance_change. history_size: updates
--- that the curvature is estimated from. line_search_fn = "strong_wolfe" searches each step's
--- length until the strong Wolfe conditions hold; without it the length is lr. All parameters are
--- one group, of one type on one device.
---@class accelerate.optim.LBFGS : accelerate.optim.TableOptimizer
local LBFGS = class("LBFGS", TableOptimizer)

LBFGS._kind = "lbfgs"
LBFGS._takes_whole = true -- gradients, as one vector; see accelerate.parallel.sharded
LBFGS._schema = {
  lr = { "number", default = 1, min = 0 },
  max_iter = { "integer", default = 20, min = 0 },
  max_eval = { "integer", optional = true, min = 0 },
  tolerance_grad = { "number", default = 1e-7 },
  tolerance_change = { "number", default = 1e-9 },
  history_size = { "integer", default = 100, min = 1 },
  line_search_fn = { "string", optional = true, one_of = { "strong_wolfe" } },
  maximize = { "boolean", default = false },
}

function LBFGS:_checked(given, schema)
  local o = TableOptimizer._checked(self, given, schema)
  if o.max_eval == nil then o.max_eval = math.floor(o.max_iter * 5 / 4) end
  return o
end

--- Raises for a second group: L-BFGS takes all parameters as one vector.
function LBFGS:add_param_group(group)
  if #self.param_groups > 0 then
    fail("%s: parameter groups are not supported: all parameters are one vector", self.__name)
  end
  TableOptimizer.add_param_group(self, group)
  if #self.param_groups[1].params == 0 then
    fail("%s: the group has no parameters: there is nothing to optimize", self.__name)
  end
end

-- ---- the parameters as one vector

local function flat_grad(self)
  local list, group = {}, self.param_groups[1]
  for i, p in ipairs(group.params) do
    local real, grad = parts.of(p), p.grad and p.grad:detach()
    if grad and grad:is_complex() then grad = grad:view_as_real() end
    list[i] = grad and grad:flatten()
      or core.zeros(real:numel(), { dtype = real.dtype, device = real.device })
  end
  local flat = core.cat(list)
  return group.maximize and flat:neg_() or flat
end

-- Moves the parameters by t times a vector.
local function move(self, t, vector)
  local at = 1
  for _, p in ipairs(parts.list(self.param_groups[1].params)) do
    local n = p:numel()
    p:add_(vector:narrow(1, at, n):view(p.shape):mul(t))
    at = at + n
  end
end

local function largest(vector) return vector:abs():max():item() end

-- ---- one step

-- Takes the newest change of the gradient into the history.
local function remember(kept, grad, limit)
  local y, s = grad:sub(kept.prev_flat_grad), kept.d:mul(kept.t)
  local ys = y:dot(s):item()
  if ys <= 1e-10 then return end
  if #kept.old_dirs == limit then
    for _, list in ipairs { kept.old_dirs, kept.old_stps, kept.ro } do table.remove(list, 1) end
  end
  kept.old_dirs[#kept.old_dirs + 1] = y
  kept.old_stps[#kept.old_stps + 1] = s
  kept.ro[#kept.ro + 1] = 1 / ys
  kept.H_diag = ys / y:dot(y):item()
end

-- The gradient times the estimate of the inverse Hessian (the two-loop recursion).
local function direction(kept, grad)
  local q, share = grad:neg(), {}
  for i = #kept.old_dirs, 1, -1 do
    share[i] = kept.old_stps[i]:dot(q):item() * kept.ro[i]
    q:add_(kept.old_dirs[i]:mul(-share[i]))
  end
  q:mul_(kept.H_diag)
  for i = 1, #kept.old_dirs do
    local back = kept.old_dirs[i]:dot(q):item() * kept.ro[i]
    q:add_(kept.old_stps[i]:mul(share[i] - back))
  end
  return q
end

-- Searches the length of the step along kept.d; returns it with the loss and the gradient there,
-- and the number of evaluations.
local function search(self, kept, point, evaluate, most)
  local params, start = self.param_groups[1].params, {}
  for i, p in ipairs(params) do start[i] = p:detach():clone() end
  local function at(t)
    move(self, t, kept.d)
    local loss, grad = evaluate()
    for i, p in ipairs(params) do p:copy_(start[i]) end
    return { t = t, loss = loss, grad = grad, slope = grad:dot(kept.d):item() }
  end
  return line_search.strong_wolfe(at, kept.t, point, largest(kept.d), most)
end

-- One iteration from `point`, { loss, grad }.  Returns the next point, nil where the step ends.
local function iterate(self, kept, point, run)
  local group = self.param_groups[1]
  kept.n_iter = kept.n_iter + 1
  if kept.n_iter == 1 then
    kept.old_dirs, kept.old_stps, kept.ro, kept.H_diag = {}, {}, {}, 1
    kept.d = point.grad:neg()
  else
    remember(kept, point.grad, group.history_size)
    kept.d = direction(kept, point.grad)
  end
  kept.prev_flat_grad, kept.prev_loss = point.grad:clone(), point.loss
  kept.t = group.lr
  if kept.n_iter == 1 then kept.t = math.min(1, 1 / point.grad:abs():sum():item()) * group.lr end
  local slope = point.grad:dot(kept.d):item()
  if slope > -group.tolerance_change then return nil end

  local next_point, evaluations = point, 0
  if group.line_search_fn then
    point.t, point.slope = 0, slope
    next_point, evaluations = search(self, kept, point, run.evaluate, group.max_eval - run.evaluations)
    kept.t = next_point.t
    move(self, kept.t, kept.d)
  else
    move(self, kept.t, kept.d)
    if run.iterations < group.max_iter then -- the last iteration's gradient would not be used
      local loss, grad = run.evaluate()
      next_point, evaluations = { loss = loss, grad = grad }, 1
    end
  end
  run.evaluations = run.evaluations + evaluations
  kept.func_evals = kept.func_evals + evaluations
  if run.iterations == group.max_iter or run.evaluations >= group.max_eval
    or largest(next_point.grad) <= group.tolerance_grad
    or largest(kept.d:mul(kept.t)) <= group.tolerance_change
    or math.abs(next_point.loss - point.loss) < group.tolerance_change then
    return nil
  end
  return next_point
end

local function number_of(self, loss)
  if core.is_tensor(loss) and loss:numel() == 1 then return loss:item() end
  if type(loss) == "number" then return loss end
  fail("%s:step: the closure must return the loss, a number or a tensor of one element, got %s", self.__name,
    options.show(loss))
end

--- Takes one step.  Returns the loss before it, as the closure gave it.
---@param closure fun(): accelerate.Tensor|number clears the gradients, computes the loss and its
---  gradients, and returns the loss
---@return accelerate.Tensor|number loss
function LBFGS:step(closure)
  recording.refuse("LBFGS's step", "how often the loss is computed depends on its values")
  if type(closure) ~= "function" then
    fail("%s:step: expected a closure that computes the loss and its gradients and returns the loss, got %s",
      self.__name, options.show(closure))
  end
  rates.agree(self)
  local group = self.param_groups[1]
  local sign = group.maximize and -1 or 1
  local function evaluate()
    local loss = core.enable_grad(closure)
    return sign * number_of(self, loss), flat_grad(self), loss
  end
  return core.no_grad(function()
    local kept = self.state[group.params[1]] or { func_evals = 0, n_iter = 0 }
    self.state[group.params[1]] = kept
    local loss, grad, given = evaluate()
    kept.func_evals = kept.func_evals + 1
    if largest(grad) <= group.tolerance_grad then return given end
    local run = { evaluate = evaluate, evaluations = 1, iterations = 0 }
    local point = { loss = loss, grad = grad }
    while point and run.iterations < group.max_iter do
      run.iterations = run.iterations + 1
      point = iterate(self, kept, point, run)
    end
    for _, name in ipairs { "d", "prev_flat_grad" } do
      if kept[name] then core.keep(kept[name]) end
    end
    for _, list in ipairs { kept.old_dirs or {}, kept.old_stps or {} } do
      for _, vector in ipairs(list) do core.keep(vector) end
    end
    return given
  end)
end

-- ---- saving

-- PyTorch's names -> the type of what is kept; a number may be a tensor of one element there.
local KEPT = { func_evals = "number", n_iter = "number", t = "number", H_diag = "number",
  prev_loss = "number", d = "vector", prev_flat_grad = "vector", old_dirs = "vectors",
  old_stps = "vectors", ro = "numbers" }

local function is_number(value)
  return type(value) == "number" or core.is_tensor(value) and value:numel() == 1
end

local function size_of(params)
  local n = 0
  for _, p in ipairs(parts.list(params)) do n = n + p:numel() end
  return n
end

local function is_list(value, fits)
  if type(value) ~= "table" then return false end
  for i = 1, #value do
    if not fits(value[i]) then return false end
  end
  return true
end

--- Its vectors are of all parameters: each rank has the whole of them.
function LBFGS:_is_factor() return true end

function LBFGS:_check_entry(entry, p, number)
  local n = size_of(self.param_groups[1].params)
  local function is_vector(value) return core.is_tensor(value) and value:numel() == n end
  local fits = {
    number = is_number, vector = is_vector,
    numbers = function(value) return is_list(value, is_number) end,
    vectors = function(value) return is_list(value, is_vector) end,
  }
  if p ~= self.param_groups[1].params[1] then
    fail("%s:load_state_dict: parameter %d has a state; all of it is the first parameter's", self.__name,
      number)
  end
  for name, kind in next, KEPT do
    local value = entry[name]
    if value ~= nil and not fits[kind](value) then
      fail("%s:load_state_dict: %s of parameter %d must be %s of %d elements, got %s", self.__name, name,
        number, kind, n, options.show(value))
    end
  end
end

function LBFGS:_check_saved(entry, _, number)
  for _, name in ipairs { "func_evals", "n_iter" } do
    if entry[name] == nil then
      fail("%s:load_state_dict: parameter %d has no %s", self.__name, number, name)
    end
  end
end

local function as_number(value) return core.is_tensor(value) and value:item() or value end

function LBFGS:_restored(state, entry)
  state.step = nil
  for name, kind in next, KEPT do
    local value = entry[name]
    if kind == "number" then value = as_number(value) end
    if kind == "numbers" and value then
      local list = {}
      for i = 1, #value do list[i] = as_number(value[i]) end
      value = list
    end
    state[name] = value
  end
end

LBFGS.init = positions.arrange("LBFGS",
  "params [lr] [max_iter] [max_eval] [tolerance_grad] [tolerance_change] [history_size] [line_search_fn]",
  LBFGS.init, true)

return LBFGS
