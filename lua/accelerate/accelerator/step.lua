--- What an Accelerator does in a step: backward, accumulation, synchronisation, casting, clipping.
--- Methods of accelerate.Accelerator.
---
---   accumulate(model, fn)   decides whether this pass is the window's last (sync_gradients), and
---                           runs fn; else without reducing gradients (no_sync)
---   backward(loss)          divides the loss by the number of passes, scales it for fp16, and
---                           walks
---                           the tape; full buckets are reduced meanwhile (lua/accelerate/parallel)
---   clip_grad_norm_         waits for the reductions (ready_gradients), unscales, then clips
---   optimizer:step()        accelerator/optimizer.lua skips it inside a window; else _before_step
---                           waits for the reductions, and _after_step ends the window
---
--- The order of these does not depend on the kind of training: parallel says what a window, a
--- reduction and a norm over ranks are.
local core = require "accelerate.core"
local dataclasses = require "accelerate.config.dataclasses"
local kinds = require "accelerate.accelerator.types"
local mixed_precision = require "accelerate.precision.mixed_precision"
local notice = require "accelerate.messages.notice"
local optimizers = require "accelerate.accelerator.optimizer"
local options = require "accelerate.utils.options"
local parallel = require "accelerate.parallel"
local properties = require "accelerate.utils.properties"
local recording = require "accelerate.capture.recording"
local scope = require "accelerate.utils.scope"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

---@class accelerate.Accelerator
local Accelerator = {}

local BACKWARD = {
  weight = { "number", optional = true, min = 0 },
  retain_graph = { "boolean", default = false },
  create_graph = { "boolean", default = false },
  learning_rate = { "number", optional = true, min = 0 },
}

-- Whether backward passes and steps of the models are followed: ranks exchange what they compute,
-- or a device exchanges it with host memory.
local function follows(self) return self:_strategy():follows() end

--- Plain and weighted calls cannot share a window: their gradients are not in the same units.
local function enter_window(self, kind)
  if self._window and self._window ~= kind and parallel.any_gradient(self._models) then
    fail("backward: called %s weight after a call %s weight in the same window; " ..
      "give one to all calls or to none",
      kind == "weighted" and "with a" or "without a", kind == "weighted" and "without a" or "with a")
  end
  local former = self._window
  self._window = kind
  if not recording.active then return end
  if kind == "weighted" then
    recording.refuse("backward with a weight",
      "the weights of a window are summed on the host; scale the loss instead")
  end
  recording.register(function() self._window = kind end, function() self._window = former end)
end

