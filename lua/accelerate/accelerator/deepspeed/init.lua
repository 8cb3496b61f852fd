--- An Accelerator under a DeepSpeed configuration: which plugins it has, and its loss scaler.
--- prepare.lua has what prepare makes of the configuration, step.lua what the engine does in a
--- step.
local env = require "accelerate.utils.environment"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local plugins = require "accelerate.config.deepspeed.plugin"

local fail = options.fail

local M = {}

-- What the argument is: a plugin, a map of plugins by name, or the fields of a plugin.
local function read_plugins(argument, given)
  if plugins.is(given) then return given, { given } end
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    fail("Accelerator: %s must be a DeepSpeedPlugin, or a map of them by name, got %s", argument,
      options.show(given))
  end
  local list = {}
  for _, name in ipairs(ordered.sorted_keys(given)) do
    if plugins.is(given[name]) then list[#list + 1] = given[name] end
  end
  if #list == 0 then
    local plugin = plugins.DeepSpeedPlugin(given)
    return plugin, { plugin }
  end
  for _, name in ipairs(ordered.sorted_keys(given)) do
    if type(name) ~= "string" or not plugins.is(given[name]) then
      fail("Accelerator: %s: entry %s of the map must be a DeepSpeedPlugin by name, got %s", argument,
        tostring(name), options.show(given[name]))
    end
  end
  table.sort(list, function(a, b) return a._order < b._order end)
  return given, list
end

local PRECISIONS = { no = true, fp16 = true, bf16 = true }

-- The type that all plugins compute in, with the Accelerator's mixed_precision filled in.
local function precision_of(list, wanted)
  local first
  for _, plugin in ipairs(list) do
    plugin:set_mixed_precision(wanted)
    local own = plugin:_mixed_precision()
    first = first or own
    if own ~= first then
      fail("Accelerator: the DeepSpeed configurations compute in different types, '%s' (%s) and '%s' " ..
        "(%s), and an Accelerator has one", first, list[1].hf_ds_config._name, own, plugin.hf_ds_config._name)
    end
  end
  return first
end

--- Returns the plugins that the arguments give, or one that the environment describes, and the type
--- that they compute in. Of several by name the one that was made first is in force.
---@param o table the Accelerator's arguments
---@param argument "deepspeed_plugin"|"deepspeed_plugins"|nil the one that is given
---@return { deepspeed_plugins: any, deepspeed_plugin: accelerate.DeepSpeedPlugin } engines
---@return string mixed_precision
function M.engines(o, argument)
  local given = {}
  if argument then given = o[argument] end
  local all, list = read_plugins(argument, given)
  local wanted = o.mixed_precision or env.text("ACCELERATE_MIXED_PRECISION", "no"):lower()
  if wanted == "fp8" then
    fail("Accelerator: mixed_precision = 'fp8': under DeepSpeed it is not there; use 'bf16'")
  end
  if PRECISIONS[wanted] then wanted = precision_of(list, wanted) end
  list[1]:_set_selected(true)
  return { deepspeed_plugins = all, deepspeed_plugin = list[1] }, wanted
end

--- Returns the loss scaler of the block fp16.
---@param plugin accelerate.DeepSpeedPlugin
---@param handler accelerate.GradScalerKwargs? refused: there are two then
---@return accelerate.GradScaler
function M.scaler(plugin, handler)
  if handler then
    fail("Accelerator: kwargs_handlers: GradScalerKwargs: under DeepSpeed the block fp16 (%s) " ..
      "has the loss scale",
      plugin.hf_ds_config:_where "fp16")
  end
  local function value(key, default) return plugin:get_value("fp16." .. key, default) end
  local static = value("loss_scale", 0)
  local scaler = require("accelerate.precision.grad_scaler").GradScaler {
    init_scale = static > 0 and static or 2 ^ value("initial_scale_power", 16),
    growth_interval = value("loss_scale_window", 1000) }
  scaler:_follow { static = static > 0, hysteresis = value("hysteresis", 2),
    min_scale = value("min_loss_scale", 1), consecutive = value("consecutive_hysteresis", false) }
  return scaler
end

return M
