--- GradientState: the state of gradient accumulation, one object for the process.
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local properties = require "accelerate.utils.properties"

local fail = options.fail

local M = {}

local PLUGIN = { num_steps = 1, sync_with_dataloader = true, sync_each_batch = false }

-- loaders[1 .. count]: running passes, the innermost last. Weak, so that a dropped loader leaves
-- the list.
local gradient = { sync = true, xla_synced = false, plugin = properties.merge(PLUGIN, {}),
  loaders = setmetatable({}, { __mode = "v" }), count = 0 }

local function active_loader()
  while gradient.count > 0 do
    local loader = gradient.loaders[gradient.count]
    if loader then return loader end
    gradient.count = gradient.count - 1
  end
end

local function living_loaders()
  local list = {}
  for i = 1, gradient.count do list[#list + 1] = gradient.loaders[i] end
  return list
end

local function set_loaders(list)
  for i = 1, math.max(gradient.count, #list) do gradient.loaders[i] = list[i] end
  gradient.count = #list
end

--- Returns what differs from the plugin's defaults.
local function plugin_kwargs()
  local plugin, kwargs = gradient.plugin, {}
  kwargs.num_steps = plugin.num_steps
  if plugin.adjust_scheduler == false then kwargs.adjust_scheduler = false end
  if not plugin.sync_with_dataloader then kwargs.sync_with_dataloader = false end
  if plugin.sync_each_batch then kwargs.sync_each_batch = true end
  return kwargs
end

local function list_of(map)
  local parts = {}
  for key, value in ordered.pairs(map) do parts[#parts + 1] = ("%s = %s"):format(key, tostring(value)) end
  return #parts == 0 and "{}" or "{ " .. table.concat(parts, ", ") .. " }"
end

---@class accelerate.GradientState
---@field sync_gradients boolean whether this batch's gradients are reduced and applied; may be set
---@field num_steps integer number of batches in a window
---@field adjust_scheduler boolean always false; the plugin's field has no effect in Accelerate
---  either
---@field sync_with_dataloader boolean whether a loader's last batch ends the window
---@field sync_each_batch boolean whether gradients are reduced after every batch
---@field active_dataloader table? the innermost loader whose batch is in use
---@field dataloader_references table[] all loaders that are being iterated over, the innermost last
---@field in_dataloader boolean whether a loader is active
---@field end_of_dataloader boolean true while the active loader's last batch is in use
---@field remainder integer number of real items in the active loader's last round; 0: all, -1:
---  unknown
---@field plugin_kwargs table what differs from the defaults of GradientAccumulationPlugin
---@field is_xla_gradients_synced boolean kept for scripts that set it
---@field initialized boolean always true
local Gradient = properties.define("GradientState", {
  get = {
    sync_gradients = function() return gradient.sync end,
    num_steps = function() return gradient.plugin.num_steps or 1 end,
    adjust_scheduler = function() return false end,
    sync_with_dataloader = function() return gradient.plugin.sync_with_dataloader end,
    sync_each_batch = function() return gradient.plugin.sync_each_batch end,
    active_dataloader = active_loader,
    dataloader_references = living_loaders,
    in_dataloader = function() return active_loader() ~= nil end,
    end_of_dataloader = function()
      local active = active_loader()
      return active ~= nil and active.end_of_dataloader
    end,
    remainder = function()
      local active = active_loader()
      return active and active.remainder or -1
    end,
    is_xla_gradients_synced = function() return gradient.xla_synced end,
    plugin_kwargs = plugin_kwargs,
    initialized = function() return true end,
  },
  set = {
    sync_gradients = function(_, value)
      if type(value) ~= "boolean" then
        fail("sync_gradients: expected a boolean, got %s", options.show(value))
      end
      gradient.sync = value
    end,
    is_xla_gradients_synced = function(_, value)
      gradient.xla_synced = options.value("GradientState", "is_xla_gradients_synced", value, { "boolean" })
    end,
  },
  methods = {
    _set_num_steps = function(_, steps)
      if type(steps) ~= "number" or steps % 1 ~= 0 or steps < 1 then
        fail("gradient_accumulation_steps: expected a whole number of at least 1, got %s",
          options.show(steps))
      end
      gradient.plugin.num_steps = steps
    end,
    _set_plugin = function(_, plugin) gradient.plugin = plugin end,
    --- Starts or continues a pass of `loader`. Inner passes that ended with `break` end here.
    _enter = function(_, loader)
      if active_loader() == loader then return end
      local list = {}
      for _, other in ipairs(living_loaders()) do
        if other == loader then break end
        list[#list + 1] = other
      end
      list[#list + 1] = loader
      set_loaders(list)
    end,
    _leave = function(_, loader)
      local kept = {}
      for _, other in ipairs(living_loaders()) do
        if other ~= loader then kept[#kept + 1] = other end
      end
      set_loaders(kept)
    end,
    _reset_state = function()
      gradient.sync, gradient.xla_synced, gradient.plugin = true, false, properties.merge(PLUGIN, {})
      set_loaders {}
    end,
  },
  tostring = function(self)
    return ("Sync Gradients: %s\nAt end of current dataloader: %s\nExtra samples added: %d\nGradient " ..
      "accumulation plugin: %s\n"):format(
      tostring(self.sync_gradients), tostring(self.end_of_dataloader), self.remainder,
      list_of(plugin_kwargs()))
  end,
})
local gradient_state = Gradient.new()

--- Returns the state of gradient accumulation, shared by all accelerators, optimizers, schedulers
--- and loaders.
---@param plugin accelerate.GradientAccumulationPlugin? settings of the windows from now on
---@return accelerate.GradientState
M.GradientState = properties.callable("GradientState", function(plugin)
  if plugin ~= nil then
    local Plugin = require("accelerate.config.dataclasses").GradientAccumulationPlugin
    if not require("accelerate.config.dataclasses").is(plugin, Plugin) then
      fail("GradientState: plugin must be a GradientAccumulationPlugin, got %s", options.show(plugin))
    end
    gradient_state:_set_plugin(plugin:to_dict())
  end
  return gradient_state
end, { _reset_state = function() gradient_state:_reset_state() end })

return M
