--- DeepSpeed's JSON: accelerate.DeepSpeedPlugin, with the plan and the objects that it describes.
local accelerate = require "accelerate"
local json = require "accelerate.utils.json"
local notice = require "accelerate.messages.notice"
local objects = require "accelerate.accelerator.deepspeed.objects"
local plans = require "accelerate.config.deepspeed.plan"

notice.here = function() end -- keys without effect

local model = accelerate.nn.Linear(2, 2)

-- What the blocks describe is made, or a reason is given.
local function use(plugin)
  plans.from_deepspeed(plugin, { num_processes = 2, device = "cpu" }).units(model)
  local config = plugin.deepspeed_config
  local optimizer, why
  if config.optimizer then optimizer, why = objects.optimizer(config.optimizer, model:parameters()) end
  if why and #why < 10 then error("the reason is '" .. why .. "'", 0) end
  if optimizer and config.scheduler then objects.schedule(config.scheduler, optimizer) end
end

return {
  ending = ".json",
  read = function(path)
    local plugin = accelerate.DeepSpeedPlugin { hf_ds_config = path }
    plugin.deepspeed_config.steps_per_print = nil
    local config = require("accelerate.utils.copy")(plugin.deepspeed_config)
    use(plugin)
    return config
  end,
  write = function(value, path)
    local fine, text = pcall(json.encode, value, 2)
    if not fine then return false end -- a number that is not finite
    local f = assert(io.open(path, "wb"))
    f:write(text)
    f:close()
  end,
}
