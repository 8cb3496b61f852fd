--- What a sharding plan asks of a model's forward, whether or not its values are cut: units that
--- compute their activations again in backward, and the types of computing and of outputs.
local autocast = require("accelerate.precision.autocast").autocast
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local operations = require "accelerate.collectives.operations"
local state = require "accelerate.state"

local M = {}

local HALF = { bfloat16 = true, float16 = true }

-- Models that were changed.
local done = setmetatable({}, { __mode = "k" })

local function recompute(model, plan)
  local units = plan.units(model)
  if #units == 0 then
    notice.main_once("%s: activation_checkpointing has no effect: no module of %s is a unit of its own",
      plan.name, model.__name)
  end
  for _, unit in ipairs(units) do
    local forward = unit.forward
    unit.forward = function(...)
      if not core.is_grad_enabled() then return forward(...) end
      return nn.utils.checkpoint(forward, ...)
    end
  end
end

local function is_float(value) return core.is_tensor(value) and core._is_float(value) end

local function cast_outputs(dtype, ...)
  local results = { ... }
  for i = 1, select("#", ...) do
    results[i] = operations.recursively_apply(function(t) return t:to(dtype) end, results[i], is_float)
  end
  return unpack(results, 1, select("#", ...))
end

-- Mixed precision of the Accelerator casts already; it wins.
local function set_types(model, plan)
  local compute = HALF[plan.param_dtype] and not state.lower_type() and plan.param_dtype
  local output = plan.output_dtype
  if not compute and not output then return end
  local forward = model.forward
  local function run(...)
    if compute then return autocast({ dtype = compute }, forward, ...) end
    return forward(...)
  end
  model.forward = output and function(...) return cast_outputs(output, run(...)) end or run
end

--- Changes a model's forward as a plan says. A second call for one model does nothing.
---@param model accelerate.nn.Module
---@param plan accelerate.ShardingPlan?
function M.apply(model, plan)
  if not plan or done[model] then return end
  done[model] = true
  if plan.activation_checkpointing then recompute(model, plan) end
  set_types(model, plan)
end

return M
