--- Who am I: ranks and device (PartialState), what the run was set up with (AcceleratorState), and where gradient
--- accumulation stands (GradientState).  Each is shared by everything in the process: calling the class gives the one
--- object.
local core = require "accelerate.core"
local env = require "accelerate.utils.environment"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

--- How the run is distributed.  `NO` for one process.
M.DistributedType = properties.enum("DistributedType", {
  "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON",
  "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM",
})

-- ---- PartialState ------------------------------------------------------------------------------------------------

local process = {}  -- methods that an Accelerator and the states have in common

--- Blocks until every process has come here.  Nothing on one process.
function process:wait_for_everyone()
  if self.num_processes > 1 then core.dist.barrier() end
end

--- Prints once per machine: on its main process.
function process:print(...)
  if self.is_local_main_process then print(...) end
end

local function first_of(self, is_first, fn, ...)
  if type(fn) ~= "function" then fail("expected a function, got a %s", type(fn)) end
  if not is_first then self:wait_for_everyone() end
  return scope.run(nil, function()
    if is_first then self:wait_for_everyone() end
  end, fn, ...)
end

--- Runs `fn` on the main process before the others start it.  Returns what `fn` returns.
function process:main_process_first(fn, ...) return first_of(self, self.is_main_process, fn, ...) end

--- Runs `fn` on each machine's main process before the others start it.
function process:local_main_process_first(fn, ...) return first_of(self, self.is_local_main_process, fn, ...) end

local function only_where(test)
  return function(self, fn)
    if type(fn) ~= "function" then fail("expected a function to wrap, got a %s", type(fn)) end
    return function(...)
      if test(self) then return fn(...) end
    end
  end
end

--- Returns a function that calls `fn` on the main process and returns nothing elsewhere.
process.on_main_process = only_where(function(self) return self.is_main_process end)
--- The same for each machine's main process.
process.on_local_main_process = only_where(function(self) return self.is_local_main_process end)
--- The same for the process of the highest rank.
process.on_last_process = only_where(function(self) return self.is_last_process end)

--- `fn` with `{ process_index = n }` or `n`, in either order.
local function chosen(name, key, rank_of)
  return function(self, first, second)
    local fn, index = first, second
    if type(first) ~= "function" then fn, index = second, first end
    if type(index) == "table" then index = options.check(name, index, { [key] = { "integer", min = 0, optional = true } })[key] end
    if type(fn) ~= "function" then fail("%s: expected a function to wrap, got a %s", name, type(fn)) end
    if type(index) ~= "number" then fail("%s: expected { %s = n }, got a %s", name, key, type(index)) end
    return function(...)
      if self.num_processes == 1 or rank_of(self) == index then return fn(...) end
    end
  end
end

--- Returns a function that calls `fn` on the process of one rank: `on_process(fn, { process_index = 2 })`.  One process
--- always calls.
process.on_process = chosen("on_process", "process_index", function(self) return self.process_index end)
--- The same by the rank on the machine: `on_local_process(fn, { local_process_index = 1 })`.
process.on_local_process = chosen("on_local_process", "local_process_index", function(self) return self.local_process_index end)

--- Calls `fn` with this rank's part of `inputs` and returns what it returns.  The first (length mod num_processes) ranks
--- get one more; a rank for which nothing is left gets an empty part.  One process: `inputs` itself.
---@param inputs any[]|accelerate.Tensor|accelerate.Dataset|table<string, any> a list, a tensor (dim 1 is split), a data set,
---  or a map of equally long ones
---@param opts { apply_padding: boolean? }? apply_padding: repeat the last item of the whole input until all parts are equally long
---@param fn fun(part: any): ...
function process:split_between_processes(inputs, opts, fn)
  return require("accelerate.splitting").split(self.process_index, self.num_processes, inputs, opts, fn)
end

M.process_methods = process

local shared  -- PartialState's facts: nil before the first call and after a reset

local function fact(name)
  return function()
    if not shared then
      fail("PartialState has no '%s' any more: it was reset (PartialState._reset_state); call PartialState() to set it up again", name)
    end
    return shared[name]
  end
end

