--- The sharding plan of an Accelerator, from its arguments fsdp_plugin and parallelism_config or
--- the variables that request them.
local core = require "accelerate.core"
local dataclasses = require "accelerate.config.dataclasses"
local deferred = require "accelerate.deferred"
local env = require "accelerate.utils.environment"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local sharding = require "accelerate.config.sharding"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

-- An object of a class: as given, made of a plain table, or made where a variable requests it.
local function object_of(o, name, class, variable)
  local given = o[name]
  if given == nil then return env.flag(variable, false) and class() or nil end
  if type(given) == "table" and getmetatable(given) == nil then given = class(given) end
  if not dataclasses.is(given, class) then
    fail("Accelerator: %s must be a %s, got %s", name, getmetatable(class).__name, options.show(given))
  end
  env.set(variable, "true")
  return given
end

-- A later Accelerator shares the first one's engines.
local function check_shared(o, engines)
  for _, name in ipairs { "fsdp_plugin", "parallelism_config" } do
    if o[name] ~= nil and o[name] ~= engines[name] then
      fail("Accelerator: %s: the first Accelerator of this process was made with %s, and the state is " ..
        "shared; give the same object or none", name, engines[name] and "another one" or "none")
    end
  end
  return engines
end

-- Other engines that cut the model, and the variables that request them.
local OTHERS = { fsdp_plugin = "ACCELERATE_USE_FSDP",
  parallelism_config = "ACCELERATE_USE_PARALLELISM_CONFIG" }

-- DeepSpeed's plugins, and the type that they compute in; nil without them.
local function deepspeed(o)
  local argument = o.deepspeed_plugin ~= nil and "deepspeed_plugin" or o.deepspeed_plugins ~= nil
    and "deepspeed_plugins" or nil
  if not argument and not env.flag("ACCELERATE_USE_DEEPSPEED", false) then return nil end
  for other, variable in pairs(OTHERS) do
    if o[other] ~= nil or not argument and env.flag(variable, false) then
      fail("Accelerator: %s and %s both say how the model is cut; give one of them",
        o[other] ~= nil and other or variable, argument or "ACCELERATE_USE_DEEPSPEED")
    elseif env.flag(variable, false) then
      notice.main_once("Accelerator: %s holds, and %s has no effect beside it", argument, variable)
    end
  end
  return require("accelerate.accelerator.deepspeed").engines(o, argument)
end

--- Returns the plugins and the config that an Accelerator was given, checked against the run; those
--- of the first Accelerator, where there is one.
---@param o table the constructor's arguments
---@return { fsdp_plugin: accelerate.FullyShardedDataParallelPlugin?, parallelism_config:
---  accelerate.ParallelismConfig?, deepspeed_plugin: accelerate.DeepSpeedPlugin? } engines
---@return string? mixed_precision o's, or what DeepSpeed's configuration computes in
function M.engines(o)
  local engines = state.engines()
  if engines then
    if o.deepspeed_plugin ~= nil or o.deepspeed_plugins ~= nil then
      fail("Accelerator: deepspeed_plugin: the first Accelerator of this process was made %s, and the " ..
        "state is " ..
        "shared; give all plugins to the first one, by name",
        engines.deepspeed_plugin and "with its own" or "without one")
    end
    return check_shared(o, engines), o.mixed_precision
  end
  local given, precision = deepspeed(o)
  if given then return given, precision end
  engines = {
    fsdp_plugin = object_of(o, "fsdp_plugin",
      require("accelerate.config.fsdp").FullyShardedDataParallelPlugin,
      "ACCELERATE_USE_FSDP"),
    parallelism_config = object_of(o, "parallelism_config",
      require("accelerate.config.parallelism").ParallelismConfig, "ACCELERATE_USE_PARALLELISM_CONFIG"),
  }
  if engines.parallelism_config then
    engines.parallelism_config:_validate {
      num_processes = core.dist.world_size(), fsdp_plugin = engines.fsdp_plugin }
  end
  return engines, o.mixed_precision
end

-- Whether models that are made now begin without memory: read when one is made, since a plugin in
-- force may be chosen, and its flag set, in between.
local function defers(engines)
  if engines.deepspeed_plugin then return engines.deepspeed_plugin:is_zero3_init_enabled() end
  return engines.fsdp_plugin ~= nil and engines.fsdp_plugin.cpu_ram_efficient_loading or false
end

--- Returns the plan of the engines, and makes their mesh; both are kept with them. Every rank calls
--- it at the same point.
---@param engines table what `engines` returned
---@param shared accelerate.AcceleratorState
---@return accelerate.ShardingPlan? nil: every rank holds all
function M.make(engines, shared)
  deferred.request(function() return defers(engines) end)
  if engines.deepspeed_plugin then
    return require("accelerate.config.deepspeed.plan").from_deepspeed(engines.deepspeed_plugin,
      { num_processes = shared.num_processes, device = shared.device })
  end
  local plugin, config = engines.fsdp_plugin, engines.parallelism_config
  if engines.plan or not (plugin or config) then return engines.plan end
  local context = { num_processes = shared.num_processes, local_processes = core.dist.local_world_size(),
    device = shared.device, parallelism = config }
  if plugin then
    if state.lower_type() then plugin:_follow(shared.mixed_precision) end
    engines.plan = sharding.from_fsdp(plugin, context)
    plugin:_bind(engines.plan)
  else
    engines.plan = sharding.from_parallelism(config, context)
  end
  engines.device_mesh = config and config:get_device_mesh()
  return engines.plan
end

return M