--- The optimizers' own backward, which moves their parameters.
local function run_fused(self, where, loss, rate, weight, graph)
  recording.refuse("backward with LOMO", "it moves the parameters one by one, from Lua")
  if weight then
    fail("%s: weight is for updates after backward, and a prepared LOMO optimizer updates inside it", where)
  end
  if graph and graph.create_graph then
    fail("%s: create_graph: an update inside backward leaves no gradient to differentiate", where)
  end
  local inner = {}
  for _, optimizer in ipairs(self._optimizers) do
    local own = optimizer.optimizer
    if own.fuses_backward then inner[#inner + 1] = own end
  end
  if #inner == 0 then fail("%s: no LOMO or AdaLOMO optimizer was given to prepare", where) end
  inner[1].backward_all(inner, loss, rate, graph and { retain_graph = graph.retain_graph })
end

--- One backward pass, and the reduction of what it reached.
local function run_backward(self, where, loss, rate, weight, graph)
  local models = self._models
  local watched = weight or follows(self)
  local sync = gradient_state.sync_gradients or gradient_state.sync_each_batch
  local history = graph and graph.create_graph or false
  if watched then parallel.begin(models, (sync or not weight) and not history, history) end
  if self._has_lomo_optimizer then
    run_fused(self, where, loss, rate, weight, graph)
  elseif graph then
    loss:backward(graph)
  else
    loss:backward()
  end
  if watched then
    parallel.finish(models, sync, weight)
  end
end

--- Runs backward from `loss` without dividing it. Prepared LOMO optimizers update their parameters
--- during the pass.
---@param loss accelerate.Tensor
---@param learning_rate number
function Accelerator:lomo_backward(loss, learning_rate)
  if not core.is_tensor(loss) then
    fail("lomo_backward: expected the loss as a tensor, got %s", options.show(loss))
  end
  if learning_rate == nil then
    fail("lomo_backward: learning_rate is missing: a learning rate must be given for LOMO's backward")
  end
  options.value("lomo_backward", "learning_rate", learning_rate, { "number", min = 0 })
  if not self._has_lomo_optimizer then
    fail("lomo_backward: no LOMO or AdaLOMO optimizer was given to prepare")
  end
  run_backward(self, "lomo_backward", loss, learning_rate)
end

local function scaled(self, loss)
  for _, optimizer in ipairs(self._optimizers) do self._scaler:_watch(optimizer.optimizer) end
  return self._scaler:scale(loss)
end

--- Runs backward from `loss`, divided by gradient_accumulation_steps. Averages the gradients over
--- all ranks when they are to be synchronised. With `weight` (how many items the loss is a sum of)
--- the loss is not divided. At the sync, gradients are then the sum over the window and all ranks,
--- divided by the sum of the weights, however the items were split.
---
--- A prepared optimizer that updates inside backward (LOMO, AdaLOMO) moves its parameters in every
--- call, as their gradients arrive. Those gradients are averaged over the ranks. The learning rate
--- is `learning_rate`, or the groups' own lr if it is not given.
---
--- With `create_graph` gradients have a history. On several ranks an averaged gradient has that of
--- this rank's part of the mean. A loss that all ranks compute of such gradients alike (a gradient
--- penalty, say) has, after its own backward here, the gradients of one rank on the whole batch.
--- Raises with `weight`, and where gradients are cut over ranks.
---@param loss accelerate.Tensor
---@param opts { weight: number?, retain_graph: boolean?, create_graph: boolean?, learning_rate:
---  number? }?
function Accelerator:backward(loss, opts)
  if not core.is_tensor(loss) then
    fail("backward: expected the loss as a tensor, got %s", options.show(loss))
  end
  local weight, graph, rate
  if opts ~= nil then
    opts = options.check("backward", opts, BACKWARD)
    weight, rate = opts.weight, opts.learning_rate
    graph = { retain_graph = opts.retain_graph, create_graph = opts.create_graph }
    if rate and not self._has_lomo_optimizer then
      fail("backward: learning_rate is for optimizers that update inside backward, and no LOMO or " ..
        "AdaLOMO optimizer was prepared")
    end
    if weight and opts.create_graph then
      fail("backward: create_graph with weight: gradients of a weighted window are divided at its end, " ..
        "which their history would not say; divide the loss, and leave weight out")
    end
  end
  enter_window(self, weight and "weighted" or "plain")
  if weight then
    parallel.open_window(self._models)
  else
    local steps = gradient_state.num_steps
    if steps > 1 then loss = loss / steps end
  end
  if self._scaler then loss = scaled(self, loss) end
  run_backward(self, "backward", loss, rate, weight, graph)
end

--- Called by a prepared optimizer before a real step.
function Accelerator:_before_step()
  if follows(self) then parallel.flush(self._models) end
end

-- Compares the ranks' parameters after every check_replicas steps of prepared optimizers.
local function check_replicas(self)
  if recording.active then
    return notice.main_once("check_replicas: steps inside a captured function are not checked")
  end
  self._steps = self._steps + 1
  if self._steps % self._check_replicas == 0 then
    parallel.check_identical(self._models, ("after %d optimizer steps"):format(self._steps))
  end
end

--- Called by a prepared optimizer when nothing comes before its real step any more.
function Accelerator:_before_update()
  if follows(self) then parallel.steps(self._models) end
end

--- Called by a prepared optimizer after a real step.
function Accelerator:_after_step(optimizer)
  if follows(self) then
    parallel.stepped(self._models, optimizer.param_groups)
    if self._check_replicas and self._ranks > 1 then check_replicas(self) end
  end
  local former = self._window
  if former == "weighted" then parallel.close_windows(self._models, optimizer.param_groups) end
  self._window = nil
  if recording.active then
    recording.register(function() self._window = nil end, function() self._window = former end)
  end
end

--- Called by a prepared optimizer that got more parameters. Parameters of prepared models join the
--- flat buffers.
function Accelerator:_adopt_parameters()
  for _, model in ipairs(self._models) do parallel.prepare(model) end
