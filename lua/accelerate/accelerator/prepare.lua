--- What an Accelerator does with a script's objects: prepare and its parts, unwrap_model,
--- free_memory.  Methods of accelerate.Accelerator.
local class = require "accelerate.utils.class"
local data_loader = require "accelerate.data_loader"
local deferred = require "accelerate.deferred"
local environment = require "accelerate.utils.environment"
local kinds = require "accelerate.accelerator.types"
local mixed_precision = require "accelerate.precision.mixed_precision"
local optimizers = require "accelerate.accelerator.optimizer"
local options = require "accelerate.utils.options"
local flat = require "accelerate.parallel.flat"
local float8 = require "accelerate.accelerator.float8"
local parallel = require "accelerate.parallel"
local policy = require "accelerate.accelerator.policy"
local schedulers = require "accelerate.accelerator.scheduler"

local fail = options.fail

---@class accelerate.Accelerator
local Accelerator = {}

local function position(list, object)
  for i, other in ipairs(list) do
    if other == object then return i end
  end
end

local function enlist(list, object)
  if not position(list, object) then list[#list + 1] = object end
  return object
end

--- Returns whether a model, or a module inside it, was spread over several devices: its
--- hf_device_map then has more than one entry.
---@param model accelerate.nn.Module
---@return boolean
function Accelerator:verify_device_map(model)
  if not kinds.is_model(model) then
    fail("verify_device_map: expected a module, got %s", options.show(model))
  end
  for _, module in model:named_modules() do
    local map = module._values.hf_device_map
    if type(map) == "table" then
      local first = next(map)
      if first ~= nil and next(map, first) ~= nil then return true end
    end
  end
  return false
end

-- Sparse gradients are neither reduced over ranks nor scaled.
local function check_sparse(self, model)
  if self.num_processes == 1 and self.mixed_precision ~= "fp16" then return end
  local nn = require "accelerate.nn"
  for name, module in model:named_modules() do
    if module._values.sparse == true
      and (class.is(module, nn.Embedding) or class.is(module, nn.EmbeddingBag)) then
      fail("prepare_model: %s has sparse gradients, which are not %s; make it without sparse = true",
        name == "" and "the module" or name,
        self.num_processes > 1 and "reduced over ranks" or "scaled in fp16")
    end
  end
end

-- Weights of a model for save_pretrained, where no rank can read all of them.
local function received(model, dict)
  if not parallel.reads_part(model) then return nil end
  return require("accelerate.checkpoint.sharded").whole_state_dict(model, dict)
end

--- Prepares a model in place and returns it. Its parameters go into flat buffers, and all ranks
--- start from rank 0's values. With mixed precision its forward runs under casting and returns
--- float32: every float16 and bfloat16 tensor in its result is converted. Its parameters then get
--- working copies in the lower type, which optimizers write. Of a model on the device "meta" that
--- init_empty_weights made, values are drawn here, or read where load_checkpoint_in_model noted a
--- file; under a plan that cuts values no rank has the whole model at any time.
---@param model accelerate.nn.Module
---@param opts { device_placement: boolean?, evaluation_mode: boolean? }? evaluation_mode: for a
---  model that is not trained here: ranks keep their own values of it, and nothing is reduced
---@return accelerate.nn.Module model
function Accelerator:prepare_model(model, opts)
  opts = options.check("prepare_model", opts,
    { device_placement = { "boolean", default = self._device_placement },
      evaluation_mode = { "boolean", default = false } })
  if not kinds.is_model(model) then fail("prepare_model: expected a module, got %s", options.show(model)) end
  if self.use_distributed and self:verify_device_map(model)
    and not environment.flag("ACCELERATE_BYPASS_DEVICE_MAP", false) then
    fail("prepare_model: the model is spread over several devices (its hf_device_map has more than one " ..
      "entry) and cannot be trained on " ..
      "%d ranks; ACCELERATE_BYPASS_DEVICE_MAP=true takes it as it is", self.num_processes)
  end
  if not opts.evaluation_mode then check_sparse(self, model) end
  if not model._values.hf_device_map then
    deferred.settle("prepare_model", model, self.device)
    if opts.device_placement then model:to(self.device) end
  end
  float8.convert(self, model)
  mixed_precision.wrap(model, self._autocast_handler)
  float8.wrap(self, model)
  policy.apply(model, self._plan)
  if not opts.evaluation_mode then parallel.prepare(model, self:_strategy()) end
  if parallel.cuts_values(model) then require("accelerate.weights").receive_with(received) end
  if self._dynamo_backend == "cudagraphs" and not opts.evaluation_mode then
    require("accelerate.capture.model").wrap(model, self.device, parallel.recorded_reduction(model))
  end
  return enlist(opts.evaluation_mode and self._evaluated or self._models, model)
end

--- Sets up an optimizer that updates inside backward: it reduces its gradients itself, one by one.
local function fuse(self, optimizer)
  self._has_lomo_optimizer = true
  for _, group in ipairs(optimizer.param_groups) do parallel.fuse(self._models, group.params) end
  if self._ranks > 1 then optimizer._reduce = parallel.mean_gradient end
end

-- Optimizer state made before prepare is still on the old device, in the old layout.
local function move_state(inner)
  if inner._relayout then inner:_relayout() end
end

local function wrap_optimizer(self, optimizer, placed)
  for _, known in ipairs(self._optimizers) do
    if known.optimizer == optimizer then return known end
  end
  if optimizer.fuses_backward and self._scaler then
    fail("prepare_optimizer: %s moves parameters inside backward, where a step cannot be skipped for " ..
      "overflow; use mixed_precision = 'bf16'",
      optimizer.__name)
  end
  self:_strategy():check_optimizer(optimizer)
  if placed then move_state(optimizer) end
  return optimizers.AcceleratedOptimizer(optimizer, self)
end

--- Wraps an optimizer so that it steps only when gradients are synchronised. Moves its state to the
--- device of the parameters.
---@param optimizer accelerate.optim.Optimizer|accelerate.AcceleratedOptimizer
---@param opts { device_placement: boolean? }?
---@return accelerate.AcceleratedOptimizer
function Accelerator:prepare_optimizer(optimizer, opts)
  opts = options.check("prepare_optimizer", opts,
    { device_placement = { "boolean", default = self._device_placement } })
  if not kinds.is_optimizer(optimizer) then
    fail("prepare_optimizer: expected an optimizer, got %s", options.show(optimizer))
  end
  if not optimizers.is_accelerated(optimizer) then
    optimizer = wrap_optimizer(self, optimizer, opts.device_placement)
  end
  local inner = optimizer.optimizer
  if inner.fuses_backward then fuse(self, inner) end
  return enlist(self._optimizers, optimizer)
end

--- Returns a loader that gives this rank its share of the batches, on this rank's device.
---@param loader table
---@return accelerate.DataLoaderShard
function Accelerator:prepare_data_loader(loader, opts)
  opts = options.check("prepare_data_loader", opts,
    { device_placement = { "boolean", default = self._device_placement },
      slice_fn_for_dispatch = { "function", optional = true } })
  local prepared = data_loader.is_prepared(loader) and loader or self._prepared_loaders[loader]
  if not prepared then
    prepared = data_loader.prepare_data_loader(loader, {
      device = self.device, put_on_device = opts.device_placement, rng_types = self._rng_types,
      config = self._dataloader_config,
      slice_fn_for_dispatch = opts.slice_fn_for_dispatch,
    })
    self._prepared_loaders[loader], loader._prepared = prepared, self.device
  end
  return enlist(self._dataloaders, prepared)
end

local function moved_by_engine(self, scheduler)
  if not self._state.deepspeed_plugin then return false end
  return require("accelerate.accelerator.deepspeed.step").moves(self, scheduler)
end

--- Wraps a scheduler so that it steps with the optimizer that it was made for, or else with all
--- prepared optimizers.
---@param scheduler table
---@return accelerate.AcceleratedScheduler
function Accelerator:prepare_scheduler(scheduler)
  if not kinds.is_scheduler(scheduler) then
    fail("prepare_scheduler: expected a scheduler, got %s", options.show(scheduler))
  end
  if schedulers.is_accelerated(scheduler) then return enlist(self._schedulers, scheduler) end
  for _, known in ipairs(self._schedulers) do
    if known.scheduler == scheduler then return known end
  end
  local followed = self._optimizers
  for _, optimizer in ipairs(self._optimizers) do
    if scheduler.optimizer == optimizer or scheduler.optimizer == optimizer.optimizer then
      followed = { optimizer }
    end
  end
  local config = self._dataloader_config
  return enlist(self._schedulers, schedulers.AcceleratedScheduler {
    scheduler = scheduler, optimizers = followed, by_engine = moved_by_engine(self, scheduler),
    step_with_optimizer = self._step_scheduler_with_optimizer,
    split_batches = function() return config.split_batches end,
  })
end

local function prepare_one(self, object, first_pass, placement)
  local opts = placement ~= nil and { device_placement = placement } or nil
  if first_pass then
    if kinds.is_model(object) then return self:prepare_model(object, opts) end
    if kinds.is_optimizer(object) then return self:prepare_optimizer(object, opts) end
    if data_loader.is_loader(object) then return self:prepare_data_loader(object, opts) end
  elseif kinds.is_scheduler(object) then
    return self:prepare_scheduler(object)
  end
  return object
end

-- Makes what a DeepSpeed configuration describes, in the places of what stands for it.
local function replace_dummies(self, objects, n, placement)
  if not self._state.deepspeed_plugin then
    local dummies = package.loaded["accelerate.config.deepspeed.dummies"] -- else there can be none
    return dummies and dummies.refuse("prepare", objects, n)
  end
  if #placement > 0 then
    fail("prepare: device_placement cannot be given under DeepSpeed: all objects go to the rank's device")
  end
  require("accelerate.accelerator.deepspeed.prepare").prepare(self, objects, n)
end

local PREPARE = { device_placement = { "list" } }

--- Prepares models, optimizers, loaders and schedulers, in any order and more than once. Returns
--- them in the order of the arguments. Objects of other kinds are returned unchanged.
---@param ... any objects; last, if need be, { device_placement = { true, false, ... } } with one
---  entry for each object
---@return any ...
function Accelerator:prepare(...)
  local objects, n = { ... }, select("#", ...)
  local placement = {}
  if n > 0 and options.is_options(objects[n], PREPARE) then
    placement = options.check("prepare", objects[n], PREPARE).device_placement
    n = n - 1
    if #placement ~= n then fail("prepare: device_placement has %d entries for %d objects", #placement, n) end
  end
  replace_dummies(self, objects, n, placement)
  local layouts = flat.count
  for _, first_pass in ipairs { true, false } do
    for i = 1, n do objects[i] = prepare_one(self, objects[i], first_pass, placement[i]) end
  end
  for _, optimizer in ipairs(flat.count > layouts and self._optimizers or {}) do
    move_state(optimizer.optimizer)
  end
  return unpack(objects, 1, n)
end

--- Returns the model behind a prepared one. prepare does not wrap models, so this is the model
--- itself. With keep_fp32_wrapper = false its forward becomes again what it was before mixed
--- precision.
---@param opts { keep_fp32_wrapper: boolean?, keep_torch_compile: boolean? }? both true by default
function Accelerator:unwrap_model(model, opts)
  opts = options.check("unwrap_model", opts,
    { keep_fp32_wrapper = { "boolean", default = true }, keep_torch_compile = { "boolean", default = true } })
  if not kinds.is_model(model) then fail("unwrap_model: expected a module, got %s", options.show(model)) end
  if not opts.keep_fp32_wrapper then mixed_precision.unwrap(model) end
  return model
end

--- Drops the references to all prepared objects, sets the batch counter to 0, collects garbage and
--- empties the allocator's cache. Returns one nil for each argument: `model, optimizer =
--- accelerator:free_memory(model, optimizer)`.
function Accelerator:free_memory(...)
  for _, name in ipairs { "_models", "_evaluated", "_optimizers", "_schedulers", "_dataloaders" } do
    self[name] = {}
  end
  self._prepared_loaders = setmetatable({}, { __mode = "k" })
  self._step, self._window, self._has_lomo_optimizer = 0, nil, false
  require("accelerate.utils.memory").clear_device_cache { garbage_collection = true }
  return unpack({}, 1, select("#", ...))
end
Accelerator.clear = Accelerator.free_memory

return Accelerator
