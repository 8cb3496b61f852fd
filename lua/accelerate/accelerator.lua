--- The Accelerator: prepares a script's objects for the processes that there are, and runs its
--- steps.
---
---   local accelerator = accelerate.Accelerator{ gradient_accumulation_steps = 2 }
---   model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
---
--- This file has its constructor and its fields; its methods are in accelerator/, a file for each
--- thing they are about.
local float8 = require "accelerate.accelerator.float8"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local arguments = require "accelerate.accelerator.arguments"
local state = require "accelerate.state"

local gradient_state = state.GradientState()

local methods = state.process_methods
for _, room in ipairs { "prepare", "step", "collectives", "saving", "trackers", "profiling",
  "sharding", "joining" } do
  methods = properties.merge(methods, require("accelerate.accelerator." .. room))
end

local function of_state(name) return function(self) return self._state[name] end end
local function of_config(name) return function(self) return self._dataloader_config[name] end end
local function of_project(name) return function(self) return self._project_configuration[name] end end
local function constant(value) return function() return value end end

-- This rank's place along a dim of the mesh; 0 where the dim has one rank.
local function rank_along(name, what, dim)
  return function(self)
    if not self.parallelism_config then
      options.fail("%s: %s parallelism is not configured: give the Accelerator a parallelism_config", name,
        what)
    end
    local mesh = self.torch_device_mesh
    return mesh and mesh:get_local_rank(dim) or 0
  end
end

local function never(name, what)
  return function() options.fail("%s: %s parallelism is not there yet", name, what) end
end

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
  should_save_model = function(self)
    return self.parallelism_config ~= nil or self.is_local_main_process
  end,
  --- Whether any prepared optimizer's last real step was skipped.
  optimizer_step_was_skipped = function(self)
    for _, optimizer in ipairs(self._optimizers) do
      if optimizer.step_was_skipped then return true end
    end
    return false
  end,
  --- Whether forwards are cast.
  native_amp = function() return state.lower_type() ~= nil end,
  --- Whether an optimizer was prepared that updates inside backward (LOMO, AdaLOMO).
  has_lomo_optimizer = function(self) return self._has_lomo_optimizer end,
  autocast_handler = function(self) return self._autocast_handler end,
  --- The backend whose recipe is in force, or that ACCELERATE_FP8_BACKEND names.
  fp8_backend = float8.backend,
  fp8_enabled = function() return state.asked_fp8() end,
  is_fsdp2 = of_state "is_fsdp2", is_composable_parallelism_enabled = of_state "is_fsdp2",
  parallelism_config = of_state "parallelism_config", torch_device_mesh = of_state "device_mesh",
  tensor_parallel_rank = rank_along("tensor_parallel_rank", "tensor", "tp"),
  data_parallel_rank = rank_along("data_parallel_rank", "replicated data", "dp_replicate"),
  data_parallel_shard_rank = rank_along("data_parallel_shard_rank", "sharded data", "dp_shard"),
  pipeline_parallel_rank = never("pipeline_parallel_rank", "pipeline"),
  context_parallel_rank = never("context_parallel_rank", "context"),
  --- The loss scaler. Only fp16 on a device has one.
  scaler = function(self) return self._scaler end,
  deepspeed_plugin = of_state "deepspeed_plugin",
  trackers = function(self) return self:_live_trackers() end,
  log_with = function(self) return { unpack(self._log_with) } end,
}
for _, name in ipairs { "device", "distributed_type", "num_processes", "process_index", "local_process_index",
  "is_main_process",
  "is_local_main_process", "is_last_process", "use_distributed", "mixed_precision" } do
  GET[name] = of_state(name)
end
for _, name in ipairs { "split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler",
  "non_blocking",
  "use_stateful_dataloader" } do
  GET[name] = of_config(name)
end
for _, name in ipairs { "project_dir", "logging_dir" } do GET[name] = of_project(name) end

local SET = {
  sync_gradients = function(_, value) gradient_state.sync_gradients = value end,
  gradient_accumulation_steps = function(_, value) gradient_state:_set_num_steps(value) end,
  even_batches = function(self, value) self._dataloader_config.even_batches = value end,
  step = function(self, value)
    self._step = options.value("Accelerator", "step", value, { "integer", min = 0 })
  end,
}