end

-- How many of the arguments `model..., fn, ...` are models. A module may be the function, too: it
-- is, where nothing that follows the models can be called.
local function count_models(where, ...)
  local n, total = 0, select("#", ...)
  while n < total and kinds.is_model((select(n + 1, ...))) do n = n + 1 end
  if scope.callable((select(n + 1, ...))) then return n end
  if n >= 2 and n < total then return n - 1 end
  local value
  if total > 0 then value = select(math.min(n + 1, total), ...) end
  if n + 1 < total then
    fail("%s: argument %d must be a module, got %s%s", where, n + 1, options.show(value),
      type(value) == "table" and kinds.is_model(value[1])
      and ("; several models follow each other: %s(a, b, fn)"):format(where) or "")
  end
  scope.refuse(where, nil, value)
end

-- body(...) with the reduction of each model's gradients put off.
local function run_locally(models, at, body, ...)
  if at > #models then return body(...) end
  return parallel.no_sync(models[at], run_locally, models, at + 1, body, ...)
end

-- accumulate inside a captured step, where it counts at each replay.  A window of several batches
-- cannot be there: its batches do different things.
local function count_recorded(self)
  if gradient_state.num_steps > 1 then
    recording.refuse("accumulate with gradient_accumulation_steps > 1",
      "its batches do different things; call the captured step inside accumulate")
  end
  local step, sync = self._step, gradient_state.sync_gradients
  recording.register(function()
    local ends = gradient_state.sync_with_dataloader and gradient_state.end_of_dataloader
    self._step, gradient_state.sync_gradients = ends and 0 or self._step + 1, true
  end, function() self._step, gradient_state.sync_gradients = step, sync end)
end

-- accumulate, behind the models.
local function accumulate(self, models, body, ...)
  if recording.active then count_recorded(self) end
  if gradient_state.sync_with_dataloader and gradient_state.end_of_dataloader then
    self._step = 0
    gradient_state.sync_gradients = true
  else
    self._step = self._step + 1
    gradient_state.sync_gradients = self._step % gradient_state.num_steps == 0
  end
  if self._ranks == 1 or gradient_state.sync_gradients or gradient_state.sync_each_batch then
    return body(...)
  end
  return run_locally(models, 1, body, ...)
end

--- Runs fn(...) for one batch and returns what it returns. Gradients are synchronised on every
--- gradient_accumulation_steps-th batch and on the last one of the loader. On other batches
--- reductions are deferred, and prepared optimizers and schedulers do nothing.
---@param ... any the models whose gradients accumulate, then the function, then what it gets
---@return any ... what fn returns
function Accelerator:accumulate(...)
  local n = count_models("accumulate", ...)
  return accumulate(self, { unpack({ ... }, 1, n) }, select(n + 1, ...))
end

--- Runs fn(...) with gradients kept on each rank. They add up, and the next backward pass outside
--- reduces them with its own.
---@param ... any the model (default: all prepared ones), then the function, then what it gets
---@return any ... what fn returns
function Accelerator:no_sync(...)
  local n = count_models("no_sync", ...)
  if self._ranks == 1 then return (select(n + 1, ...))(select(n + 2, ...)) end
  return run_locally(n > 0 and { unpack({ ... }, 1, n) } or self._models, 1, select(n + 1, ...))
end

--- Runs fn(...) with gradient reduction on for `model`, even inside no_sync.
---@param model accelerate.nn.Module
---@param fn function
---@param ... any what fn gets
---@return any ... what fn returns
function Accelerator:trigger_sync_in_backward(model, fn, ...)
  if not kinds.is_model(model) then
    fail("trigger_sync_in_backward: argument 1 must be a module, got %s", options.show(model))
  end
  return parallel.with_sync(model, scope.body("trigger_sync_in_backward", fn), ...)
end

local AUTOCAST = { autocast_handler = { "table" } }

-- The handler that options stand for: an AutocastKwargs, its fields, or { autocast_handler = ... }.
local function autocast_handler(opts)
  if type(opts) == "table" and getmetatable(opts) == nil then
    if opts.autocast_handler == nil then return dataclasses.AutocastKwargs(opts) end
    opts = options.check("autocast", opts, AUTOCAST).autocast_handler
  end
  if opts ~= nil and not dataclasses.is(opts, dataclasses.AutocastKwargs) then
    fail("autocast: the handler must be an AutocastKwargs, got %s", options.show(opts))
  end
  return opts
