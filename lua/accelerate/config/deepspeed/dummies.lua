--- DummyOptim and DummyScheduler: what stands in a script for the optimizer and the schedule of a
--- DeepSpeed configuration. prepare gives the real ones in their places.
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"

local M = {}

-- An object whose fields can be read; `more` are the options that the class has no name for.
local function define(name, fields)
  local get = {}
  for _, field in ipairs(fields) do get[field] = function(self) return self._values[field] end end
  return properties.define(name, { get = get, tostring = function() return name end })
end

-- The options of `given` by the schema, and the others as they are.
local function read(where, given, schema)
  if given ~= nil and (type(given) ~= "table" or getmetatable(given) ~= nil) then
    options.fail("%s: options must be a table, got %s", where, options.show(given))
  end
  local own, kwargs = {}, {}
  for key, value in pairs(given or {}) do
    if schema[key] then own[key] = value else kwargs[key] = value end
  end
  own = options.check(where, own, schema)
  own.kwargs = kwargs
  return own
end

---@class accelerate.DummyOptim
---@field params accelerate.Tensor[]|table[] as given
---@field lr number
---@field weight_decay number
---@field kwargs table the other options
local Optim = define("DummyOptim", { "params", "lr", "weight_decay", "kwargs" })
---@class accelerate.DummyScheduler
---@field optimizer table as given
---@field total_num_steps integer? of all ranks together
---@field warmup_num_steps integer
---@field lr_scheduler_callable function? makes the schedule, from the optimizer
---@field kwargs table the other options
local Scheduler = define("DummyScheduler",
  { "optimizer", "total_num_steps", "warmup_num_steps", "lr_scheduler_callable", "kwargs" })

local OPTIM = { lr = { "number", default = 1e-3, min = 0 },
  weight_decay = { "number", default = 0, min = 0 } }
local SCHEDULER = {
  total_num_steps = { "integer", optional = true, min = 1 },
  warmup_num_steps = { "integer", default = 0, min = 0 },
  lr_scheduler_callable = { "function", optional = true },
}

--- Returns whether `value` is a DummyOptim.
function M.is_optim(value) return type(value) == "table" and getmetatable(value) == Optim end
--- Returns whether `value` is a DummyScheduler.
function M.is_scheduler(value) return type(value) == "table" and getmetatable(value) == Scheduler end

--- Stands for the optimizer that the DeepSpeed configuration's block `optimizer` describes. Its lr
--- and weight_decay fill 'auto' there, and so do its other options under their names.
---@param params accelerate.Tensor[]|table[] parameters, or groups of them
---@param opts { lr: number?, weight_decay: number? }? 1e-3, 0
---@return accelerate.DummyOptim
M.DummyOptim = properties.callable("DummyOptim", function(params, opts)
  local self = Optim.new()
  self._given = opts or {} -- what the script wrote, apart from the defaults
  self._values = read("DummyOptim", opts, OPTIM)
  self._values.params = options.value("DummyOptim", "argument 1 (params)", params, { "table" })
  return self
end, { _class = Optim })

--- Stands for the schedule that the DeepSpeed configuration's block `scheduler` describes, or that
--- lr_scheduler_callable(optimizer) makes. It moves with the optimizer's steps; its own step does
--- nothing.
---@param optimizer table the optimizer, or the DummyOptim
---@param opts { total_num_steps: integer?, warmup_num_steps: integer?, lr_scheduler_callable:
---  function? }? total_num_steps: of all ranks together, as Accelerate counts them; they fill
---  'auto'
---@return accelerate.DummyScheduler
M.DummyScheduler = properties.callable("DummyScheduler", function(optimizer, opts)
  local self = Scheduler.new()
  self._values = read("DummyScheduler", opts, SCHEDULER)
  self._values.optimizer = options.value("DummyScheduler", "argument 1 (optimizer)", optimizer, { "table" })
  return self
end, { _class = Scheduler })

--- Raises for objects that only a DeepSpeed configuration can replace.
---@param where string
---@param objects any[]
---@param n integer
function M.refuse(where, objects, n)
  for i = 1, n do
    if M.is_optim(objects[i]) or M.is_scheduler(objects[i]) then
      options.fail(
        "%s: argument %d is a %s, which stands for a block of a DeepSpeed configuration, and the " ..
        "Accelerator has no deepspeed_plugin; give it one, or give %s the object itself", where, i,
        tostring(objects[i]), where)
    end
  end
end

return M