local Partial = properties.define("PartialState", {
  get = {
    device = fact "device", backend = fact "backend", distributed_type = fact "distributed_type", debug = fact "debug",
    num_processes = fact "num_processes", process_index = fact "process_index", local_process_index = fact "local_process_index",
    default_device = fact "device",
    is_main_process = function(self) return self.process_index == 0 end,
    is_local_main_process = function(self) return self.local_process_index == 0 end,
    is_last_process = function(self) return self.process_index == self.num_processes - 1 end,
    use_distributed = function(self) return self.distributed_type ~= "NO" and self.num_processes > 1 end,
    initialized = function() return shared ~= nil end,
  },
  methods = properties.merge(process, {
    _reset_state = function() M.reset() end,
    --- The ranks' connection ends with the process; there is nothing to close before.
    destroy_process_group = function() end,
    set_device = function(self)
      if self.device ~= "cpu" then fail("set_device: there is only the CPU here, not '%s'", self.device) end
    end,
  }),
  tostring = function(self)
    return ("Distributed environment: %s%s\nNum processes: %d\nProcess index: %d\nLocal process index: %d\nDevice: %s\n"):format(
      self.distributed_type, self.backend and "  Backend: " .. self.backend or "", self.num_processes, self.process_index,
      self.local_process_index, self.device)
  end,
})
local partial = Partial.new()

local function device_here()
  local wanted = env.text("ACCELERATE_TORCH_DEVICE")
  if wanted and wanted ~= "cpu" then
    fail("ACCELERATE_TORCH_DEVICE=%s: there is no such device here yet, only cpu", wanted)
  end
  return "cpu"
end

local PARTIAL = { cpu = { "boolean", default = false } }

--- The process group and the device of this process; shared.
---@param opts { cpu: boolean? }? cpu: ignore every accelerator
M.PartialState = properties.callable("PartialState", function(opts)
  if opts ~= nil then options.check("PartialState", opts, PARTIAL) end
  if not shared then
    local size = core.dist.world_size()
    shared = {
      num_processes = size,
      process_index = core.dist.rank(),
      local_process_index = core.dist.local_rank(),
      distributed_type = size > 1 and M.DistributedType.MULTI_CPU or M.DistributedType.NO,
      backend = size > 1 and "shm" or nil,
      device = device_here(),
      debug = env.flag("ACCELERATE_DEBUG_MODE", false),
    }
  end
  return partial
end, { _reset_state = function() M.reset() end })

-- ---- AcceleratorState --------------------------------------------------------------------------------------------

local settings  -- what the first Accelerator was made with

local PRECISIONS = { "no", "fp16", "bf16", "fp8" }

local State = properties.define("AcceleratorState", {
  get = {
    mixed_precision = function()
      if not settings then fail("AcceleratorState was reset; make an Accelerator to set it up again") end
      return settings.mixed_precision
    end,
    initialized = function() return settings ~= nil end,
    deepspeed_plugin = function() return nil end,
    fsdp_plugin = function() return nil end,
  },
  missing = function(_, key)
    local value = M.PartialState()[key]
    return value
  end,
  methods = {
    _reset_state = function() settings = nil end,
    get_deepspeed_plugin = function() fail("DeepSpeed plugins are not there yet") end,
    select_deepspeed_plugin = function() fail("DeepSpeed plugins are not there yet") end,
  },
  tostring = function(self) return tostring(partial) .. "Mixed precision type: " .. self.mixed_precision .. "\n" end,
})
local accelerator_state = State.new()

--- What the first Accelerator was made with, and all of PartialState.  Only an Accelerator may make it.
M.AcceleratorState = properties.callable("AcceleratorState", function()
  if not settings then
    fail("AcceleratorState is made by an Accelerator: call accelerate.Accelerator{} before AcceleratorState()")
  end
  M.PartialState()
  return accelerator_state
end, { _reset_state = function() settings = nil end })

--- Raises where a mode cannot be had on this device.
local function check_precision(from, mode, device)
  if mode == "fp16" and device == "cpu" then
    fail("%s = 'fp16': fp16 mixed precision requires a GPU (not '%s'); use 'bf16', which needs no loss scaling", from, device)
  elseif mode == "fp8" then
    fail("%s = 'fp8': no FP8 backend is there (torchao, transformer-engine and msamp are GPU libraries for Python); use 'bf16'", from)
  end
end

--- The type that mixed precision computes in, or nil where there is none.
---@return "bfloat16"?
function M.lower_type() return settings and settings.mixed_precision == "bf16" and "bfloat16" or nil end

