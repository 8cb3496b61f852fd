--- Ranks and devices (PartialState), and the settings of the run (AcceleratorState). Each is one
--- object for the process; calling the class returns it.
local core = require "accelerate.core"
local driver = require "accelerate.machine.driver"
local env = require "accelerate.utils.environment"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local properties = require "accelerate.utils.properties"
local scope = require "accelerate.utils.scope"
local terminal = require "accelerate.utils.terminal"

local fail = options.fail

local M = {}

--- How the run is distributed; `NO` for one process. TPU is another name of XLA.
M.DistributedType = properties.enum("DistributedType", {
  "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU",
  "MULTI_HPU", "MULTI_NEURON",
  "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM",
}, { TPU = "XLA" })

-- ---- PartialState

local process = {}  -- methods that an Accelerator and the states share

--- Blocks until every process has called it. Returns at once on one process.
function process:wait_for_everyone()
  if self.num_processes > 1 then core.dist.barrier() end
end

--- Prints on each machine's main process only.
function process:print(...)
  if self.is_local_main_process then terminal.beside_bars(print, ...) end
end

local function first_of(self, name, is_first, fn, ...)
  if not scope.callable(fn) then fail("%s: expected a function, got %s", name, options.show(fn)) end
  if not is_first then self:wait_for_everyone() end
  return scope.run(nil, function()
    if is_first then self:wait_for_everyone() end
  end, fn, ...)
end

--- Runs `fn` on the main process before the other processes start it.
---@param fn fun(...): ...
---@param ... any arguments of fn
---@return any ... results of fn
function process:main_process_first(fn, ...)
  return first_of(self, "main_process_first", self.is_main_process, fn, ...)
end

--- Runs `fn` on each machine's main process before the other processes start it. The others wait at
--- one barrier for all machines.
---@param fn fun(...): ...
---@param ... any arguments of fn
---@return any ... results of fn
function process:local_main_process_first(fn, ...)
  return first_of(self, "local_main_process_first", self.is_local_main_process, fn, ...)
end

local function only_where(name, test)
  return function(self, fn)
    if not scope.callable(fn) then fail("%s: expected a function to wrap, got %s", name, options.show(fn)) end
    return function(...)
      if test(self) then return fn(...) end
    end
  end
end

--- Returns a function that calls `fn` on the main process and returns nothing elsewhere.
---@param fn function
---@return function
process.on_main_process = only_where("on_main_process", function(self) return self.is_main_process end)
--- Returns a function that calls `fn` on each machine's main process and returns nothing elsewhere.
---@param fn function
---@return function
process.on_local_main_process = only_where("on_local_main_process",
  function(self) return self.is_local_main_process end)
--- Returns a function that calls `fn` on the process of the highest rank and returns nothing
--- elsewhere.
---@param fn function
---@return function
process.on_last_process = only_where("on_last_process", function(self) return self.is_last_process end)

-- Makes a decorator for one rank, called with `{ [key] = n }` and the function.
local function chosen(name, key, rank_of)
  local schema = { [key] = { "integer", min = 0 } }
  return function(self, opts, fn)
    if scope.callable(opts) or type(opts) == "number" then
      local index = type(opts) == "number" and opts or type(fn) == "table" and fn[key] or fn
      fail("%s: %soptions come before the function: write %s({ %s = %s }, fn)", name, index == nil and key ..
        " is missing; " or "", name, key,
        index == nil and "n" or tostring(index))
    end
    local index = options.check(name, opts, schema)[key]
    if not scope.callable(fn) then fail("%s: expected a function to wrap, got %s", name, options.show(fn)) end
    return function(...)
      if self.num_processes == 1 or rank_of(self) == index then return fn(...) end
    end
  end
end

