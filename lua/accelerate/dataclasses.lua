--- Configuration objects: plain records with checked names and values, and the handlers for Accelerator's kwargs_handlers.
---
---   local plugin = accelerate.GradientAccumulationPlugin{ num_steps = 4, sync_with_dataloader = false }
---   local ddp = accelerate.DistributedDataParallelKwargs{ bucket_cap_mb = 50, comm_hook = "bf16" }
---   local accelerator = accelerate.Accelerator{ gradient_accumulation_plugin = plugin, kwargs_handlers = { ddp } }
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local properties = require "accelerate.utils.properties"

local fail = options.fail

local M = {}

-- ---- records -----------------------------------------------------------------------------------------------------

local function equal(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, value in pairs(a) do
    if not equal(value, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

--- One field's value as the record keeps it, or an error that names the field.
local function checked(name, spec, field, value)
  value = options.value(name, ("option '%s'"):format(field), value, spec.fields[field])
  local also = spec.checks and spec.checks[field]
  if also and value ~= nil then return also(value) end
  return value
end

--- Makes a record class.  An object's fields can be read and assigned; a name that there is no field of raises, and so
--- does a value that does not fit.
---@param spec { fields: table, checks: table<string, fun(value: any): any>?, init: fun(self: table)?, methods: table? }
---  fields: a schema of utils.options; checks: what the schema cannot say; init: what depends on several fields
local function record(name, spec)
  local get, set = {}, {}
  local names = ordered.sorted_keys(spec.fields)
  for _, field in ipairs(names) do
    get[field] = function(self) return self._values[field] end
    set[field] = function(self, value) self._values[field] = checked(name, spec, field, value) end
  end
  local class = properties.define(name, {
    get = get, set = set, methods = spec.methods,
    tostring = function(self)
      local parts = {}
      for i, field in ipairs(names) do parts[i] = field .. "=" .. tostring(self._values[field]) end
      return ("%s(%s)"):format(name, table.concat(parts, ", "))
    end,
  })
  return properties.callable(name, function(given)
    if given ~= nil and type(given) ~= "table" then
      fail("%s: expected a table of options, got %s", name, options.show(given))
    end
    local values = options.check(name, given, spec.fields)
    local self = class.new()
    self._values, self._given = {}, {}  -- _given: which fields the user named
    for _, field in ipairs(names) do
      self._values[field] = checked(name, spec, field, values[field])
      self._given[field] = given ~= nil and given[field] ~= nil or nil
    end
    if spec.init then spec.init(self) end
    return self
  end, { _class = class, _schema = spec.fields, _fields = names })
end

--- Is `value` an object of the record class?
function M.is(value, class)
  return type(value) == "table" and getmetatable(value) == class._class
end

--- A record with `to_kwargs`: what differs from the defaults.
local function handler(name, spec)
  local own, class = spec.methods or {}, nil
  local left_out = spec.left_out or {}
  spec.methods = properties.merge({
    --- Every field by name.
    ---@return table
    to_dict = function(self)
      local dict = {}
      for _, field in ipairs(class._fields) do
        if not left_out[field] then dict[field] = self._values[field] end
      end
      return dict
    end,
    --- Only the fields whose values are not the class' defaults.
    ---@return table
    to_kwargs = function(self)
      local defaults, differing = class():to_dict(), {}
      for field, value in pairs(self:to_dict()) do
        if not equal(value, defaults[field]) then differing[field] = value end
      end
      return differing
    end,
  }, own)
  class = record(name, spec)
  return class
end

-- ---- configurations ----------------------------------------------------------------------------------------------

--- How prepared loaders behave.
M.DataLoaderConfiguration = record("DataLoaderConfiguration", { fields = {
  split_batches = { "boolean", default = false },  -- a loader's batch is cut into one piece for each rank
  dispatch_batches = { "boolean", optional = true },  -- rank 0 reads and hands out; nil: for iterable data sets
  even_batches = { "boolean", default = true },  -- all ranks get equally many batches, filled from the start
  use_seedable_sampler = { "boolean", default = false },  -- a RandomSampler's order is of data_seed and the pass alone
  data_seed = { "integer", optional = true },  -- nil: the default generator's seed
  non_blocking = { "boolean", default = false },  -- copies to a device may still run while the step begins; no effect on a CPU
  use_stateful_dataloader = { "boolean", default = false },  -- for scripts that ask: prepared loaders have state_dict() anyhow
} })

--- Where a run keeps its files.
M.ProjectConfiguration = record("ProjectConfiguration", {
  fields = {
    project_dir = { "string", optional = true },
    logging_dir = { "string", optional = true },
    automatic_checkpoint_naming = { "boolean", default = false },
    total_limit = { "integer", min = 1, optional = true },
    iteration = { "integer", default = 0, min = 0 },
    save_on_each_node = { "boolean", default = false },
  },
  methods = {
    --- Sets the project's directory, and the logs' where that has none yet.
    ---@param dir string?
    set_directories = function(self, dir)
      self.project_dir = dir
      if self.logging_dir == nil then self.logging_dir = dir end
    end,
  },
  init = function(self) self:set_directories(self.project_dir) end,
})

--- How gradients are accumulated.  adjust_scheduler is Accelerate's; it changes nothing there either.
M.GradientAccumulationPlugin = handler("GradientAccumulationPlugin", { fields = {
  num_steps = { "integer", min = 1, optional = true },  -- nil: 1
  adjust_scheduler = { "boolean", default = true },
  sync_with_dataloader = { "boolean", default = true },  -- a loader's last batch ends the window
  sync_each_batch = { "boolean", default = false },  -- reduce after every batch, though steps wait for the window's end
} })

-- ---- handlers ----------------------------------------------------------------------------------------------------

--- What all handlers are.  One of it does nothing.
M.KwargsHandler = handler("KwargsHandler", { fields = {} })

--- How `Accelerator:autocast` and prepared models cast.
M.AutocastKwargs = handler("AutocastKwargs", { fields = {
  enabled = { "boolean", default = true },
  cache_enabled = { "boolean", optional = true },  -- nil: as autocast has it, which is true
} })

--- Words for DistributedDataParallelKwargs' comm_hook.
M.DDPCommunicationHookType = properties.enum("DDPCommunicationHookType", { "no", "fp16", "bf16", "power_sgd", "batched_power_sgd" })

--- How gradients are reduced.
--- `check_reduction` and `gradient_as_bucket_view` ask for what is always so here: reductions are compared between ranks
--- before they run, and gradients lie in the buffers that are reduced.
M.DistributedDataParallelKwargs = handler("DistributedDataParallelKwargs", {
  fields = {
    dim = { "integer", default = 1 },
    broadcast_buffers = { "boolean", default = true },  -- rank 0's buffers go to all before a forward that is to be synchronised
    bucket_cap_mb = { "number", default = 25, above = 0 },
    find_unused_parameters = { "boolean", default = false },
    check_reduction = { "boolean", default = false },
    gradient_as_bucket_view = { "boolean", default = false },
    static_graph = { "boolean", default = false },
    comm_hook = { "string", default = "no", one_of = { "no", "fp16", "bf16", "power_sgd", "batched_power_sgd" } },
    comm_wrapper = { "string", default = "no", one_of = { "no", "fp16", "bf16" } },
    comm_state_option = { "table", default = {} },
  },
  checks = {
    dim = function(dim)
      if dim ~= 1 then
        fail("DistributedDataParallelKwargs: dim = %d: one process feeds one device, so batches are not cut; leave it at 1", dim)
      end
      return dim
    end,
  },
  left_out = { comm_hook = true, comm_wrapper = true, comm_state_option = true },
  init = function(self)
    if self.comm_wrapper ~= "no" and self.comm_hook == "no" then
      fail("DistributedDataParallelKwargs: comm_wrapper = '%s' wraps a comm_hook, and comm_hook is 'no'", self.comm_wrapper)
    end
    if self.comm_hook ~= "no" or next(self.comm_state_option) ~= nil then
      require("accelerate.comm_hooks").make(self)  -- here for its errors: each prepared model gets a hook of its own
    end
  end,
})

--- How losses are scaled with mixed_precision = "fp16" on a device.
M.GradScalerKwargs = handler("GradScalerKwargs", { fields = {
  init_scale = { "number", default = 65536, above = 0 },
  growth_factor = { "number", default = 2, above = 1 },
  backoff_factor = { "number", default = 0.5, above = 0, below = 1 },
  growth_interval = { "integer", default = 2000, min = 1 },  -- steps without an overflow
  enabled = { "boolean", default = true },
} })

--- How ranks are connected.  backend: "nccl", the default, stands for the one that fits the device.  timeout: seconds that
--- a rank waits in one collective; not given, the launcher's --timeout holds.
M.InitProcessGroupKwargs = handler("InitProcessGroupKwargs", {
  fields = {
    backend = { "string", default = "nccl", one_of = { "nccl", "shm", "gloo", "mpi" } },
    init_method = { "string", optional = true },
    timeout = { "number", optional = true, above = 0, max = 1e9 },
  },
  checks = {
    init_method = function(method)
      if method ~= "env://" then
        fail("InitProcessGroupKwargs: init_method = '%s': ranks are connected by their launcher; leave it out, or 'env://'", method)
      end
      return method
    end,
  },
  init = function(self)
    if self.timeout == nil then self._values.timeout = self.backend == "nccl" and 600 or 1800 end
  end,
})

local SCHEDULE = {
  wait = { "integer", default = 0, min = 0 }, warmup = { "integer", default = 0, min = 0 }, active = { "integer", min = 1 },
  ["repeat"] = { "integer", default = 0, min = 0 }, skip_first = { "integer", default = 0, min = 0 },
}

--- What `Accelerator:profile` records.
M.ProfileKwargs = handler("ProfileKwargs", {
  fields = {
    activities = { "list", optional = true },  -- nil: those of the devices in use
    schedule_option = { "table", optional = true },  -- { wait=, warmup=, active=, ["repeat"]=, skip_first= } in steps
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
    schedule_option = function(schedule) return options.check("ProfileKwargs: schedule_option", schedule, SCHEDULE) end,
  },
})

--- The handlers that an Accelerator takes: the class, and the field that the Accelerator keeps it in.
M.HANDLERS = {
  { M.AutocastKwargs, "autocast_handler" }, { M.DistributedDataParallelKwargs, "ddp_handler" }, { M.GradScalerKwargs, "scaler_handler" },
  { M.InitProcessGroupKwargs, "init_handler" }, { M.ProfileKwargs, "profile_handler" },
}

-- FP8: what there is upstream wraps Python libraries for GPUs.
for name, library in pairs { AORecipeKwargs = "torchao", TERecipeKwargs = "transformer-engine", MSAMPRecipeKwargs = "ms-amp",
  FP8RecipeKwargs = "transformer-engine or ms-amp" } do
  M[name] = properties.callable(name, function()
    fail("%s: FP8 is not there yet (upstream it is %s, a Python library for GPUs); use mixed_precision = 'bf16'", name, library)
  end)
end

-- ---- words -------------------------------------------------------------------------------------------------------

--- Words for Accelerator's mixed_precision.
M.PrecisionType = properties.enum("PrecisionType", { "no", "fp8", "fp16", "bf16" })
--- Words for Accelerator's rng_types; of these, torch and generator are here.
M.RNGType = properties.enum("RNGType",
  { "torch", "cuda", "mlu", "sdaa", "musa", "npu", "xla", "xpu", "hpu", "neuron", "generator" })
--- Words for Accelerator's dynamo_backend; of these, only NO is here.
M.DynamoBackend = properties.enum("DynamoBackend", { "NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER",
  "CUDAGRAPHS", "OFI", "FX2TRT", "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "TVM", "HPU_BACKEND", "NEURON" })

return M
