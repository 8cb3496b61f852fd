--- Sharding plans: where a prepared model's values, gradients and optimizer states rest, over how
--- many ranks they are cut, and which modules are acquired and reduced together. The plugins of
--- Accelerate, its ParallelismConfig and DeepSpeed's JSON become plans; the engine reads nothing
--- else.
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local units = require "accelerate.parallel.sharded.units"

local fail = options.fail

local M = {}

---@class accelerate.ShardingPlan
---@field name string "FULL_SHARD", "ZeRO-2" and the like, for messages
---@field values "whole"|"cut" where each buffer of a unit rests: whole on each rank, or one part on
---  each rank of the shard group
---@field gradients "whole"|"cut"
---@field states "whole"|"cut"
---@field replicate integer copies (dp_replicate); 1: one
---@field shard integer ranks that a value is cut over (dp_shard); replicate * shard is the number
---  of ranks
---@field reshard_after_forward boolean with values "cut": released after a unit's forward, or kept
---  until its backward
---@field units fun(model: accelerate.nn.Module): accelerate.nn.Module[] the modules that are units
---  of their own; the rest is the model's own unit. Raises for classes that the model lacks
---@field ignored fun(model: accelerate.nn.Module): table<accelerate.Tensor, boolean> parameters
---  that stay whole and are not managed
---@field param_dtype string? the type that values are gathered in and units compute in; nil: the
---  type that values rest in
---@field eight (fun(model: accelerate.nn.Module): table<accelerate.Tensor, boolean>)? which
---  parameters are gathered in float8_e4m3fn; nil: none
---@field reduce_dtype string? what gradients are reduced in
---@field buffer_dtype string? what floating buffers of modules are converted to
---@field output_dtype string? the type of floating outputs of the model and its units
---@field casts_inputs "model"|"units"|nil whose floating arguments are converted to param_dtype:
---  the model's, or its units', too
---@field offload { values: "cpu"|"disk"|nil, states: "cpu"|"disk"|nil, gradients: "cpu"|"disk"|nil,
---  path: string?, note: string? } path: the folder of files; note: why nothing is offloaded that
---  was to be
---@field whole_in_no_sync boolean whether gradients stay whole in no_sync, as Accelerate keeps
---  them; else each pass is reduced into the own part
---@field activation_checkpointing boolean whether units recompute their activations in backward
---@field state_dict_type "full"|"sharded"|"local"
---@field origin table<string, string> field of the plan -> where its value came from; those that
---  are not in it are defaults

-- Where values, gradients and states rest.
local HOMES = {
  ["ZeRO-0"] = { "whole", "whole", "whole" },
  ["ZeRO-1"] = { "whole", "whole", "cut" },
  ["ZeRO-2"] = { "whole", "cut", "cut" },
  ["ZeRO-3"] = { "cut", "cut", "cut" },
}
HOMES.NO_SHARD, HOMES.SHARD_GRAD_OP, HOMES.FULL_SHARD = HOMES["ZeRO-0"], HOMES["ZeRO-2"], HOMES["ZeRO-3"]
HOMES.HYBRID_SHARD, HOMES.HYBRID_SHARD_ZERO2 = HOMES["ZeRO-3"], HOMES["ZeRO-2"]
M.HOMES = HOMES

local function none() return {} end

local DEFAULTS = {
  replicate = 1, shard = 1, reshard_after_forward = true, units = none, ignored = none,
  whole_in_no_sync = false, activation_checkpointing = false, state_dict_type = "full",
}

-- An optimizer steps values and gradients of host memory there, so that its states are there, too.
local function complete(offload)
  if offload.states or not (offload.values == "cpu" or offload.gradients == "cpu") then return offload end
  notice.main_once("offload: the optimizer's states rest in host memory, too, " ..
    "where the rest of what it steps does")
  local all = { states = "cpu" }
  for key, value in pairs(offload) do all[key] = value end
  return all
end

--- Returns a plan. Raises when its copies and parts do not make the number of ranks.
---@param strategy string a key of HOMES, which gives values, gradients and states
---@param fields table of the plan, without those three; `name` is by default the strategy
---@param num_processes integer
---@return accelerate.ShardingPlan
function M.new(strategy, fields, num_processes)
  local homes = HOMES[strategy]
  local plan = { name = strategy, values = homes[1], gradients = homes[2], states = homes[3], offload = {},
    origin = {} }
  for key, value in pairs(DEFAULTS) do plan[key] = value end
  for key, value in pairs(fields) do plan[key] = value end
  plan.offload = complete(plan.offload)
  if plan.replicate * plan.shard ~= num_processes then
    fail("%s: %d cop%s over %d rank%s each (dp_replicate x dp_shard) take %d ranks, and the run has %d",
      plan.name, plan.replicate, plan.replicate == 1 and "y" or "ies", plan.shard,
      plan.shard == 1 and "" or "s", plan.replicate * plan.shard, num_processes)
  end
  return plan
end

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

local function chooser(plugin, ignored)
  local policy, where = plugin.auto_wrap_policy, "TRANSFORMER_BASED_WRAP"
  if policy == nil then return none end
  if type(policy) ~= "string" then
    return function(model) return units.by_policy(model, policy, ignored(model)) end
  end
  if policy == "TRANSFORMER_BASED_WRAP" then
    return function(model) return units.by_class(model, plugin.transformer_cls_names_to_wrap, where) end
  end
  local least = plugin.min_num_params
  if least == 0 then return none end
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

--- Returns where buffers that are to be offloaded rest. A CPU's memory is the host's, so that all
--- of a rank on a CPU is there from the start; a line says so.
---@param to "cpu"|"disk"|nil
---@param device string
---@param name string the setting
---@return "cpu"|"disk"|nil
---@return string? note why nothing is offloaded
function M.home_of(to, device, name)
  if to ~= "cpu" or device ~= "cpu" then return to end
  notice.main_once("%s has no effect: a CPU's memory is the host's", name)
  return nil, "none: a CPU's memory is the host's"
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
  local away, note = M.home_of(plugin.cpu_offload and (plugin.offload_folder and "disk" or "cpu") or nil,
    context.device, "cpu_offload")
  -- buffers that are whole on a device stay there
  local function goes(kind) return (away ~= "cpu" or HOMES[strategy][kind] == "cut") and away or nil end
  if away and not goes(1) then
    notice.main_once("cpu_offload: values are whole on each rank under %s, and stay on the device", strategy)
  end
  return M.new(strategy, {
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
  return M.new(config.dp_replicate_size > 1 and "HYBRID_SHARD" or "FULL_SHARD", {
    replicate = config.dp_replicate_size, shard = config.dp_shard_size, state_dict_type = "sharded",
    units = function(model) return units.by_class(model, nil, "ParallelismConfig") end,
    origin = { name = config:_origin "dp_shard_size", replicate = config:_origin "dp_replicate_size",
      shard = config:_origin "dp_shard_size" },
  }, context.num_processes)
end

--- Returns the plan as a table in text: each setting with its origin, the bytes that a rank has at
--- rest and while it computes, and what a step moves.
---@param plan accelerate.ShardingPlan
---@param model accelerate.nn.Module
---@param opts { optimizer: accelerate.optim.Optimizer?, shared: boolean? }? optimizer: whose states
---  are counted; default: two states of each parameter's size, as Adam keeps them; shared: whether
---  the ranks of a prepared model have its values in memory of all
---@return string
function M.show(plan, model, opts)
  return require("accelerate.parallel.sharded.table").show(plan, model, opts)
end

return M
