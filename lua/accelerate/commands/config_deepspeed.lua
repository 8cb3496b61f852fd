--- The questions of `accel-run config` about DeepSpeed.
local menu = require "accelerate.commands.menu"

local M = {}

local STAGES = { "0: nothing", "1: optimizer states", "2: states and gradients",
  "3: states, gradients and values" }
local DEVICES = { "none", "cpu", "nvme" }

local function ask_offload(own)
  for _, what in ipairs { { "offload_optimizer", "optimizer states" }, { "offload_param", "values" } } do
    local name, text = what[1], what[2]
    if name == "offload_optimizer" or own.zero_stage == 3 then
      local device = DEVICES[menu.choose(
        ("Where should %s be kept, instead of beside the computation?"):format(text),
        DEVICES, 1)]
      own[name .. "_device"] = device
      if device == "nvme" then own[name .. "_nvme_path"] = menu.ask "In which folder?" end
    end
  end
end

local function ask_training(own)
  own.gradient_accumulation_steps = menu.ask("How many batches between two optimizer steps?", 1,
    menu.integer(1, 2 ^ 31))
  if menu.confirm("Should gradients be clipped?", false) then
    own.gradient_clipping = menu.ask("To which norm?", 1, function(text)
      local norm = tonumber(text)
      if norm and norm > 0 and norm < math.huge then return norm end
      return nil, "a number above 0"
    end)
  end
end

local function ask_machines(own)
  local launchers = { "standard", "openmpi" }
  own.deepspeed_multinode_launcher = launchers[menu.choose("Who starts the machines?",
    { "standard: accel-run is started on each", "openmpi: mpirun" }, 1)]
  if menu.confirm("Is there a hostfile (NAME slots=RANKS, a line for each machine)?",
    own.deepspeed_multinode_launcher == "openmpi") then
    own.deepspeed_hostfile = menu.ask "Which file?"
  end
end

--- Asks whether to train under a DeepSpeed configuration, and which; fills deepspeed_config.
---@param config table with num_machines; changed in place
function M.ask(config)
  if not menu.confirm("Should training follow a DeepSpeed configuration?", false) then return end
  local own = {}
  config.distributed_type, config.deepspeed_config = "DEEPSPEED", own
  if menu.confirm("Is there a JSON file of DeepSpeed?", false) then
    own.deepspeed_config_file = menu.ask "Which file?"
    config.mixed_precision = nil -- it stands in that file
  else
    own.zero_stage = menu.choose("What should be cut over the ranks (ZeRO's stage)?", STAGES, 3) - 1
    if own.zero_stage > 0 then ask_offload(own) end
    ask_training(own)
  end
  if config.num_machines > 1 then ask_machines(own) end
end

return M