--- Returns a function that calls `fn` on the process of one rank only: `on_process({ process_index
--- = 2 }, fn)`. A single process always calls it.
---@param opts { process_index: integer } from 0
---@param fn function
---@return function
process.on_process = chosen("on_process", "process_index", function(self) return self.process_index end)
--- Returns a function that calls `fn` on the process of one rank of each machine only:
--- `on_local_process({ local_process_index = 1 }, fn)`. A single process always calls it.
---@param opts { local_process_index: integer } from 0
---@param fn function
---@return function
process.on_local_process = chosen("on_local_process", "local_process_index",
  function(self) return self.local_process_index end)

--- Calls fn(part, ...) with this rank's part of `inputs`. The first (length mod num_processes)
--- ranks get one item more; a rank without items gets an empty part. A single process gets `inputs`
--- itself.
---@param inputs any[]|accelerate.Tensor|accelerate.Dataset|table<string, any> a list, a tensor
---  (split along dim 1), a data set, or a map of equally long ones
---@param opts { apply_padding: boolean? }? apply_padding: repeat the last item of the whole input
---  until all parts are equally long
---@param fn fun(part: any, ...): ...
---@param ... any further arguments of fn
---@return any ... results of fn
function process:split_between_processes(inputs, ...)
  return require("accelerate.collectives.split").split(self.process_index, self.num_processes, inputs, ...)
end

M.process_methods = process

local shared  -- PartialState's fields: nil before the first call and after a reset

--- Returns whether PartialState was set up in this process.
---@return boolean
function M.initialized() return shared ~= nil end

local FACTS = { "device", "backend", "distributed_type", "debug", "num_processes", "process_index",
  "local_process_index", "fork_launched" }

-- Fields computed from others, for all objects that have them.
local DERIVED = {
  is_main_process = function(self) return self.process_index == 0 end,
  is_local_main_process = function(self) return self.local_process_index == 0 end,
  is_last_process = function(self) return self.process_index == self.num_processes - 1 end,
  use_distributed = function(self) return self.distributed_type ~= "NO" and self.num_processes > 1 end,
}

--- Makes getters for the fields in facts_of(); `gone(name)` raises when it returns nil.
local function facts(facts_of, gone)
  local get = properties.merge(DERIVED, {})
  for _, name in ipairs(FACTS) do
    get[name] = function() return (facts_of() or gone(name))[name] end
  end
  return get
end

local function default_device() return core.device_count("cuda") > 0 and "cuda" or "cpu" end

--- Leaves the process group; no collective may follow. Does nothing on one process, and in ranks
--- that a script forked (FORK_LAUNCHED).
local function destroy_process_group(self, group)
  if group ~= nil then
    fail("destroy_process_group: there is one group, of all ranks; expected no argument, got %s",
      options.show(group))
  end
  if not self.fork_launched then core.dist.leave() end
end

---@class accelerate.PartialState
---@field device string device of this process: "cpu" or "cuda:N"
---@field default_device string kind of device of this machine: "cuda" or "cpu"
---@field distributed_type string one of DistributedType
---@field backend string? transport between ranks; nil on one process
---@field num_processes integer number of ranks
---@field process_index integer this rank, from 0
---@field local_process_index integer this rank on its machine, from 0
---@field is_main_process boolean whether this is rank 0
---@field is_local_main_process boolean whether this is rank 0 of the machine
---@field is_last_process boolean whether this is the highest rank
---@field use_distributed boolean whether there are several ranks
---@field debug boolean whether ACCELERATE_DEBUG_MODE is on
---@field fork_launched boolean whether a script forked this rank (FORK_LAUNCHED)
---@field initialized boolean false after a reset
local Partial = properties.define("PartialState", {
  get = properties.merge(facts(function() return shared end, function(name)
    fail("PartialState has no '%s' any more: it was reset (PartialState._reset_state); call " ..
      "PartialState() to set it up again", name)
  end), {
    default_device = default_device,
    initialized = function() return shared ~= nil end,
  }),
  methods = properties.merge(process, {
    _reset_state = function() shared = nil end,
    destroy_process_group = destroy_process_group,
    --- Chooses the device of this process if none was chosen. PartialState() has chosen one.
    set_device = function(self)
      if shared == nil then
        fail("set_device: %s was reset; call PartialState() to set it up again", tostring(self))
      end
    end,
  }),
  tostring = function(self)
    if not shared then return "PartialState, reset" end
    return ("Distributed environment: %s%s\nNum processes: %d\nProcess index: %d\nLocal process index: " ..
      "%d\nDevice: %s\n"):format(
      self.distributed_type, self.backend and "  Backend: " .. self.backend or "", self.num_processes,
      self.process_index,
      self.local_process_index, self.device)
  end,
})
local partial = Partial.new()