---@class accelerate.Accelerator
---@field state accelerate.AcceleratorState shared by all accelerators
---@field gradient_state accelerate.GradientState shared by all accelerators
---@field device string where this process computes: "cpu" or "cuda:N"
---@field distributed_type string one of DistributedType
---@field num_processes integer ranks there are
---@field process_index integer this rank; counts from 0
---@field local_process_index integer this rank on its machine
---@field is_main_process boolean rank 0
---@field is_local_main_process boolean rank 0 of the machine
---@field is_last_process boolean the highest rank
---@field use_distributed boolean whether there are several ranks
---@field multi_device boolean whether there are several ranks, each on a device other than the CPU
---@field mixed_precision "no"|"fp16"|"bf16"|"fp8" what prepared models compute in
---@field native_amp boolean whether their forwards are cast
---@field scaler table? the loss scaler; nil without one
---@field fp8_enabled boolean whether mixed_precision = "fp8" was requested
---@field fp8_backend string "AO" or "TE", after the recipe in force; else what
---  ACCELERATE_FP8_BACKEND says
---@field autocast_handler accelerate.AutocastKwargs? as given in kwargs_handlers
---@field sync_gradients boolean whether this batch's gradients are reduced and applied; may be set
---@field gradient_accumulation_steps integer batches in a window; may be set
---@field step integer batches that `accumulate` has counted; may be set
---@field optimizer_step_was_skipped boolean whether any prepared optimizer's last real step was
---  skipped
---@field has_lomo_optimizer boolean whether an optimizer was prepared that updates inside backward
---@field device_placement boolean whether prepared objects go to `device`
---@field step_scheduler_with_optimizer boolean whether prepared schedulers follow the optimizer's
---  real steps
---@field rng_types string[] the generators made equal at the start of a pass
---@field dataloader_config accelerate.DataLoaderConfiguration read live; the next six are its
---  fields
---@field split_batches boolean whether a loader's batch is cut into one piece for each rank
---@field dispatch_batches boolean? whether rank 0 reads and hands out; nil: for iterable data sets
---@field even_batches boolean whether all ranks get equally many batches; may be set
---@field use_seedable_sampler boolean whether shuffling follows seed and epoch alone
---@field non_blocking boolean whether copies to the device may run beside the computation
---@field use_stateful_dataloader boolean whether loaders can save their position
---@field project_configuration accelerate.ProjectConfiguration the next three are its fields
---@field project_dir string? where the run keeps its files
---@field logging_dir string? where logs go
---@field save_iteration integer the number of the next automatic checkpoint
---@field should_save_model boolean whether this rank is one that writes models
---@field log_with any[] what to write values to
---@field trackers table[] live trackers
---@field deepspeed_plugin accelerate.DeepSpeedPlugin? the one in force; nil without DeepSpeed
---@field parallelism_config accelerate.ParallelismConfig? as given
---@field torch_device_mesh accelerate.Mesh? parallelism_config's mesh: `[dim].mesh` are the ranks
---  of this rank's group along a dim
---@field is_fsdp2 boolean whether there is an fsdp_plugin with fsdp_version = 2
---@field is_composable_parallelism_enabled boolean the same as is_fsdp2
---@field tensor_parallel_rank integer this rank's place along tp; raises without a
---  parallelism_config
---@field data_parallel_rank integer its place along dp_replicate
---@field data_parallel_shard_rank integer its place along dp_shard
---@field pipeline_parallel_rank integer raises: there is no pipeline
---@field context_parallel_rank integer raises: there is no context parallelism
local Class = properties.define("Accelerator", {
  get = GET, set = SET, methods = methods,
  tostring = function(self) return "Accelerator\n" .. tostring(self._state) end,
})

local function make_scaler(self)
  local GradScaler = require("accelerate.precision.grad_scaler").GradScaler
  if self.deepspeed_plugin then
    return require("accelerate.accelerator.deepspeed").scaler(self.deepspeed_plugin, self._scaler_handler)
  end
  return GradScaler(self._scaler_handler and self._scaler_handler:to_kwargs())
end

local M = {}

--- Makes an Accelerator; all arguments are optional. A process may make several: they share state.
--- ACCELERATE_GRADIENT_ACCUMULATION_STEPS replaces gradient_accumulation_steps.
--- ACCELERATE_MIXED_PRECISION is the default of mixed_precision. ACCELERATE_USE_CPU and
--- ACCELERATE_TORCH_DEVICE choose the device.
---@param opts table? device_placement, split_batches, dispatch_batches, even_batches,
---  use_seedable_sampler, mixed_precision, gradient_accumulation_steps, cpu, dataloader_config,
---  rng_types, log_with, project_dir, project_config, gradient_accumulation_plugin,
---  step_scheduler_with_optimizer, kwargs_handlers, dynamo_backend ("no", or "cudagraphs": forward
---  and backward of prepared models are recorded for each set of shapes and replayed on a GPU),
---  check_replicas (a number n: after every n optimizer steps the ranks compare checksums of their
---  parameters, and all raise, naming the odd rank out, when they differ), fsdp_plugin
---  (FullyShardedDataParallelPlugin), parallelism_config (ParallelismConfig), either as a plain
---  table too, deepspeed_plugin or deepspeed_plugins (DeepSpeedPlugin, or several by name); and,
---  for what is not there yet (they raise), torch_tp_plugin, megatron_lm_plugin, dynamo_plugin
---@return accelerate.Accelerator
M.Accelerator = properties.callable("Accelerator", function(opts)
  local self = Class.new()
  for name, value in pairs(arguments.read(opts)) do rawset(self, "_" .. name, value) end
  self._models, self._evaluated, self._optimizers, self._schedulers, self._dataloaders = {}, {}, {}, {}, {}
  self._custom_objects, self._save_state_pre_hooks, self._load_state_pre_hooks = {}, {}, {}
  self._prepared_loaders = setmetatable({}, { __mode = "k" })
  self._step, self._steps, self._trigger, self._has_lomo_optimizer = 0, 0, false, false
  self._ranks = self._state.num_processes
  self._trackers = {}
  self._engine_schedules = setmetatable({}, { __mode = "k" })
  float8.settle(self)
  if state.lower_type() == "float16" then self._scaler = make_scaler(self) end
  return self
end)

return M