end

local function cast(self, opts, fn, ...)
  return mixed_precision.context(autocast_handler(opts) or self._autocast_handler)(fn, ...)
end

--- Runs fn(...) under automatic casting as set by mixed_precision. With "no" it only calls fn. Use
--- it for computation outside a prepared model, such as a loss, which otherwise runs in float32.
---@param opts accelerate.AutocastKwargs|table|nil in place of the Accelerator's own; a plain table
---  is taken for its fields, as in { enabled = false }, or for { autocast_handler = handler }
---@param fn function
---@param ... any what fn gets
---@return any ... what fn returns
function Accelerator:autocast(...)
  local names = properties.merge(AUTOCAST, dataclasses.AutocastKwargs._schema)
  return cast(self, scope.arguments("autocast", names, ...))
end

--- Gradients as they are to be clipped: reduced, and without the loss scale.
local function ready_gradients(self)
  self:_before_step()
  if not self._scaler then return end
  for _, optimizer in ipairs(self._optimizers) do
    self._scaler:unscale_once_(optimizer.optimizer)
  end
end

--- Called by a prepared optimizer before a real step. Returns false where it is to be left out.
function Accelerator:_engine_before_step(optimizer, closure)
  if not self._state.deepspeed_plugin then return true end
  return require("accelerate.accelerator.deepspeed.step").before_step(self, optimizer, closure,
    ready_gradients)
end

--- Called by a prepared optimizer after a real step.
function Accelerator:_engine_after_step(optimizer)
  if not self._state.deepspeed_plugin then return end
  require("accelerate.accelerator.deepspeed.step").after_step(self, optimizer)
end

--- Scales gradients in place so that their joint norm is at most `max_norm`. Call it only when
--- `sync_gradients` is true. Under DeepSpeed it only returns the joint norm of all gradients: its
--- configuration's gradient_clipping clips in the optimizer's step.
---@param parameters accelerate.Tensor[]|accelerate.Tensor
---@param max_norm number
---@param ... any norm_type = 2 (math.huge: the largest element), or a table with it
---@return accelerate.Tensor norm 0-d, before clipping, the same on every rank
function Accelerator:clip_grad_norm_(parameters, max_norm, ...)
  if self._state.deepspeed_plugin then
    return require("accelerate.accelerator.deepspeed.step").clip(self, max_norm, ready_gradients)
  end
  ready_gradients(self)
  return require("accelerate.nn").utils.clip_grad_norm_(parameters, max_norm, ...)
end

--- Limits every element of the gradients to -clip_value .. clip_value.
---@param parameters accelerate.Tensor[]|accelerate.Tensor
---@param clip_value number at least 0
function Accelerator:clip_grad_value_(parameters, clip_value, ...)
  ready_gradients(self)
  return require("accelerate.nn").utils.clip_grad_value_(parameters, clip_value, ...)
end

--- Divides gradients by the loss scale, so that a script can read or change them before the step.
--- Does nothing without fp16's loss scaler. Call it at most once for each optimizer before its
--- step. Clipping calls it if the script has not.
---@param optimizer table|table[]|nil a prepared optimizer or a list of them; nil: all
function Accelerator:unscale_gradients(optimizer)
  local list = self._optimizers
  if optimizer ~= nil then list = kinds.is_optimizer(optimizer) and { optimizer } or optimizer end
  if type(list) ~= "table" then
    fail("unscale_gradients: expected a prepared optimizer, a list of them, or nothing, got %s",
      options.show(optimizer))
  end
  for i, one in ipairs(list) do
    if not kinds.is_optimizer(one) then
      fail("unscale_gradients: entry %d of the list must be an optimizer, got %s", i, options.show(one))
    end
  end
  if optimizer ~= nil and #list == 0 and not kinds.is_optimizer(optimizer) then
    fail("unscale_gradients: expected a prepared optimizer, a list of them, or nothing, got %s",
      options.show(optimizer))
  end
  if not self._scaler then return end
  self:_before_step()
  for _, one in ipairs(list) do self._scaler:unscale_(optimizers.unwrap(one)) end
end

return Accelerator
