--- Where buffers of a plan with offload rest: in files of a folder, or in host memory
--- (host/place.h).
local TableOptimizer = require "accelerate.optim.tables"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local KINDS = { "values", "gradients", "states" }

-- Folder -> the core's object. A rank has one file in a folder, for all models.
local known = setmetatable({}, { __mode = "v" })

--- Returns whether a plan has buffers that rest elsewhere than in the memory that computes.
---@param plan accelerate.ShardingPlan
---@return boolean
function M.applies(plan)
  for _, kind in ipairs(KINDS) do
    if plan.offload[kind] then return true end
  end
  return false
end

--- Returns whether values or gradients of a device rest in host memory.
---@param plan accelerate.ShardingPlan?
---@return boolean
function M.on_host(plan)
  return plan ~= nil and (plan.offload.values == "cpu" or plan.offload.gradients == "cpu")
end

--- Raises for kinds of offload that are not there.
---@param plan accelerate.ShardingPlan
---@param device string that computes
function M.check(plan, device)
  for _, kind in ipairs(KINDS) do
    local to = plan.offload[kind]
    if to == "disk" and device ~= "cpu" then
      fail("prepare: %s requests offload of %s to files from %s, which is not there yet: files are for " ..
        "models " ..
        "on the CPU, host memory for those on a device", plan.name, kind, device)
    end
    if to == "cpu" and kind ~= "states" and plan[kind] ~= "cut" then
      fail("prepare: %s keeps whole %s on each rank, and offload to host memory takes buffers that are cut",
        plan.name,
        kind)
    end
  end
end

--- Raises for an optimizer that keeps its states itself, where the plan has them elsewhere.
---@param plan accelerate.ShardingPlan?
---@param optimizer accelerate.optim.Optimizer
function M.check_optimizer(plan, optimizer)
  if not (plan and plan.offload.states and class.is(optimizer, TableOptimizer)) then return end
  fail("prepare_optimizer: %s keeps its states itself, and %s has offload of states to %s: " ..
    "use an optimizer that steps in the core, such as AdamW, or leave the offload of states out",
    optimizer.__name, plan.name, plan.offload.states)
end

local function place_of(plan)
  local folder = plan.offload.path
  if not folder then return core.place() end
  if not known[folder] then
    local made, why = fs.make_dirs(folder)
    if not made then fail("prepare: %s: offload: %s", plan.name, why) end
    known[folder] = core.place(folder)
  end
  return known[folder]
end

--- Decides where the buffers of a layout rest.
---@param plan accelerate.ShardingPlan
---@param flat accelerate.Flat
---@param cut boolean whether the layout is going to be cut over ranks
function M.rest(plan, flat, cut)
  if not M.applies(plan) then return end
  local offload = plan.offload
  flat.layout:rest_in(place_of(plan), offload.values ~= nil, offload.gradients ~= nil, offload.states ~= nil,
    cut)
  flat.away = offload.path ~= nil
end

return M