local VARIABLE = "ACCELERATE_TORCH_DEVICE"

--- Returns the device that ACCELERATE_TORCH_DEVICE names, or nil.
local function device_asked_for(local_rank)
  local text = env.text(VARIABLE)
  if text == nil or text == "cpu" then return text end
  local index = text:match("^cuda:(%d+)$")
  if text ~= "cuda" and not index then fail("%s: expected cpu, cuda or cuda:N, got '%s'", VARIABLE, text) end
  local count, why = core.device_count("cuda")
  index = tonumber(index) or count > 0 and local_rank % count or 0
  if index >= count then
    fail("%s=%s: there is no such device here: %s", VARIABLE, text, why
      or ("CUDA devices are 0 to %d"):format(count - 1))
  end
  return ("cuda:%d"):format(index)
end

--- Returns the device of this process: the one in the environment, else the GPU of its rank on the
--- machine, else the CPU.
local function choose_device(cpu, ranks, local_rank)
  local asked = device_asked_for(local_rank)
  if ranks > 1 and (env.text(VARIABLE) or ""):match(":") then
    fail("%s=%s with %d ranks: each rank has a GPU of its own, by its number on the machine; set it to " ..
      "cuda or cpu, and choose GPUs with --gpu_ids",
      VARIABLE, env.text(VARIABLE), ranks)
  end
  if asked == "cpu" or cpu and not asked then return "cpu" end
  local count, why = core.device_count("cuda")
  local here, ids = core.dist.local_world_size(), env.text("ACCELERATE_GPU_IDS")
  if count == 0 then
    if ids and ids ~= "all" then fail("--gpu_ids %s: %s; leave it out to run on the CPU", ids, why) end
    return "cpu"
  end
  if here > count and env.text("ACCEL_SHARE_GPU") == "1" then
    notice.main_once("%d ranks share %d GPU%s (ACCEL_SHARE_GPU=1), which is for tests: times mean nothing",
      here, count, count == 1 and "" or "s")
  elseif here > count then
    local visible = env.text("CUDA_VISIBLE_DEVICES")
    fail("%d ranks on this machine, and %d GPU%s%s: a GPU takes one rank; start %d with --num_processes, " ..
      "or run them on the CPU with --cpu", here,
      count, count == 1 and "" or "s", visible and (" (CUDA_VISIBLE_DEVICES=%s)"):format(visible) or "",
      count)
  end
  return asked or ("cuda:%d"):format(local_rank % count)
end

local ELSEWHERE = { "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE" }

--- Raises in a rank that another launcher started, which would silently train everything on its
--- own.
local function refuse_other_launchers()
  if core.dist.world_size() > 1 or env.text("ACCEL_RUN_RANK") then return end
  for _, name in ipairs(ELSEWHERE) do
    local size = tonumber(env.text(name, "1"))
    if size and size > 1 then
      fail("%s=%d: this process seems to be one of %d ranks that another program started, and nothing " ..
        "says which; start them with `accel-run --num_processes %d`, torchrun, " ..
        "mpirun or srun, or unset %s", name, size, size,
        size, name)
    end
  end
end

local PARTIAL = {
  cpu = { "boolean", default = false },
  backend = { "string", optional = true },
  init_method = { "string", optional = true, one_of = { "env://" } },
  timeout = { "number", optional = true, above = 0, max = 1e9 },
}

