--- The questions of `accel-run config` about sharded training: FSDP, and how the ranks are divided.
local menu = require "accelerate.commands.menu"

local M = {}

local STRATEGIES = { "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2" }
local POLICIES = { "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP" }
local STATE_DICTS = { { "FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT" },
  { "SHARDED_STATE_DICT", "FULL_STATE_DICT" } }

local function choose(question, choices, default) return choices[menu.choose(question, choices, default)] end

local function ask_units(fsdp)
  fsdp.fsdp_auto_wrap_policy = choose("How should the modules that are gathered together be chosen?",
    POLICIES, 1)
  if fsdp.fsdp_auto_wrap_policy == "TRANSFORMER_BASED_WRAP" then
    if not menu.confirm("By the classes that the model itself names (_no_split_modules)?", true) then
      fsdp.fsdp_transformer_layer_cls_to_wrap =
        menu.ask "Which classes, divided by commas (BertLayer,T5Block)?"
    end
  elseif fsdp.fsdp_auto_wrap_policy == "SIZE_BASED_WRAP" then
    fsdp.fsdp_min_num_params = menu.ask("From how many parameters on?", 100000000, menu.integer(1, 2 ^ 53))
  end
end

local function ask_parallelism(config)
  local function size(question, default, most)
    return menu.ask(question, default, menu.integer(1, most))
  end
  local copies = size("How many copies of the model should there be?", 1, config.num_processes)
  config.parallelism_config = {
    parallelism_config_dp_replicate_size = copies,
    parallelism_config_dp_shard_size = size("Over how many ranks should each copy be cut?",
      math.max(math.floor(config.num_processes / copies), 1), config.num_processes),
  }
end

--- Asks whether models are cut over the ranks, and how; fills fsdp_config and parallelism_config.
---@param config table with num_processes; changed in place
function M.ask(config)
  if not menu.confirm("Should models be cut over the ranks (FullyShardedDataParallel)?", false) then
    return
  end
  local fsdp = {}
  config.distributed_type, config.fsdp_config = "FSDP", fsdp
  fsdp.fsdp_version = menu.choose("Which version of FSDP?", { "1", "2" }, 2)
  if fsdp.fsdp_version == 1 then
    fsdp.fsdp_reshard_after_forward = choose("What should be cut?", STRATEGIES, 1)
  else
    fsdp.fsdp_reshard_after_forward =
      menu.confirm("Should values be released after a unit's forward, and gathered again in backward?", true)
  end
  fsdp.fsdp_offload_params =
    menu.confirm("Should values, gradients and optimizer states be kept in host memory?", false)
  ask_units(fsdp)
  fsdp.fsdp_state_dict_type = choose("How should checkpoints be written?", STATE_DICTS[fsdp.fsdp_version], 1)
  fsdp.fsdp_cpu_ram_efficient_loading =
    menu.confirm("Should checkpoints be loaded so that no rank holds a whole one?", true)
  if fsdp.fsdp_version == 1 then fsdp.fsdp_sync_module_states = true end
  fsdp.fsdp_activation_checkpointing =
    menu.confirm("Should activations be computed again in backward, to save memory?", false)
  if fsdp.fsdp_version == 2 and menu.confirm("Should there be several copies of the model?", false) then
    ask_parallelism(config)
  end
end

return M
