--- What an Accelerator exchanges between ranks: gather, reduce, padding, triggers.  Methods of accelerate.Accelerator.
local core = require "accelerate.core"
local operations = require "accelerate.utils.operations"
local options = require "accelerate.utils.options"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

---@class accelerate.Accelerator
local Accelerator = {}

--- Joins tensors of all ranks along dim 1, in rank order; see utils.gather.
function Accelerator:gather(data) return operations.gather(data) end

--- Gathers, and on a loader's last batch cuts what was added to fill it.  Values that are no tensors are gathered as
--- objects.
---@param data any nested tensors, or a list of any values
---@param opts { use_gather_object: boolean? }?
function Accelerator:gather_for_metrics(data, opts)
  opts = options.check("gather_for_metrics", opts, { use_gather_object = { "boolean", default = false } })
  local objects = opts.use_gather_object or not operations.all_tensors(data)
  local gathered = objects and operations.gather_object(data) or operations.gather(data)
  local remainder = gradient_state.remainder
  if not gradient_state.end_of_dataloader or remainder <= 0 then return gathered end
  if objects then
    local cut = {}
    for i = 1, math.min(remainder, #gathered) do cut[i] = gathered[i] end
    return cut
  end
  return operations.recursively_apply(function(t)
    if t:dim() == 0 or t:size(1) <= remainder then return t end
    return t:narrow(1, 1, remainder)
  end, gathered)
end

--- Combines tensors of all ranks; the input is left alone.
---@param reduction ("sum"|"mean"|"max"|"min"|"prod"|"none")? default "sum"
function Accelerator:reduce(data, reduction, scale)
  if type(reduction) == "table" then
    local opts = options.check("reduce", reduction, { reduction = { "string", default = "sum" }, scale = { "number", optional = true } })
    reduction, scale = opts.reduction, opts.scale
  end
  return operations.reduce(data, reduction or "sum", scale)
end

--- Pads tensors to the longest rank's size; see utils.pad_across_processes.
---@param opts { dim: integer?, pad_index: number?, pad_first: boolean? }?
function Accelerator:pad_across_processes(data, opts) return operations.pad_across_processes(data, opts) end

--- Raises this rank's flag; `check_trigger` on all ranks sees it.
function Accelerator:set_trigger() self._trigger = true end

--- True on every rank when any rank called set_trigger since the last check.  All ranks must call it.
---@return boolean
function Accelerator:check_trigger()
  local raised = core.tensor({ self._trigger and 1 or 0 }, { dtype = "int64" })
  if self._ranks > 1 then core.dist.all_reduce(raised, "sum") end
  local any = raised:totable()[1] > 0
  if any then self._trigger = false end
  return any
end

return Accelerator
