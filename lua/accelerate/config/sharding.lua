--- Sharding plans of FullyShardedDataParallelPlugin and ParallelismConfig.
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local plans = require "accelerate.parallel.plan"
local units = require "accelerate.parallel.plan.units"

local fail = options.fail

local M = {}

-- ---- FullyShardedDataParallelPlugin

-- Whose inputs are cast, with the defaults of PyTorch's two policies.
local function casts_of(plugin, policy)
  if plugin.fsdp_version == 2 then return policy.cast_forward_inputs ~= false and "units" or nil end
  return policy.cast_forward_inputs and "units" or policy.cast_root_forward_inputs ~= false and "model" or nil
end

-- The types of a plugin's own policy. Of one that follows the Accelerator's mixed precision,
-- buffers stay as they are, and the Accelerator casts outputs.
local function policy_of(plugin, strategy)
  local policy = plugin.mixed_precision_policy
  if not policy then return {} end
  if plugin:_origin "mixed_precision_policy" == "mixed_precision" then
    local reduced = strategy ~= "NO_SHARD" and policy.reduce_dtype or nil
    return { param_dtype = policy.param_dtype, reduce_dtype = reduced }
  end
  if strategy == "NO_SHARD" and (policy.reduce_dtype or "float32") ~= "float32" then
    fail("NO_SHARD: reduce_dtype = %s: whole gradients are reduced in a lower type by a hook; give the " ..
      "Accelerator DistributedDataParallelKwargs { comm_hook = %s }", policy.reduce_dtype,
      policy.reduce_dtype == "float16" and "'fp16'" or "'bf16'")
  end
  return { param_dtype = policy.param_dtype, reduce_dtype = policy.reduce_dtype,
    output_dtype = policy.output_dtype, buffer_dtype = policy.buffer_dtype,
    casts_inputs = casts_of(plugin, policy) }
end

-- How many copies there are, and over how many ranks each is cut.
local function sizes(strategy, context)
  local mesh = context.parallelism
  if mesh and mesh.data_parallel_size > 1 then return mesh.dp_replicate_size, mesh.dp_shard_size end
  if strategy == "NO_SHARD" then return context.num_processes, 1 end
  if strategy:find "^HYBRID" then
    return context.num_processes / context.local_processes, context.local_processes
  end
  return 1, context.num_processes
end

-- FSDP2 says with one boolean what FSDP1 has strategies for.
local function strategy_of(plugin, context)
  if plugin.fsdp_version == 1 then return plugin:_strategy() end
  local mesh = context.parallelism
  local reshard = plugin.reshard_after_forward
  if mesh and mesh.dp_replicate_size > 1 then return "HYBRID_SHARD", reshard end
  return "FULL_SHARD", reshard
end

local function no_units() return {} end

local function chooser(plugin, ignored)
  local policy, where = plugin.auto_wrap_policy, "TRANSFORMER_BASED_WRAP"
  if policy == nil then return no_units end
  if type(policy) ~= "string" then
    return function(model) return units.by_policy(model, policy, ignored(model)) end
  end
  if policy == "TRANSFORMER_BASED_WRAP" then
    return function(model) return units.by_class(model, plugin.transformer_cls_names_to_wrap, where) end
  end
  local least = plugin.min_num_params
  if least == 0 then return no_units end
  return function(model)
    if plugin.fsdp_version == 2 then return units.by_size(model, least) end
    return units.by_rest(model, least, ignored(model))
  end
end

-- Fields of a plan, and those of the plugin that they come from.
local FROM = { reshard_after_forward = "reshard_after_forward", units = "auto_wrap_policy",
  ignored = "ignored_modules", param_dtype = "mixed_precision_policy",
  reduce_dtype = "mixed_precision_policy", casts_inputs = "mixed_precision_policy",
  buffer_dtype = "mixed_precision_policy",
  output_dtype = "mixed_precision_policy", offload = "cpu_offload", whole_in_no_sync = "whole_in_no_sync",
  activation_checkpointing = "activation_checkpointing", state_dict_type = "state_dict_type" }

local function origins(plugin, context)
  local origin = { name = plugin:_origin(plugin.sharding_strategy and "sharding_strategy"
    or "reshard_after_forward") }
  for field, source in pairs(FROM) do origin[field] = plugin:_origin(source) end
  if context.parallelism then
    origin.replicate = context.parallelism:_origin "dp_replicate_size"
    origin.shard = context.parallelism:_origin "dp_shard_size"
  end
  return origin
end

--- Returns the plan of a FullyShardedDataParallelPlugin.
---@param plugin accelerate.FullyShardedDataParallelPlugin
---@param context { num_processes: integer, local_processes: integer, device: string, parallelism:
---  accelerate.ParallelismConfig? } local_processes: ranks on this machine, which HYBRID_SHARD cuts
---  over
---@return accelerate.ShardingPlan
function M.from_fsdp(plugin, context)
  local strategy, reshard = strategy_of(plugin, context)
  local replicate, shard = sizes(strategy, context)
  local policy = policy_of(plugin, strategy)
  local function ignored(model) return units.parameters_of(model, plugin.ignored_modules) end
  local away, note = plans.home_of(plugin.cpu_offload and (plugin.offload_folder and "disk" or "cpu") or nil,
    context.device, "cpu_offload")
  -- buffers that are whole on a device stay there
  local function goes(kind) return (away ~= "cpu" or plans.HOMES[strategy][kind] == "cut") and away or nil end
  if away and not goes(1) then
    notice.main_once("cpu_offload: values are whole on each rank under %s, and stay on the device", strategy)
  end
  return plans.new(strategy, {
    replicate = replicate, shard = shard, reshard_after_forward = reshard ~= false,
    units = chooser(plugin, ignored), ignored = ignored,
    param_dtype = policy.param_dtype, reduce_dtype = policy.reduce_dtype, output_dtype = policy.output_dtype,
    buffer_dtype = policy.buffer_dtype, casts_inputs = policy.casts_inputs,
    offload = { values = goes(1), gradients = goes(2), states = away, path = plugin.offload_folder,
      note = note },
    whole_in_no_sync = plugin.whole_in_no_sync,
    activation_checkpointing = plugin.activation_checkpointing,
    state_dict_type = plugin.state_dict_type:match("^%a+"):lower(), origin = origins(plugin, context),
  }, context.num_processes)
end

-- ---- ParallelismConfig

--- Returns the plan of a ParallelismConfig without a plugin: full sharding over dp_shard. Returns
--- nil where it has no dim to cut over, so that ranks are copies.
---@param config accelerate.ParallelismConfig
---@param context { num_processes: integer }
---@return accelerate.ShardingPlan?
function M.from_parallelism(config, context)
  if config.dp_shard_size == 1 then return nil end
  return plans.new(config.dp_replicate_size > 1 and "HYBRID_SHARD" or "FULL_SHARD", {
    replicate = config.dp_replicate_size, shard = config.dp_shard_size, state_dict_type = "sharded",
    units = function(model) return units.by_class(model, nil, "ParallelismConfig") end,
    origin = { name = config:_origin "dp_shard_size", replicate = config:_origin "dp_replicate_size",
      shard = config:_origin "dp_shard_size" },
  }, context.num_processes)
end

return M
