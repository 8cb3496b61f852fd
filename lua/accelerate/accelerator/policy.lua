--- What a sharding plan asks of a model's forward, whether or not its values are cut: units that
--- compute their activations again in backward, and the types of computing, inputs, outputs and
--- buffers.
local autocast = require("accelerate.precision.autocast").autocast
local checkpoint = require "accelerate.nn.utils.checkpoint"
local core = require "accelerate.core"
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
  for _, unit in ipairs(units) do checkpoint.module(unit, true) end
end

local function is_float(value) return core.is_tensor(value) and core._is_float(value) end

-- The same values with floating tensors of a type; nil: as they are.
local function in_type(dtype, ...)
  if not dtype then return ... end
  local values = { ... }
  for i = 1, select("#", ...) do
    values[i] = operations.recursively_apply(function(t) return t:to(dtype) end, values[i], is_float)
  end
  return unpack(values, 1, select("#", ...))
end

-- Casts a module's floating arguments and results; nil: not.
local function cast_around(module, arguments, results)
  if not arguments and not results then return end
  local forward = module.forward
  module.forward = function(...) return in_type(results, forward(in_type(arguments, ...))) end
end

-- What a model computes in. Mixed precision of the Accelerator casts already; it wins.
local function compute_in(model, dtype)
  if not HALF[dtype] or state.lower_type() then return end
  local forward = model.forward
  model.forward = function(...) return autocast({ dtype = dtype }, forward, ...) end
end

local function set_types(model, plan)
  compute_in(model, plan.param_dtype)
  local cast, output = plan.casts_inputs, plan.output_dtype
  for _, unit in ipairs(plan.units(model)) do
    cast_around(unit, cast == "units" and plan.param_dtype or nil, output)
  end
  cast_around(model, cast and plan.param_dtype, output)
end

-- Statistics stay in the type in which they are added up.
local function convert_buffers(model, dtype)
  for _, module in ipairs(model:modules()) do
    if not module.running_mean then
      for _, buffer in module:named_buffers { recurse = false } do
        if core._is_float(buffer) then buffer.data = buffer.data:to(dtype) end
      end
    end
  end
end

--- Changes a model's forward as a plan says. A second call for one model does nothing.
---@param model accelerate.nn.Module
---@param plan accelerate.ShardingPlan?
function M.apply(model, plan)
  if not plan or done[model] then return end
  done[model] = true
  if plan.activation_checkpointing then recompute(model, plan) end
  set_types(model, plan)
  if plan.buffer_dtype then convert_buffers(model, plan.buffer_dtype) end
end

return M
