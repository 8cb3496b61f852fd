--- Handlers for Accelerator's kwargs_handlers, and enums for its options.
---
---   local ddp = accelerate.DistributedDataParallelKwargs{ bucket_cap_mb = 50, comm_hook = "bf16" }
---   local accelerator = accelerate.Accelerator{ kwargs_handlers = { ddp } }
local dataclasses = require "accelerate.config.dataclasses"
local env = require "accelerate.utils.environment"
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
      require("accelerate.parallel.replicated.comm_hooks").make(self)
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

-- ---- recipes of mixed_precision = "fp8"

local FP8 = "ACCELERATE_FP8_"

local FLAG = { "boolean", optional = true }

-- What a variable says where the field was not given.
local function fill(self, field, value)
  if self._values[field] == nil then self._values[field] = value end
end

-- A word in any case, given or a variable's.
local function choose(self, name, field, variable, default, words)
  local given = self._values[field]
  local word = given or env.text(FP8 .. variable, default)
  for _, known in ipairs(words) do
    if known:lower() == word:lower() then
      self._values[field] = known
      return
    end
  end
  fail("%s: %s: expected one of %s, got '%s'", name, given and field or FP8 .. variable,
    table.concat(words, ", "), word)
end

--- Recipe of torchao's kind: each tensor has its own scale. What is not given comes from
--- ACCELERATE_FP8_PAD_INNER_DIM and ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER.
M.AORecipeKwargs = dataclasses._handler("AORecipeKwargs", {
  fields = {
    config = { "table", optional = true },  -- { pad_inner_dim =, enable_fsdp_float8_all_gather = }
    module_filter_func = { "function", optional = true },  -- (module, path) -> whether it is converted
    pad_inner_dim = FLAG,  -- default true: any number of rows will do; else a multiple of 16
    -- default true: where ranks gather weights, those of layers in eight bits travel so
    enable_fsdp_float8_all_gather = FLAG,
  },
  init = function(self)
    if self.config then
      self._values.config = options.check("AORecipeKwargs: config", self.config,
        { pad_inner_dim = FLAG, enable_fsdp_float8_all_gather = FLAG })
      for name, value in pairs(self.config) do fill(self, name, value) end
    end
    fill(self, "pad_inner_dim", env.flag(FP8 .. "PAD_INNER_DIM", true))
    fill(self, "enable_fsdp_float8_all_gather", env.flag(FP8 .. "ENABLE_FSDP_FLOAT8_ALL_GATHER", true))
  end,
})

local FORMATS, ALGORITHMS = { "HYBRID", "E4M3", "E5M2" }, { "most_recent", "max" }

local TE = {
  use_autocast_during_eval = FLAG,  -- default false
  margin = { "integer", optional = true },  -- default 0: scales are smaller by 2^margin
  interval = { "integer", optional = true, min = 1 },  -- default 1: forwards from one scale to the next
  fp8_format = { "string", optional = true },  -- default "HYBRID": gradients are E5M2
  amax_history_len = { "integer", optional = true, min = 1 },  -- default 1024
  amax_compute_algo = { "string", optional = true },  -- default "most_recent"
  override_linear_precision = { "list", optional = true },  -- fprop, dgrad, wgrad not in eight bits
  use_mxfp8_block_scaling = FLAG,  -- true raises: it is not there
}

local function fill_te(self, name)
  fill(self, "use_autocast_during_eval", env.flag(FP8 .. "USE_AUTOCAST_DURING_EVAL", false))
  fill(self, "margin", env.integer(FP8 .. "MARGIN", -64) or 0)
  fill(self, "interval", env.integer(FP8 .. "INTERVAL", 1) or 1)
  choose(self, name, "fp8_format", "FORMAT", "HYBRID", FORMATS)
  fill(self, "amax_history_len", env.integer(FP8 .. "AMAX_HISTORY_LEN", 1) or 1024)
  choose(self, name, "amax_compute_algo", "AMAX_COMPUTE_ALGO", "most_recent", ALGORITHMS)
  fill(self, "override_linear_precision", { env.flag(FP8 .. "OVERRIDE_FPROP", false),
    env.flag(FP8 .. "OVERRIDE_DGRAD", false), env.flag(FP8 .. "OVERRIDE_WGRAD", false) })
  fill(self, "use_mxfp8_block_scaling", env.flag(FP8 .. "USE_MXFP8_BLOCK_SCALING", false))
  if self.use_mxfp8_block_scaling then
    fail("%s: use_mxfp8_block_scaling: scales of blocks of 32 are not there; leave it out", name)
  end
  if self.fp8_format == "E5M2" then
    fail("%s: fp8_format = 'E5M2': no product takes two matrices of E5M2; use HYBRID or E4M3", name)
  end
