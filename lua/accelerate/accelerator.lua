--- The Accelerator: prepares a script's objects for the processes that there are, and runs its steps.
---
---   local accelerator = accelerate.Accelerator{ gradient_accumulation_steps = 2 }
---   model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
---
--- This file has its constructor and its fields; its methods are in accelerator/, a file for each thing they are about.
local env = require "accelerate.utils.environment"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local setup = require "accelerate.setup"
local state = require "accelerate.state"

local gradient_state = state.GradientState()

local methods = state.process_methods
for _, room in ipairs { "preparing", "training", "communicating", "saving", "tracking", "profiling" } do
  methods = properties.merge(methods, require("accelerate.accelerator." .. room))
end

local function of_state(name) return function(self) return self._state[name] end end
local function of_config(name) return function(self) return self._dataloader_config[name] end end
local function of_project(name) return function(self) return self._project_configuration[name] end end
local function constant(value) return function() return value end end

--- Ranks in a mesh, which only a parallelism configuration makes.
local function no_mesh(name, what)
  return function() options.fail("%s: %s parallelism is not configured: it needs a parallelism_config, which is not there yet", name, what) end
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
  --- Whether an optimizer was prepared that updates inside backward (LOMO, AdaLOMO).
  has_lomo_optimizer = function(self) return self._has_lomo_optimizer end,
  autocast_handler = function(self) return self._autocast_handler end,
  --- What would compute in FP8, as ACCELERATE_FP8_BACKEND says; none is there, and fp8_enabled is always false.
  fp8_backend = function()
    return options.value("Accelerator", "ACCELERATE_FP8_BACKEND", env.text("ACCELERATE_FP8_BACKEND", "NO"):upper(),
      { "string", one_of = { "NO", "TE", "MSAMP", "AO" } })
  end,
  fp8_enabled = constant(false), is_fsdp2 = constant(false),
  is_composable_parallelism_enabled = constant(false),
  tensor_parallel_rank = no_mesh("tensor_parallel_rank", "tensor"), data_parallel_rank = no_mesh("data_parallel_rank", "replicated data"),
  data_parallel_shard_rank = no_mesh("data_parallel_shard_rank", "sharded data"),
  pipeline_parallel_rank = no_mesh("pipeline_parallel_rank", "pipeline"), context_parallel_rank = no_mesh("context_parallel_rank", "context"),
  --- The loss scaler: with fp16 on a device only.
  scaler = function(self) return self._scaler end,
  deepspeed_plugin = constant(nil), parallelism_config = constant(nil), torch_device_mesh = constant(nil),
  trackers = function(self) return self:_live_trackers() end,
  log_with = function(self) return { unpack(self._log_with) } end,
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
  get = GET, set = SET, methods = methods,
  tostring = function(self) return "Accelerator\n" .. tostring(self._state) end,
})

local M = {}

--- Makes an Accelerator; all arguments are optional.  Several may be made in one process: they share state.
--- ACCELERATE_GRADIENT_ACCUMULATION_STEPS replaces gradient_accumulation_steps; ACCELERATE_MIXED_PRECISION holds where
--- mixed_precision is not given; ACCELERATE_USE_CPU and ACCELERATE_TORCH_DEVICE choose the device.
---@param given table? device_placement, split_batches, dispatch_batches, even_batches, use_seedable_sampler, mixed_precision,
---  gradient_accumulation_steps, cpu, dataloader_config, rng_types, log_with, project_dir, project_config,
---  gradient_accumulation_plugin, step_scheduler_with_optimizer, kwargs_handlers; and, for what is not there yet (they raise),
---  deepspeed_plugin, deepspeed_plugins, fsdp_plugin, torch_tp_plugin, megatron_lm_plugin, dynamo_backend, dynamo_plugin,
---  parallelism_config
---@return accelerate.Accelerator
M.Accelerator = properties.callable("Accelerator", function(given)
  local self = Class.new()
  for name, value in pairs(setup.read(given)) do rawset(self, "_" .. name, value) end
  self._models, self._evaluated, self._optimizers, self._schedulers, self._dataloaders = {}, {}, {}, {}, {}
  self._custom_objects, self._save_state_pre_hooks, self._load_state_pre_hooks = {}, {}, {}
  self._prepared_loaders = setmetatable({}, { __mode = "k" })
  self._step, self._trigger, self._has_lomo_optimizer = 0, false, false
  self._ranks = self._state.num_processes
  self._trackers = {}
  if state.lower_type() == "float16" then
    local handler = self._scaler_handler
    self._scaler = require("accelerate.grad_scaler").GradScaler(handler and handler:to_kwargs())
  end
  return self
end)

return M