--- For Accelerator: joins or sets up the shared state.
---@param wanted { mixed_precision: string?, cpu: boolean }
function M.set_up(wanted)
  local given, from = wanted.mixed_precision, "mixed_precision"
  if given == nil and not settings then
    given, from = env.text("ACCELERATE_MIXED_PRECISION", "no"):lower(), "ACCELERATE_MIXED_PRECISION"
  end
  local known = given == nil
  for _, name in ipairs(PRECISIONS) do known = known or name == given end
  if not known then
    local near = options.nearest(tostring(given), PRECISIONS)
    fail("%s: unknown mode '%s'%s; choose between %s", from, tostring(given), near and (", did you mean '" .. near .. "'?") or "",
      table.concat(PRECISIONS, ", "))
  end
  if settings then
    if given and given ~= settings.mixed_precision then
      fail("mixed_precision = '%s': the first Accelerator of this process was made with '%s', and the state is shared; " ..
        "give the same value or none", given, settings.mixed_precision)
    end
  else
    M.PartialState { cpu = wanted.cpu or env.flag("ACCELERATE_USE_CPU", false) }
    check_precision(from, given, M.PartialState().device)
    settings = { mixed_precision = given }
  end
  M.PartialState()
  return accelerator_state
end

-- ---- GradientState -----------------------------------------------------------------------------------------------

local gradient = { sync = true, plugin = { num_steps = 1, sync_with_dataloader = true, sync_each_batch = false }, loaders = {} }

local Gradient = properties.define("GradientState", {
  get = {
    --- True on batches whose gradients are to be reduced and applied.
    sync_gradients = function() return gradient.sync end,
    num_steps = function() return gradient.plugin.num_steps or 1 end,
    adjust_scheduler = function() return false end,
    sync_with_dataloader = function() return gradient.plugin.sync_with_dataloader end,
    sync_each_batch = function() return gradient.plugin.sync_each_batch end,
    --- The loader whose batch is in use, innermost first; nil outside.
    active_dataloader = function() return gradient.loaders[#gradient.loaders] end,
    dataloader_references = function() return { unpack(gradient.loaders) } end,
    in_dataloader = function() return #gradient.loaders > 0 end,
    --- True while the active loader's last batch is in use.
    end_of_dataloader = function()
      local active = gradient.loaders[#gradient.loaders]
      return active ~= nil and active.end_of_dataloader
    end,
    --- How many items of the active loader's last round are real; 0: all of them, -1: unknown.
    remainder = function()
      local active = gradient.loaders[#gradient.loaders]
      return active and active.remainder or -1
    end,
    is_xla_gradients_synced = function() return false end,
    plugin_kwargs = function() return gradient.plugin end,
    initialized = function() return true end,
  },
  set = {
    sync_gradients = function(_, value)
      if type(value) ~= "boolean" then fail("sync_gradients: expected a boolean, got a %s", type(value)) end
      gradient.sync = value
    end,
  },
  methods = {
    _set_num_steps = function(_, steps)
      if type(steps) ~= "number" or steps % 1 ~= 0 or steps < 1 then
        fail("gradient_accumulation_steps: expected a whole number of at least 1, got %s", tostring(steps))
      end
      gradient.plugin.num_steps = steps
    end,
    _set_plugin = function(_, plugin) gradient.plugin = plugin end,
    --- A pass of `loader` starts or goes on: passes inside it that were left by break end here.
    _enter = function(_, loader)
      local loaders, at = gradient.loaders, nil
      for i = #loaders, 1, -1 do
        if loaders[i] == loader then at = i end
      end
      if at then
        for i = #loaders, at + 1, -1 do loaders[i] = nil end
      else
        loaders[#loaders + 1] = loader
      end
    end,
    _leave = function(_, loader)
      local kept = {}
      for _, other in ipairs(gradient.loaders) do
        if other ~= loader then kept[#kept + 1] = other end
      end
      gradient.loaders = kept
    end,
    _reset_state = function()
      gradient.sync, gradient.loaders = true, {}
      gradient.plugin = { num_steps = 1, sync_with_dataloader = true, sync_each_batch = false }
    end,
  },
  tostring = function(self)
    return ("Sync Gradients: %s\nAt end of current dataloader: %s\nExtra samples added: %d\nGradient accumulation steps: %d\n"):format(
      tostring(self.sync_gradients), tostring(self.end_of_dataloader), self.remainder, self.num_steps)
  end,
})
local gradient_state = Gradient.new()

--- Where gradient accumulation stands; shared by all accelerators, optimizers, schedulers and loaders.
M.GradientState = properties.callable("GradientState", function() return gradient_state end,
  { _reset_state = function() gradient_state:_reset_state() end })

--- Forgets everything shared, for tests.
function M.reset()
  shared, settings = nil, nil
  gradient_state:_reset_state()
end

function M.is_initialized() return settings ~= nil end

return M