end

local function three_booleans(list)
  local good = #list == 3
  for i = 1, 3 do good = good and type(list[i]) == "boolean" end
  if not good then
    fail("TERecipeKwargs: override_linear_precision: expected three booleans (fprop, dgrad, wgrad), got %s",
      options.show(list))
  end
  return list
end

--- Recipe of transformer-engine's kind: scales follow from the sizes of earlier tensors. What is
--- not given comes from ACCELERATE_FP8_MARGIN, _INTERVAL, _FORMAT, _AMAX_HISTORY_LEN,
--- _AMAX_COMPUTE_ALGO, _OVERRIDE_FPROP, _OVERRIDE_DGRAD, _OVERRIDE_WGRAD and
--- _USE_AUTOCAST_DURING_EVAL.
M.TERecipeKwargs = dataclasses._handler("TERecipeKwargs", { fields = TE,
  checks = { override_linear_precision = three_booleans },
  init = function(self) fill_te(self, "TERecipeKwargs") end })

local LEVELS = { "O1", "O2" }

--- Recipe of MS-AMP's kind. An Accelerator refuses it: gradients are reduced and optimizer states
--- kept in 32 or 16 bits here. ACCELERATE_FP8_OPT_LEVEL is the default of opt_level.
M.MSAMPRecipeKwargs = dataclasses._handler("MSAMPRecipeKwargs", {
  fields = { opt_level = { "string", optional = true } },
  init = function(self) choose(self, "MSAMPRecipeKwargs", "opt_level", "OPT_LEVEL", "O2", LEVELS) end })

--- The older form of TERecipeKwargs and MSAMPRecipeKwargs; `backend` ("TE" or "MSAMP") says which.
--- ACCELERATE_FP8_BACKEND is its default, or else "TE".
M.FP8RecipeKwargs = dataclasses._handler("FP8RecipeKwargs", {
  fields = properties.merge({ backend = { "string", optional = true },
    opt_level = { "string", optional = true } }, TE),
  checks = { override_linear_precision = three_booleans },
  init = function(self)
    choose(self, "FP8RecipeKwargs", "backend", "BACKEND", "TE", { "TE", "MSAMP" })
    choose(self, "FP8RecipeKwargs", "opt_level", "OPT_LEVEL", "O2", LEVELS)
    fill_te(self, "FP8RecipeKwargs")
  end })

--- Handlers that an Accelerator takes: the class, and the Accelerator's field for it.
M.HANDLERS = {
  { M.AutocastKwargs, "autocast_handler" }, { M.DistributedDataParallelKwargs, "ddp_handler" },
  { M.GradScalerKwargs, "scaler_handler" },
  { M.AORecipeKwargs, "ao_recipe_handler" }, { M.TERecipeKwargs, "te_recipe_handler" },
  { M.MSAMPRecipeKwargs, "msamp_recipe_handler" }, { M.FP8RecipeKwargs, "fp8_recipe_handler" },
  { M.InitProcessGroupKwargs, "init_handler" }, { M.ProfileKwargs, "profile_handler" },
}

-- ---- enums

--- Values of ACCELERATE_FP8_BACKEND and of Accelerator's fp8_backend.
M.FP8BackendType = properties.enum("FP8BackendType", { "NO", "TE", "MSAMP", "AO" })
--- Values of Accelerator's mixed_precision.
M.PrecisionType = properties.enum("PrecisionType", { "no", "fp8", "fp16", "bf16" })
--- Values of Accelerator's dynamo_backend. Only NO and CUDAGRAPHS are implemented.
M.DynamoBackend = properties.enum("DynamoBackend", { "NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER",
  "NVPRIMS_NVFUSER",
  "CUDAGRAPHS", "OFI", "FX2TRT", "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE",
  "TVM", "HPU_BACKEND", "NEURON" })

return M
