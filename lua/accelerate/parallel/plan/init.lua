--- Sharding plans: where a prepared model's values, gradients and optimizer states rest, over how
--- many ranks they are cut, and which modules are acquired and reduced together. The plugins of
--- Accelerate, its ParallelismConfig and DeepSpeed's JSON become plans (config/sharding.lua,
--- config/deepspeed/plan.lua); the engine reads nothing else.
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"

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

--- Returns the plan as a table in text: each setting with its origin, the bytes that a rank has at
--- rest and while it computes, and what a step moves.
---@param plan accelerate.ShardingPlan
---@param model accelerate.nn.Module
---@param opts { optimizer: accelerate.optim.Optimizer?, shared: boolean? }? optimizer: whose states
---  are counted; default: two states of each parameter's size, as Adam keeps them; shared: whether
---  the ranks of a prepared model have its values in memory of all
---@return string
function M.show(plan, model, opts)
  return require("accelerate.parallel.plan.table").show(plan, model, opts)
end

return M
