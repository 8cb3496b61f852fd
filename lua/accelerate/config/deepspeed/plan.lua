--- The sharding plan of a DeepSpeed configuration.
local check = require "accelerate.config.deepspeed.check"
local class = require "accelerate.utils.class"
local lists = require "accelerate.utils.lists"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local plans = require "accelerate.parallel.plan"

local fail = options.fail

local M = {}

-- ---- units

local CONTAINERS = lists.set { "ModuleList", "ModuleDict", "Sequential" }

-- The classes of a model's modules, by name.
local function classes_of(model)
  local names = {}
  for _, module in ipairs(model:modules()) do names[class.of(module).__name] = true end
  return names
end

-- The names of the classes that are gathered as one: those of the plugin, which the model must
-- have, and those of the configuration's leaf_module, which it may have.
local function leaf_classes(plugin, model)
  local wanted, there = {}, classes_of(model)
  for name in (plugin.transformer_moe_cls_names or ""):gmatch "[^,%s]+" do
    if not there[name] then
      fail("DeepSpeedPlugin: transformer_moe_cls_names: the model (%s) has no module of the class '%s'%s",
        class.of(model).__name, name,
        options.hint(name, require("accelerate.utils.ordered").sorted_keys(there)))
    end
    wanted[name] = true
  end
  for _, name in ipairs(plugin:get_value("zero_optimization.leaf_module.classes", {})) do
    wanted[name] = true
  end
  return wanted
end

-- Whether a module is one of the configuration's leaf_module, by its name.
local function is_leaf_name(plugin, name)
  for _, wanted in ipairs(plugin:get_value("zero_optimization.leaf_module.names", {})) do
    if name == wanted then return true end
  end
  for _, suffix in ipairs(plugin:get_value("zero_optimization.leaf_module.name_suffixes", {})) do
    if name:sub(-#suffix) == suffix then return true end
  end
  return false
end

-- The classes that the model names as its blocks.
local function blocks_of(model)
  for _, module in ipairs(model:modules()) do
    local names = module._no_split_modules
    if type(names) == "table" then return lists.set(names) end
  end
end

--- Returns the units of a model: its blocks (_no_split_modules), or the entries of its lists and
--- Sequentials, or else its children; and what the configuration says is gathered as one.
---@param plugin accelerate.DeepSpeedPlugin
---@param model accelerate.nn.Module
---@return accelerate.nn.Module[]
function M.units(plugin, model)
  local leaves, blocks, chosen = leaf_classes(plugin, model), blocks_of(model), {}
  local function visit(module, name, in_list)
    local kind = class.of(module).__name
    local leaf = leaves[kind] or is_leaf_name(plugin, name)
    local unit = leaf or blocks and blocks[kind] or not blocks and in_list and not CONTAINERS[kind]
    if unit and module ~= model and #module:parameters() > 0 then
      chosen[#chosen + 1] = module
      return
    end
    for child, inner in module:named_children() do
      visit(inner, name == "" and child or name .. "." .. child, CONTAINERS[kind] or false)
    end
  end
  visit(model, "", false)
  if #chosen > 0 then return chosen end
  for _, child in ipairs(model:children()) do
    if #child:parameters() > 0 then chosen[#chosen + 1] = child end
  end
  return chosen
end

-- ---- the plan

local ZERO = "zero_optimization."

-- The home of a block: nil, "cpu" or "disk"; the folder of files; why nothing is offloaded.
local function home(plugin, block, on)
  local device = plugin:get_value(ZERO .. block .. ".device", "none")
  if device == "none" then return nil end
  if device == "cpu" then
    local to, note = plans.home_of("cpu", on, ZERO .. block .. ".device = 'cpu'")
    return to, nil, note
  end
  local path = plugin:get_value(ZERO .. block .. ".nvme_path")
  if path == nil or path == "none" then
    fail("DeepSpeedPlugin: %s (%s): %s%s.device = 'nvme' needs a folder: %s%s.nvme_path, or " ..
      "%s_nvme_path of the plugin", plugin.hf_ds_config._name,
      plugin:_origin(ZERO .. block .. ".device"), ZERO, block, ZERO, block, block)
  end
  return "disk", path
end

-- Where the gradients rest: with the states that they are stepped with, where they are cut.
local function gradients_with(states, stage) return stage > 1 and states or nil end

local function offload(plugin, stage, on)
  local found = {}
  for block, least in pairs { offload_optimizer = 1, offload_param = 3 } do
    local device = plugin:get_value(ZERO .. block .. ".device", "none")
    if device ~= "none" and stage < least then
      notice.main_once("DeepSpeedPlugin: %s%s has no effect with stage %d: it is for stage %d and above",
        ZERO,
        block, stage, least)
    else
      local note
      found[block], found[block .. "_path"], note = home(plugin, block, on)
      found.note = note or found.note
    end
  end
  local states, values = found.offload_optimizer_path, found.offload_param_path
  if states and values and states ~= values then
    fail("DeepSpeedPlugin: %soffload_optimizer.nvme_path = %s (%s) and %soffload_param.nvme_path = %s " ..
      "(%s): files " ..
      "stand in one folder; give the same to both", ZERO, states,
      plugin:_origin(ZERO .. "offload_optimizer.nvme_path"), ZERO, values,
      plugin:_origin(ZERO .. "offload_param.nvme_path"))
  end
  if found.offload_param == "cpu" and not found.offload_optimizer then
    notice.main_once(
      "DeepSpeedPlugin: %soffload_param = cpu: optimizer states rest in host memory, too, for " ..
      "the optimizer steps where the values are", ZERO)
    found.offload_optimizer = "cpu"
  end
  return { states = found.offload_optimizer, values = found.offload_param,
    gradients = gradients_with(found.offload_optimizer, stage), path = states or values, note = found.note }
end

local FROM = { name = "zero_optimization.stage", offload = "zero_optimization.offload_optimizer.device",
  reduce_dtype = "communication_data_type" }

-- The type that gradients are reduced in; nil: their own. Whole gradients are reduced in float32.
local function reduced(plugin, stage)
  local dtype = check.DTYPES[plugin:get_value "communication_data_type"]
  if stage > 1 or dtype == nil or dtype == "float32" then return dtype end
  fail("DeepSpeedPlugin: communication_data_type = %s (%s) is for stages 2 and 3, which cut gradients; " ..
    "with stage " ..
    "%d leave it out%s", plugin:get_value "communication_data_type", plugin:_origin "communication_data_type",
    stage,
    stage == 0 and (", or give the Accelerator DistributedDataParallelKwargs { comm_hook = '%s' }"):format(
      dtype == "float16" and "fp16" or "bf16") or "")
end

--- Returns the plan of a plugin.
---@param plugin accelerate.DeepSpeedPlugin
---@param context { num_processes: integer, device: string }
---@return accelerate.ShardingPlan
function M.from_deepspeed(plugin, context)
  local stage, origin = plugin.zero_stage, {}
  for field, key in pairs(FROM) do origin[field] = plugin:_origin(key) end
  local ranks = context.num_processes
  return plans.new("ZeRO-" .. stage, {
    replicate = stage == 0 and ranks or 1, shard = stage == 0 and 1 or ranks,
    units = function(model) return M.units(plugin, model) end,
    reduce_dtype = reduced(plugin, stage), state_dict_type = "sharded",
    offload = offload(plugin, stage, context.device), origin = origin,
  }, ranks)
end

return M
