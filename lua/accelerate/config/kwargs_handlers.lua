--- Handlers for Accelerator's kwargs_handlers, and enums for its options.
---
---   local ddp = accelerate.DistributedDataParallelKwargs{ bucket_cap_mb = 50, comm_hook = "bf16" }
---   local accelerator = accelerate.Accelerator{ kwargs_handlers = { ddp } }
local dataclasses = require "accelerate.config.dataclasses"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"

local fail = options.fail

local M = {}

--- Base of all handlers. It has no effect of its own.
M.KwargsHandler = dataclasses._handler("KwargsHandler", { fields = {} })

--- Options of `Accelerator:autocast` and of prepared models' casts.
M.AutocastKwargs = dataclasses._handler("AutocastKwargs", { fields = {
  enabled = { "boolean", default = true },
  cache_enabled = { "boolean", optional = true },  -- nil: autocast's default, true
} })

--- Values of DistributedDataParallelKwargs' comm_hook.
M.DDPCommunicationHookType = properties.enum("DDPCommunicationHookType",
  { "no", "fp16", "bf16", "power_sgd", "batched_power_sgd" })

--- Options of gradient reduction. `check_reduction` and `gradient_as_bucket_view` are always in
--- effect: ranks compare reductions before they run, and gradients are views of the buffers that
--- are reduced.
M.DistributedDataParallelKwargs = dataclasses._handler("DistributedDataParallelKwargs", {
  fields = {
    dim = { "integer", default = 1 },
    -- rank 0's buffers are sent to all ranks before a synchronised forward pass
    broadcast_buffers = { "boolean", default = true },
    bucket_cap_mb = { "number", default = 25, above = 0 },
    find_unused_parameters = { "boolean", default = false },
    check_reduction = { "boolean", default = false },
    gradient_as_bucket_view = { "boolean", default = false },
    static_graph = { "boolean", default = false },
    comm_hook = { "string", default = "no",
      one_of = { "no", "fp16", "bf16", "power_sgd", "batched_power_sgd" } },
    comm_wrapper = { "string", default = "no", one_of = { "no", "fp16", "bf16" } },
    comm_state_option = { "table", default = {} },
  },
  checks = {
    dim = function(dim)
      if dim ~= 1 then
        fail("DistributedDataParallelKwargs: dim = %d: one process feeds one device, so batches are not " ..
          "cut; leave it at 1", dim)
      end
      return dim
    end,
  },
  left_out = { comm_hook = true, comm_wrapper = true, comm_state_option = true },
  init = function(self)
    if self.comm_wrapper ~= "no" and self.comm_hook == "no" then
      fail("DistributedDataParallelKwargs: comm_wrapper = '%s' wraps a comm_hook, and comm_hook is 'no'",
        self.comm_wrapper)
    end
    if self.comm_hook ~= "no" or next(self.comm_state_option) ~= nil then
      -- called for its errors: each prepared model gets a hook of its own
      require("accelerate.parallel.comm_hooks").make(self)
    end
  end,
})

--- Options of loss scaling with mixed_precision = "fp16" on a device.
M.GradScalerKwargs = dataclasses._handler("GradScalerKwargs", { fields = {
  init_scale = { "number", default = 65536, above = 0 },
  growth_factor = { "number", default = 2, above = 1 },
  backoff_factor = { "number", default = 0.5, above = 0, below = 1 },
  growth_interval = { "integer", default = 2000, min = 1 },  -- steps without an overflow
  enabled = { "boolean", default = true },
} })

--- Options of the connection between ranks. backend: the default "nccl" means the one that fits the
--- device. timeout: seconds that a rank waits in one collective; default: the launcher's --timeout.
M.InitProcessGroupKwargs = dataclasses._handler("InitProcessGroupKwargs", {
  fields = {
    backend = { "string", default = "nccl", one_of = { "nccl", "shm", "tcp", "gloo", "mpi" } },
    init_method = { "string", optional = true },
    timeout = { "number", optional = true, above = 0, max = 1e9 },
  },
  checks = {
    init_method = function(method)
      if method ~= "env://" then
        fail("InitProcessGroupKwargs: init_method = '%s': ranks are connected by their launcher; leave " ..
          "it out, or 'env://'", method)
      end
      return method
    end,
  },
  init = function(self)
    if self.timeout == nil then self._values.timeout = self.backend == "nccl" and 600 or 1800 end
  end,
})

local SCHEDULE = {
  wait = { "integer", default = 0, min = 0 }, warmup = { "integer", default = 0, min = 0 },
    active = { "integer", min = 1 },
  ["repeat"] = { "integer", default = 0, min = 0 }, skip_first = { "integer", default = 0, min = 0 },
}

--- Options of `Accelerator:profile`.
M.ProfileKwargs = dataclasses._handler("ProfileKwargs", {
  fields = {
    activities = { "list", optional = true },  -- nil: the devices in use
    -- { wait=, warmup=, active=, ["repeat"]=, skip_first= } in steps
    schedule_option = { "table", optional = true },
    on_trace_ready = { "function", optional = true },
    record_shapes = { "boolean", default = false },
    profile_memory = { "boolean", default = false },
    with_stack = { "boolean", default = false },
    with_flops = { "boolean", default = false },
    with_modules = { "boolean", default = false },
    output_trace_dir = { "string", optional = true },
  },
  checks = {
    activities = function(list)
      for i, activity in ipairs(list) do
        options.value("ProfileKwargs", ("activities[%d]"):format(i), activity,
          { "string", one_of = { "cpu", "cuda", "xpu", "mtia", "hpu" } })
      end
      return list
    end,
    schedule_option = function(schedule)
      return options.check("ProfileKwargs: schedule_option", schedule, SCHEDULE)
    end,
  },
})

--- Handlers that an Accelerator takes: the class, and the Accelerator's field for it.
M.HANDLERS = {
  { M.AutocastKwargs, "autocast_handler" }, { M.DistributedDataParallelKwargs, "ddp_handler" },
    { M.GradScalerKwargs, "scaler_handler" },
  { M.InitProcessGroupKwargs, "init_handler" }, { M.ProfileKwargs, "profile_handler" },
}

-- FP8: Accelerate's recipes wrap Python libraries for GPUs.
for name, library in pairs { AORecipeKwargs = "torchao", TERecipeKwargs = "transformer-engine",
  MSAMPRecipeKwargs = "ms-amp",
  FP8RecipeKwargs = "transformer-engine or ms-amp" } do
  --- Raises: there is no fp8 training yet.
  M[name] = properties.callable(name, function()
    fail("%s: FP8 is not there yet (upstream it is %s, a Python library for GPUs); use mixed_precision " ..
      "= 'bf16'", name, library)
  end)
end

-- ---- enums --------------------------------------------------------------------------------------

--- Values of Accelerator's mixed_precision.
M.PrecisionType = properties.enum("PrecisionType", { "no", "fp8", "fp16", "bf16" })
--- Values of Accelerator's dynamo_backend. Only NO and CUDAGRAPHS are implemented.
M.DynamoBackend = properties.enum("DynamoBackend", { "NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER",
  "NVPRIMS_NVFUSER",
  "CUDAGRAPHS", "OFI", "FX2TRT", "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE",
    "TVM", "HPU_BACKEND", "NEURON" })

return M
