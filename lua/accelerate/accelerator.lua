--- The Accelerator: prepares a script's objects for the processes that there are, and runs its steps.
---
---   local accelerator = accelerate.Accelerator{ gradient_accumulation_steps = 2 }
---   model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
---
--- A façade: what it does lies in state, parallel, mixed_precision, optimizer, scheduler, data_loader, checkpoint and
--- utils.operations.
local checkpoint = require "accelerate.checkpoint"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local data_loader = require "accelerate.data_loader"
local dataclasses = require "accelerate.dataclasses"
local mixed_precision = require "accelerate.mixed_precision"
local operations = require "accelerate.utils.operations"
local optimizers = require "accelerate.optimizer"
local options = require "accelerate.utils.options"
local parallel = require "accelerate.parallel"
local properties = require "accelerate.utils.properties"
local schedulers = require "accelerate.scheduler"
local setup = require "accelerate.setup"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

---@class accelerate.Accelerator
local Accelerator = {}

-- ---- preparing ---------------------------------------------------------------------------------------------------

local function position(list, object)
  for i, other in ipairs(list) do
    if other == object then return i end
  end
end

local function enlist(list, object)
  if not position(list, object) then list[#list + 1] = object end
  return object
end

local function is_model(value) return class.is(value, require("accelerate.nn").Module) end
local function is_optimizer(value)
  return optimizers.is_accelerated(value) or class.is(value, require("accelerate.optim").Optimizer)
end
local function is_scheduler(value)
  return schedulers.is_accelerated(value) or class.is(value, require("accelerate.optim").lr_scheduler.LRScheduler)
end

--- Readies a model: parameters go into flat buffers and all ranks start from rank 0's values.  With mixed precision its
--- forward runs under casting and gives float32 (every float16 and bfloat16 tensor in what it returns is converted), and
--- its parameters get working copies in the lower type, which optimizers write.  The same object is returned.
---@param model accelerate.nn.Module
---@param opts { device_placement: boolean?, evaluation_mode: boolean? }? evaluation_mode: for a model that is not trained here
---@return accelerate.nn.Module model
function Accelerator:prepare_model(model, opts)
  opts = options.check("prepare_model", opts,
    { device_placement = { "boolean", default = self._device_placement }, evaluation_mode = { "boolean", default = false } })
  if not is_model(model) then fail("prepare_model: expected a module, got %s", options.show(model)) end
  if opts.device_placement then model:to(self.device) end
  mixed_precision.wrap(model, self._autocast_handler)
  if not opts.evaluation_mode then parallel.prepare(model) end
  return enlist(opts.evaluation_mode and self._evaluated or self._models, model)
end

--- Wraps an optimizer so that it steps only when gradients are synchronised.
---@param optimizer table
---@return accelerate.AcceleratedOptimizer
function Accelerator:prepare_optimizer(optimizer, opts)
  options.check("prepare_optimizer", opts, { device_placement = { "boolean", optional = true } })
  if not is_optimizer(optimizer) then fail("prepare_optimizer: expected an optimizer, got %s", options.show(optimizer)) end
  if not optimizers.is_accelerated(optimizer) then
    for _, known in ipairs(self._optimizers) do
      if rawget(known, "optimizer") == optimizer then return known end
    end
    optimizer = optimizers.AcceleratedOptimizer(optimizer, self)
  end
  return enlist(self._optimizers, optimizer)
end

--- Makes a loader that gives this rank its share of the batches, on this rank's device.
---@param loader table
---@return accelerate.DataLoaderShard
function Accelerator:prepare_data_loader(loader, opts)
  opts = options.check("prepare_data_loader", opts,
    { device_placement = { "boolean", default = self._device_placement }, slice_fn_for_dispatch = { "function", optional = true } })
  local prepared = data_loader.is_prepared(loader) and loader or self._prepared_loaders[loader]
  if not prepared then
    prepared = data_loader.prepare_data_loader(loader, {
      device = self.device, put_on_device = opts.device_placement, rng_types = self._rng_types, config = self._dataloader_config,
      slice_fn_for_dispatch = opts.slice_fn_for_dispatch,
    })
    self._prepared_loaders[loader] = prepared
  end
  return enlist(self._dataloaders, prepared)
end

--- Wraps a scheduler so that it moves with the optimizer that it was made for (else with all prepared ones).
---@param scheduler table
---@return accelerate.AcceleratedScheduler
function Accelerator:prepare_scheduler(scheduler)
  if not is_scheduler(scheduler) then fail("prepare_scheduler: expected a scheduler, got %s", options.show(scheduler)) end
  if schedulers.is_accelerated(scheduler) then return enlist(self._schedulers, scheduler) end
  for _, known in ipairs(self._schedulers) do
    if rawget(known, "scheduler") == scheduler then return known end
  end
  local followed = self._optimizers
  for _, optimizer in ipairs(self._optimizers) do
    if scheduler.optimizer == optimizer or scheduler.optimizer == rawget(optimizer, "optimizer") then followed = { optimizer } end
  end
  local config = self._dataloader_config
  return enlist(self._schedulers, schedulers.AcceleratedScheduler(scheduler, followed, self._step_scheduler_with_optimizer,
    function() return config.split_batches end))
end

local function prepare_one(self, object, first_pass, placement)
  local opts = placement ~= nil and { device_placement = placement } or nil
  if first_pass then
    if is_model(object) then return self:prepare_model(object, opts) end
    if is_optimizer(object) then return self:prepare_optimizer(object, opts) end
    if data_loader.is_loader(object) then return self:prepare_data_loader(object, opts) end
  elseif is_scheduler(object) then
    return self:prepare_scheduler(object)
  end
  return object
end

local PREPARE = { device_placement = { "list" } }

--- Readies models, optimizers, loaders and schedulers, in any order and more than once, and returns them in that order.
--- Objects of other kinds pass through untouched.
---@param ... any objects; last, if need be, { device_placement = { true, false, ... } } with one entry for each object
---@return any ...
function Accelerator:prepare(...)
  local objects, n = { ... }, select("#", ...)
  local placement = {}
  if n > 0 and options.is_options(objects[n], PREPARE) then
    placement = options.check("prepare", objects[n], PREPARE).device_placement
    n = n - 1
    if #placement ~= n then fail("prepare: device_placement has %d entries for %d objects", #placement, n) end
  end
  local layouts = parallel.layouts
  for _, first_pass in ipairs { true, false } do
    for i = 1, n do objects[i] = prepare_one(self, objects[i], first_pass, placement[i]) end
  end
  -- State that an optimizer has from before lies as the parameters lay then.
  for _, optimizer in ipairs(parallel.layouts > layouts and self._optimizers or {}) do
    local inner = rawget(optimizer, "optimizer")
    if next(inner.state) ~= nil and inner._relayout then inner:_relayout() end
  end
  return unpack(objects, 1, n)
end

--- The model that a prepared one stands for: here the same object, for prepare does not wrap models.  With
--- keep_fp32_wrapper = false its forward is again what it was before mixed precision.
---@param opts { keep_fp32_wrapper: boolean?, keep_torch_compile: boolean? }? both true by default
function Accelerator:unwrap_model(model, opts)
  opts = options.check("unwrap_model", opts,
    { keep_fp32_wrapper = { "boolean", default = true }, keep_torch_compile = { "boolean", default = true } })
  if not opts.keep_fp32_wrapper then mixed_precision.unwrap(model) end
  return model
end

--- Forgets what was prepared, sets the batch counter to 0, collects garbage and empties the allocator's cache.  Returns
--- one nil for each argument: `model, optimizer = accelerator:free_memory(model, optimizer)`.
function Accelerator:free_memory(...)
  for _, name in ipairs { "_models", "_evaluated", "_optimizers", "_schedulers", "_dataloaders" } do self[name] = {} end
  self._prepared_loaders = setmetatable({}, { __mode = "k" })
  self._step, self._window = 0, nil
  collectgarbage()
  collectgarbage()
  core.empty_cache()
  return unpack({}, 1, select("#", ...))
end
Accelerator.clear = Accelerator.free_memory

-- ---- steps -------------------------------------------------------------------------------------------------------

local BACKWARD = {
  weight = { "number", optional = true, min = 0 },
  retain_graph = { "boolean", default = false },
  create_graph = { "boolean", default = false },
}

--- Plain and weighted calls cannot share a window: their gradients are not in the same units.
local function enter_window(self, kind)
  if self._window and self._window ~= kind and parallel.any_gradient(self._models) then
    fail("backward: called %s weight after a call %s weight in the same window; give one to all calls or to none",
      kind == "weighted" and "with a" or "without a", kind == "weighted" and "without a" or "with a")
  end
  self._window = kind
end

--- Runs backward from `loss`, divided by gradient_accumulation_steps, and averages the gradients over all ranks when they
--- are to be synchronised.  With `weight` (how many items the loss is a sum of) nothing is divided here: at the sync,
--- gradients are the sum over the window and all ranks, divided by the sum of the weights, however the items were split.
---@param loss accelerate.Tensor
---@param opts { weight: number?, retain_graph: boolean?, create_graph: boolean? }?
function Accelerator:backward(loss, opts)
  if not core.is_tensor(loss) then fail("backward: expected the loss as a tensor, got %s", options.show(loss)) end
  local weight, graph
  if opts ~= nil then
    if type(opts) == "table" and opts.learning_rate ~= nil then
      fail("backward: learning_rate selects LOMO's fused backward, which is not there yet")
    end
    opts = options.check("backward", opts, BACKWARD)
    weight, graph = opts.weight, { retain_graph = opts.retain_graph, create_graph = opts.create_graph }
  end
  local models = self._models
  enter_window(self, weight and "weighted" or "plain")
  if weight then
    parallel.open_window(models)
  else
    local steps = gradient_state.num_steps
    if steps > 1 then loss = loss / steps end
  end
  local watched = weight or self._ranks > 1
  if watched then parallel.begin(models) end
  if graph then loss:backward(graph) else loss:backward() end
  if watched then
    parallel.finish(models, gradient_state.sync_gradients or gradient_state.sync_each_batch, weight)
  end
end

--- Told by a prepared optimizer before a real step.
function Accelerator:_before_step()
  if self._ranks > 1 then parallel.flush(self._models) end
end

--- Told by a prepared optimizer after a real step.
function Accelerator:_after_step(optimizer)
  if self._window == "weighted" then parallel.close_windows(self._models, optimizer.param_groups) end
  self._window = nil
end

--- Told by a prepared optimizer that got more parameters: those of prepared models join the flat buffers.
function Accelerator:_adopt_parameters()
  for _, model in ipairs(self._models) do parallel.prepare(model) end
end

--- Splits `model..., fn`.
local function models_and_body(what, ...)
  local models = { ... }
  local body = table.remove(models)
  if type(body) ~= "function" then fail("%s: expected a function as the last argument, got %s", what, options.show(body)) end
  for i, model in ipairs(models) do
    if not is_model(model) then fail("%s: argument %d must be a module, got %s", what, i, options.show(model)) end
  end
  return models, body
end

--- Runs `fn` for one batch and returns what it returns.  Gradients are synchronised on every
--- gradient_accumulation_steps-th batch and on the last one of the loader; on the others, reductions are put off and
--- prepared optimizers and schedulers do nothing.
---@param ... any the models whose gradients accumulate, then the function
function Accelerator:accumulate(...)
  local models, body = models_and_body("accumulate", ...)
  if gradient_state.sync_with_dataloader and gradient_state.end_of_dataloader then
    self._step = 0
    gradient_state.sync_gradients = true
  else
    self._step = self._step + 1
    gradient_state.sync_gradients = self._step % gradient_state.num_steps == 0
  end
  if self._ranks == 1 or gradient_state.sync_gradients or gradient_state.sync_each_batch then return body() end
  for _, model in ipairs(models) do
    local inner = body
    body = function() return parallel.no_sync(model, inner) end
  end
  return body()
end

--- Runs `fn` with gradients kept on each rank: they add up, and the next backward pass outside takes them along.
---@param ... any the model (default: all prepared ones), then the function
function Accelerator:no_sync(...)
  local models, body = models_and_body("no_sync", ...)
  if #models == 0 then models = self._models end
  if self._ranks == 1 then return body() end
  for _, model in ipairs(models) do
    local inner = body
    body = function() return parallel.no_sync(model, inner) end
  end
  return body()
end

--- Runs `fn` with reduction on for `model`, also inside no_sync.
function Accelerator:trigger_sync_in_backward(model, fn)
  local models, body = models_and_body("trigger_sync_in_backward", model, fn)
  return parallel.with_sync(models[1], body)
end

--- Runs `fn`.  Only ranks on several GPUs can join with different numbers of batches; elsewhere this says so once and
--- changes nothing.
function Accelerator:join_uneven_inputs(joinables, opts, fn)
  if type(opts) == "function" then opts, fn = nil, opts end
  options.check("join_uneven_inputs", opts, { even_batches = { "boolean", optional = true } })
  if type(fn) ~= "function" then fail("join_uneven_inputs: expected a function as the last argument, got %s", options.show(fn)) end
  if self.use_distributed and self.is_main_process then
    io.stderr:write("accelerate: join_uneven_inputs has no effect for distributed type ", self.distributed_type, "\n")
  end
  return fn()
end

local AUTOCAST = { autocast_handler = { "table" } }

--- Runs fn(...) under automatic casting as mixed_precision says; with "no" it just calls.  For what runs outside a
--- prepared model, such as a loss, which is computed in float32 otherwise.
---@param handler accelerate.AutocastKwargs|table|nil in place of the Accelerator's own; a plain table is taken for its
---  fields, as in { enabled = false }, or for { autocast_handler = handler }
---@param fn function
---@return any ... what fn returns
function Accelerator:autocast(handler, fn, ...)
  if type(handler) == "function" then return self:autocast(nil, handler, fn, ...) end
  if type(handler) == "table" and getmetatable(handler) == nil then
    if handler.autocast_handler ~= nil then handler = options.check("autocast", handler, AUTOCAST).autocast_handler
    else handler = dataclasses.AutocastKwargs(handler) end
  end
  if handler ~= nil and not dataclasses.is(handler, dataclasses.AutocastKwargs) then
    fail("autocast: the handler must be an AutocastKwargs, got %s", options.show(handler))
  end
  if type(fn) ~= "function" then fail("autocast: expected a function, got %s", options.show(fn)) end
  return mixed_precision.context(handler or self._autocast_handler)(fn, ...)
end

--- Scales gradients in place so that their joint norm is at most `max_norm`.  Call it only when `sync_gradients` is true.
---@param parameters accelerate.Tensor[]|accelerate.Tensor
---@param max_norm number
---@param opts { norm_type: number? }|number? norm_type: default 2; math.huge: the largest element
---@return accelerate.Tensor norm 0-d, before clipping, the same on every rank
function Accelerator:clip_grad_norm_(parameters, max_norm, opts)
  if type(opts) == "number" then opts = { norm_type = opts } end
  self:_before_step()
  return require("accelerate.nn").utils.clip_grad_norm_(parameters, max_norm, opts)
end

--- Limits every element of the gradients to -clip_value .. clip_value.
function Accelerator:clip_grad_value_(parameters, clip_value)
  self:_before_step()
  return require("accelerate.nn").utils.clip_grad_value_(parameters, clip_value)
end

--- Takes the loss scale out of the gradients; there is none without fp16.
function Accelerator:unscale_gradients() end

-- ---- collectives -------------------------------------------------------------------------------------------------

--- Joins tensors of all ranks along dim 1, in rank order; see utils.gather.
function Accelerator:gather(data) return operations.gather(data) end

--- Gathers, and on a loader's last batch cuts what was added to fill it.  Values that are no tensors are gathered as
--- objects.
---@param data any nested tensors, or a list of any values
---@param opts { use_gather_object: boolean? }?
function Accelerator:gather_for_metrics(data, opts)
  opts = options.check("gather_for_metrics", opts, { use_gather_object = { "boolean", default = false } })
  local objects = opts.use_gather_object or not operations.all_tensors(data)
  local gathered = objects and operations.gather_object(data) or operations.gather(data)
  local remainder = gradient_state.remainder
  if not gradient_state.end_of_dataloader or remainder <= 0 then return gathered end
  if objects then
    local cut = {}
    for i = 1, math.min(remainder, #gathered) do cut[i] = gathered[i] end
    return cut
  end
  return operations.recursively_apply(function(t)
    if t:dim() == 0 or t:size(1) <= remainder then return t end
    return t:narrow(1, 1, remainder)
  end, gathered)
end

--- Combines tensors of all ranks; the input is left alone.
---@param reduction ("sum"|"mean"|"max"|"min"|"prod"|"none")? default "sum"
function Accelerator:reduce(data, reduction, scale)
  if type(reduction) == "table" then
    local opts = options.check("reduce", reduction, { reduction = { "string", default = "sum" }, scale = { "number", optional = true } })
    reduction, scale = opts.reduction, opts.scale
  end
  return operations.reduce(data, reduction or "sum", scale)
end

--- Pads tensors to the longest rank's size; see utils.pad_across_processes.
---@param opts { dim: integer?, pad_index: number?, pad_first: boolean? }?
function Accelerator:pad_across_processes(data, opts) return operations.pad_across_processes(data, opts) end

--- Raises this rank's flag; `check_trigger` on all ranks sees it.
function Accelerator:set_trigger() self._trigger = true end

--- True on every rank when any rank called set_trigger since the last check.  All ranks must call it.
---@return boolean
function Accelerator:check_trigger()
  local raised = core.tensor({ self._trigger and 1 or 0 }, { dtype = "int64" })
  if self._ranks > 1 then core.dist.all_reduce(raised, "sum") end
  local any = raised:totable()[1] > 0
  if any then self._trigger = false end
  return any
end

-- ---- files -------------------------------------------------------------------------------------------------------

local SAVE = { safe_serialization = { "boolean", default = true } }

--- Is this the process that writes files?
local function writes(self)
  if self._project_configuration.save_on_each_node then return self.is_local_main_process end
  return self.is_main_process
end

--- Writes a table of tensors as a safetensors file, on the main process (of every machine with save_on_each_node).
---@param object table<string, accelerate.Tensor>
---@param path string
function Accelerator:save(object, path, opts)
  opts = options.check("save", opts, SAVE)
  if writes(self) then checkpoint.save(object, path, opts.safe_serialization) end
end

--- Writes the model's weights: model.safetensors, or shards with an index when they are larger than max_shard_size.
---@param model accelerate.nn.Module
---@param directory string made if need be
---@param opts { max_shard_size: integer|string?, safe_serialization: boolean? }? default "10GB"; units are decimal
function Accelerator:save_model(model, directory, opts)
  opts = options.check("save_model", opts, {
    max_shard_size = { "number|string", default = "10GB" }, safe_serialization = SAVE.safe_serialization,
  })
  if not is_model(model) then fail("save_model: expected a module, got %s", options.show(model)) end
  options.value("save_model", "directory", directory, { "string" })
  if writes(self) then checkpoint.save_model(model, directory, opts) end
end

--- The weights of a model by name.
function Accelerator:get_state_dict(model, opts)
  options.check("get_state_dict", opts, { unwrap = { "boolean", default = true } })
  return model:state_dict()
end

--- A loader without the first `num_batches` batches of this rank; the original is left alone.
function Accelerator:skip_first_batches(loader, num_batches) return data_loader.skip_first_batches(loader, num_batches) end

--- Ends the run's bookkeeping.  There are no trackers to finish yet; the ranks' connection ends with the processes.
function Accelerator:end_training() end

local NOT_YET = {
  save_state = "saving the state of a run", load_state = "resuming a run", register_for_checkpointing = "saving the state of a run",
  register_save_state_pre_hook = "saving the state of a run", register_load_state_pre_hook = "resuming a run",
  init_trackers = "experiment tracking", get_tracker = "experiment tracking", log = "experiment tracking",
  profile = "profiling", lomo_backward = "LOMO's fused backward", maybe_context_parallel = "context parallelism",
}
for name, what in pairs(NOT_YET) do
  Accelerator[name] = function() fail("accelerator:%s: %s is not there yet", name, what) end
end

-- ---- fields ------------------------------------------------------------------------------------------------------

local function of_state(name) return function(self) return self._state[name] end end
local function of_config(name) return function(self) return self._dataloader_config[name] end end
local function of_project(name) return function(self) return self._project_configuration[name] end end
local function constant(value) return function() return value end end

local GET = {
  state = function(self) return self._state end,
  gradient_state = function() return gradient_state end,
  sync_gradients = function() return gradient_state.sync_gradients end,
  gradient_accumulation_steps = function() return gradient_state.num_steps end,
  step = function(self) return self._step end,
  device_placement = function(self) return self._device_placement end,
  step_scheduler_with_optimizer = function(self) return self._step_scheduler_with_optimizer end,
  dataloader_config = function(self) return self._dataloader_config end,
  project_configuration = function(self) return self._project_configuration end,
  rng_types = function(self) return self._rng_types end,
  save_iteration = of_project "iteration",
  multi_device = constant(false),
  should_save_model = function(self) return self.is_local_main_process end,
  --- Whether any prepared optimizer's last real step was skipped.
  optimizer_step_was_skipped = function(self)
    for _, optimizer in ipairs(self._optimizers) do
      if optimizer.step_was_skipped then return true end
    end
    return false
  end,
  --- Whether forwards are cast.
  native_amp = function() return state.lower_type() ~= nil end,
  autocast_handler = function(self) return self._autocast_handler end,
  fp8_backend = constant(nil), fp8_enabled = constant(false), is_fsdp2 = constant(false),
  is_composable_parallelism_enabled = constant(false),
  scaler = constant(nil), deepspeed_plugin = constant(nil), parallelism_config = constant(nil), torch_device_mesh = constant(nil),
  trackers = function() return {} end, log_with = function() return {} end,
}
for _, name in ipairs { "device", "distributed_type", "num_processes", "process_index", "local_process_index", "is_main_process",
  "is_local_main_process", "is_last_process", "use_distributed", "mixed_precision" } do
  GET[name] = of_state(name)
end
for _, name in ipairs { "split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking",
  "use_stateful_dataloader" } do
  GET[name] = of_config(name)
end
for _, name in ipairs { "project_dir", "logging_dir" } do GET[name] = of_project(name) end

local SET = {
  sync_gradients = function(_, value) gradient_state.sync_gradients = value end,
  gradient_accumulation_steps = function(_, value) gradient_state:_set_num_steps(value) end,
  even_batches = function(self, value) self._dataloader_config.even_batches = value end,
  step = function(self, value) self._step = options.value("Accelerator", "step", value, { "integer", min = 0 }) end,
}

local Class = properties.define("Accelerator", {
  get = GET, set = SET, methods = properties.merge(state.process_methods, Accelerator),
  tostring = function(self) return "Accelerator\n" .. tostring(self._state) end,
})

local M = {}

--- Makes an Accelerator; all arguments are optional.  Several may be made in one process: they share state.
---@param given table? device_placement, split_batches, mixed_precision, gradient_accumulation_steps, cpu, dataloader_config,
---  rng_types, project_dir, project_config, gradient_accumulation_plugin, step_scheduler_with_optimizer, ...
---@return accelerate.Accelerator
M.Accelerator = properties.callable("Accelerator", function(given)
  local self = Class.new()
  for name, value in pairs(setup.read(given)) do rawset(self, "_" .. name, value) end
  self._models, self._evaluated, self._optimizers, self._schedulers, self._dataloaders = {}, {}, {}, {}, {}
  self._custom_objects = {}
  self._prepared_loaders = setmetatable({}, { __mode = "k" })
  self._step, self._trigger = 0, false
  self._ranks = self._state.num_processes
  return self
end)

return M