--- Returns the ranks and the device of this process. The first call sets up the process group and
--- chooses the device.
---@param opts { cpu: boolean?, backend: "shm"|"mpi"|"tcp"|"nccl"|nil, init_method: "env://"?,
---  timeout: number? }? cpu: use no accelerator; timeout: seconds that this rank waits in a
---  collective (default: the launcher's --timeout)
---@return accelerate.PartialState
M.PartialState = properties.callable("PartialState", function(opts)
  if opts ~= nil then opts = options.check("PartialState", opts, PARTIAL) end
  if not shared then
    opts = opts or {}
    refuse_other_launchers()
    local size, local_rank = core.dist.world_size(), core.dist.local_rank()
    local on_cpu = size > 1 and core.dist.transport() or "shm"
    if opts.backend and opts.backend ~= on_cpu and opts.backend ~= "nccl" then
      fail("PartialState: backend = '%s' is not there; ranks use 'nccl' on GPUs and '%s' on the CPU%s",
        opts.backend, on_cpu,
        on_cpu ~= "shm" and " of several machines" or "")
    end
    local debug_mode = env.flag("ACCELERATE_DEBUG_MODE", false)
    local device = choose_device(opts.cpu or env.flag("ACCELERATE_USE_CPU", false), size, local_rank)
    local gpu = tonumber(device:match("^cuda:(%d+)$"))
    if opts.backend == on_cpu and gpu and size > 1 then
      fail("PartialState: backend = '%s' with ranks on GPUs: it carries the CPU's memory; leave it out " ..
        "(nccl), or start them with --cpu", on_cpu)
    elseif opts.backend == "nccl" and not gpu then
      fail("PartialState: backend = 'nccl' is for GPUs, and this process is on the CPU%s", opts.cpu
        and " (cpu = true)" or "")
    end
    -- before anything is pinned: a context on another GPU costs each rank hundreds of megabytes
    if gpu then core._choose_device(device) end
    if opts.timeout then core.dist.set_timeout(opts.timeout) end
    -- several ranks join at their first collective
    if opts.backend == "nccl" and size == 1 then core.dist.join_device(gpu) end
    shared = {
      num_processes = size, process_index = core.dist.rank(), local_process_index = local_rank,
      distributed_type = size == 1 and M.DistributedType.NO or gpu and M.DistributedType.MULTI_GPU
        or M.DistributedType.MULTI_CPU,
      backend = gpu and (size > 1 or opts.backend) and "nccl" or size > 1 and on_cpu or nil,
      device = device, debug = debug_mode, fork_launched = env.flag("FORK_LAUNCHED", false),
    }
    -- a rank's own GPU; alone, a process may want all processors
    if gpu and env.flag("ACCELERATE_CPU_AFFINITY", core.dist.local_world_size() > 1) then
      require("accelerate.machine.system").set_numa_affinity(gpu)
    end
  end
  return partial
end, { _reset_state = function() shared = nil end })

-- ---- AcceleratorState

local settings  -- the first Accelerator's settings, with PartialState's fields of that time

local PRECISIONS = { "no", "fp16", "bf16", "fp8" }

local function state_gone(name)
  fail("AcceleratorState has no '%s' any more: it was reset (AcceleratorState._reset_state); make an " ..
    "Accelerator to set it up again", name)
end

local function setting(name)
  return function() return (settings or state_gone(name))[name] end
end

-- The DeepSpeed plugin of a name. One that was given without a name has none.
local function deepspeed_plugin(where, name)
  options.value(where, "name", name, { "string" })
  local plugins = (settings or state_gone "deepspeed_plugins").engines.deepspeed_plugins
  if not plugins then fail("%s: the Accelerator was made without deepspeed_plugin", where) end
  local known = rawget(plugins, "_values") and {} or plugins
  if not known[name] then
    fail("%s: there is no plugin '%s'%s", where, name, options.hint(name, ordered.sorted_keys(known)))
  end
  return known[name], known
end

--- Forgets the settings; `reset_partial_state` true: PartialState, too.
local function reset_state(reset_partial_state)
  settings = nil
  if reset_partial_state then shared = nil end
end

-- Plugins that an Accelerator was given, by the name of its argument; others are nil.
local ENGINES = {}
for _, name in ipairs { "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin", "dynamo_plugin",
  "torch_tp_plugin", "parallelism_config", "device_mesh" } do
  ENGINES[name] = function() return settings and settings.engines[name] end
end

---@class accelerate.AcceleratorState: accelerate.PartialState
---@field mixed_precision "no"|"fp16"|"bf16" compute type of prepared models
---@field deepspeed_plugins accelerate.DeepSpeedPlugin|table<string, accelerate.DeepSpeedPlugin>|nil
---  as given to the Accelerator
---@field deepspeed_plugin accelerate.DeepSpeedPlugin? the one in force
---@field initialized boolean false after a reset
---@field fsdp_plugin accelerate.FullyShardedDataParallelPlugin? the first Accelerator's
---@field parallelism_config accelerate.ParallelismConfig? the first Accelerator's
---@field device_mesh accelerate.Mesh? what parallelism_config makes of the ranks
---@field is_fsdp2 boolean whether the plugin is there, with fsdp_version = 2
local State = properties.define("AcceleratorState", {
  get = properties.merge(properties.merge(facts(function() return settings and settings.facts end,
    state_gone), ENGINES), {
    mixed_precision = setting "mixed_precision",
    distributed_type = function()
      local known = settings or state_gone "distributed_type"
      return known.distributed_type or known.facts.distributed_type
    end,
    --- The DeepSpeed plugin in force; nil without DeepSpeed.
    deepspeed_plugin = function() return settings and settings.engines.deepspeed_plugin end,
    initialized = function() return settings ~= nil end,
    is_fsdp2 = function()
      local plugin = settings and settings.engines.fsdp_plugin
      return plugin ~= nil and plugin.fsdp_version == 2
    end,
  }),
  methods = properties.merge(process, {
    _reset_state = function(_, reset_partial_state) reset_state(reset_partial_state) end,
    destroy_process_group = destroy_process_group,
    --- Returns the DeepSpeed plugin that was given under a name.
    ---@param name string
    ---@return accelerate.DeepSpeedPlugin
    get_deepspeed_plugin = function(_, name) return (deepspeed_plugin("get_deepspeed_plugin", name)) end,
    --- Puts the DeepSpeed plugin of a name in force, for what is prepared from now on.
    ---@param name string
    select_deepspeed_plugin = function(_, name)
      local wanted, all = deepspeed_plugin("select_deepspeed_plugin", name)
      for _, plugin in pairs(all) do plugin:_set_selected(plugin == wanted) end
      settings.engines.deepspeed_plugin = wanted
    end,
  }),
  tostring = function(self)
    if not settings then return "AcceleratorState, reset" end
    local text = tostring(M.PartialState()) .. "\nMixed precision type: " .. self.mixed_precision .. "\n"
    local plugin = self.deepspeed_plugin
    if not plugin then return text end
    return ("%sds_config: %s\n"):format(text,
      require("accelerate.utils.show").pformat(plugin.deepspeed_config))
  end,
})
local accelerator_state = State.new()

--- Raises when the requested settings differ from the first Accelerator's.
local function check_settled(mixed_precision, cpu)
  if cpu and settings.facts.device ~= "cpu" then
    fail("cpu = true: the first Accelerator of this process was made on %s, and the state is shared; " ..
      "give cpu to the first one",
      settings.facts.device)
  end
  if mixed_precision and mixed_precision ~= settings.mixed_precision then
    fail("mixed_precision = '%s': the first Accelerator of this process was made with '%s', and the " ..
      "state is shared; " ..
      "give the same value or none", mixed_precision, settings.mixed_precision)
  end
end

local STATE = { mixed_precision = { "string", optional = true, one_of = PRECISIONS },
  cpu = { "boolean", default = false } }

--- Returns the first Accelerator's settings, with all fields of PartialState. Only an Accelerator
--- sets it up.
---@param opts { mixed_precision: string?, cpu: boolean? }? raises when they differ from the first
---  Accelerator's
---@return accelerate.AcceleratorState
M.AcceleratorState = properties.callable("AcceleratorState", function(opts)
  opts = options.check("AcceleratorState", opts, STATE)
  if not settings then
    fail("AcceleratorState is made by an Accelerator: call accelerate.Accelerator{} before " ..
      "AcceleratorState()")
  end
  check_settled(opts.mixed_precision, opts.cpu)
  return accelerator_state
end, { _reset_state = reset_state })

--- Returns the mode that a device has in place of one. Gives a notice where it is another one, or
--- has another meaning there.
local function checked_precision(from, mode, device)
  local major, minor
  if mode == "fp8" and device ~= "cpu" then major, minor = driver.capability_of(device) end
  if major and major * 10 + minor < 89 then
    notice.main_once("%s = 'fp8': %s does not multiply in eight bits, which takes compute capability 8.9; " ..
      "it computes in fp16 instead", from, device)
    return "fp16"
  elseif mode == "fp16" and device == "cpu" then
    notice.main_once(
      "%s = 'fp16': on the CPU it computes in float32, without loss scaling; 'bf16' casts here", from)
  end
  return mode
end

--- Returns the compute type of mixed precision; nil without it.
---@return ("bfloat16"|"float16")?
function M.lower_type()
  local mode = settings and settings.mixed_precision
  if mode == "bf16" or mode == "fp8" then return "bfloat16" end
  if mode == "fp16" and settings.facts.device ~= "cpu" then return "float16" end
end

--- Returns whether FP8 was requested of the first Accelerator, also where the device has none.
---@return boolean
function M.asked_fp8() return settings ~= nil and settings.asked == "fp8" end

--- Returns the first Accelerator's engines, by the names of its arguments; nil before there is one.
---@return table<string, any>?
function M.engines() return settings and settings.engines end

--- Sets up or joins the shared state, for Accelerator.
---@param wanted { mixed_precision: string?, cpu: boolean, group: table?, distributed_type: string?,
---  engines: table? } group: PartialState's options but cpu; distributed_type: in place of
---  PartialState's; engines: the plugins, by the names of Accelerator's arguments
---@return accelerate.AcceleratorState
function M.set_up(wanted)
  local given, from = wanted.mixed_precision, "mixed_precision"
  if given == nil and not settings then
    given, from = env.text("ACCELERATE_MIXED_PRECISION", "no"):lower(), "ACCELERATE_MIXED_PRECISION"
  end
  local known = given == nil
  for _, name in ipairs(PRECISIONS) do known = known or name == given end
  if not known then
    local near = options.nearest(tostring(given), PRECISIONS)
    fail("%s: unknown mode '%s'%s; choose between %s", from, tostring(given), near
      and (", did you mean '" .. near .. "'?") or "",
      table.concat(PRECISIONS, ", "))
  end
  if settings then
    check_settled(given, wanted.cpu)
    if not shared then shared = settings.facts end  -- PartialState was reset on its own
  else
    M.PartialState(properties.merge(wanted.group or {}, { cpu = wanted.cpu }))
    if wanted.cpu and shared.device ~= "cpu" and not env.text(VARIABLE) then
      fail("cpu = true: PartialState() was called before, and settled on %s; give cpu there", shared.device)
    end
    local precision = checked_precision(from, given, shared.device)
    settings = { mixed_precision = precision, asked = given, facts = shared,
      distributed_type = wanted.distributed_type,
      engines = wanted.engines or {} }
  end
  return accelerator_state
end

M.GradientState = require("accelerate.state.gradient_state").GradientState

--- Forgets all shared state, for tests.
function M.reset()
  shared, settings = nil, nil
  M.GradientState._reset_state()
end

return properties.strict("accelerate.state", M, { "AcceleratorState", "DistributedType", "GradientState",
  "PartialState", "initialized" })
