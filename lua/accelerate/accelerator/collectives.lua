--- What an Accelerator exchanges between ranks: gather, reduce, padding, triggers.  Methods of
--- accelerate.Accelerator.
local core = require "accelerate.core"
local nested = require "accelerate.utils.nested"
local operations = require "accelerate.collectives.operations"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

---@class accelerate.Accelerator
local Accelerator = {}

-- Refuses a second value; results of two would be lost without a word.
local function refuse_more(where, second)
  if not core.is_tensor(second) and not (type(second) == "table" and second[1] ~= nil) then return end
  fail("%s: takes one value, and argument 2 is %s; give both in a list: p, " ..
    "y = unpack(accelerator:%s { p, y })", where, options.show(second), where)
end

--- Joins tensors of all ranks along dim 1, in rank order, on every rank; see utils.gather.  One
--- process: `data` itself.
---@generic T
---@param data T nested tensors; a leaf of another kind is an error that names its place
---@return T
function Accelerator:gather(data, ...)
  refuse_more("gather", ...)
  return operations.gather(data)
end

local METRICS = { use_gather_object = { "boolean", default = false } }

--- Logs that the length of a loader is unknown, so nothing can be cut.
local function log_unknown()
  require("accelerate.logging").get_logger("accelerate"):info(
    "gather_for_metrics: the loader's length is not known, nothing is cut; " ..
    "drop what fills the last batch yourself")
end

local function length_of(value)
  if core.is_tensor(value) then return value:dim() > 0 and value:size(1) or nil end
  return nested.is_container(value) and ordered.is_list(value) and #value or nil
end

-- The number of items that each rank has in the last round; nil when unknown.
local function share_of(remainder)
  local ranks, active = state.PartialState().num_processes, gradient_state.active_dataloader
  if require("accelerate.data_loader.prepare").is_dispatched(active) then
    return math.ceil(remainder / ranks)
  end
  return active and active.total_batch_size and active.total_batch_size / ranks
end

-- Whether the entries of a rank's list are columns: lists or tensors with an entry for each item.
local function are_columns(data, share)
  if #data == share then return false end
  for _, column in ipairs(data) do
    if length_of(column) ~= share then return false end
  end
  return #data > 0 and share ~= nil
end

local function first_of(value, count)
  if core.is_tensor(value) then return value:narrow(1, 1, count) end
  local cut = {}
  for i = 1, math.min(count, #value) do cut[i] = value[i] end
  return cut
end

-- Cuts gathered objects to the real items. Of columns, rank after rank, each rank's are cut.
local function cut_objects(data, gathered, remainder)
  if state.PartialState().num_processes == 1 then return gathered end -- nothing was added
  if not are_columns(data, share_of(remainder)) then return first_of(gathered, remainder) end
  local cut = {}
  for i, column in ipairs(gathered) do
    local rank, length = math.floor((i - 1) / #data), length_of(column)
    cut[i] = first_of(column, math.max(0, math.min(length, remainder - rank * length)))
  end
  return cut
end

--- Gathers values of all ranks. On a loader's last batch (only there) it cuts the samples that were
--- added to fill the batch, so that every sample counts once. Values that are not tensors are
--- gathered as objects, into one flat list. Where its entries are no items but columns of them,
--- such as { masks, classes }, each is cut inside. If a loader's length is not known
--- (GradientState().remainder is -1) nothing is cut, and ACCELERATE_LOG_LEVEL=info reports it.
---@param data any nested tensors, or a list of booleans, numbers, strings, tensors and tables of
---  them
---@param opts { use_gather_object: boolean? }? use_gather_object: gather tensors as objects too,
---  which may differ in shape
---@return any
function Accelerator:gather_for_metrics(data, opts)
  refuse_more("gather_for_metrics", opts)
  opts = options.check("gather_for_metrics", opts, METRICS)
  local objects = opts.use_gather_object or not operations.all_tensors(data)
  if objects and not (nested.is_container(data) and ordered.is_list(data)) then
    local wanted, got = "nested tensors, or one list of objects", options.show(data)
    if opts.use_gather_object then wanted = "one list of objects, which use_gather_object = true asks for" end
    if nested.is_container(data) then
      got = (opts.use_gather_object and "a map" or "a map with other values than tensors in it") ..
        "; gather each of its entries by itself"
    end
    fail("gather_for_metrics: expected %s, got %s", wanted, got)
  end
  local gathered = objects and operations.gather_object(data) or operations.gather(data)
  if not gradient_state.end_of_dataloader then return gathered end
  local remainder = gradient_state.remainder
  if remainder == -1 then log_unknown() end
  if remainder <= 0 then return gathered end
  if objects then return cut_objects(data, gathered, remainder) end
  return operations.recursively_apply(function(t)
    if t:dim() == 0 or t:size(1) <= remainder then return t end
    return t:narrow(1, 1, remainder)
  end, gathered)
end

--- Returns tensors of all ranks combined. The input does not change.
---@generic T
---@param data T nested tensors
---@param reduction ("sum"|"mean"|"max"|"min"|"prod"|"none")? default "sum"
---@param opts { scale: number? }? scale: factor for the result (default 1)
---@return T
function Accelerator:reduce(data, reduction, opts) return operations.reduce_sum(data, reduction, opts) end

--- Pads tensors to the longest rank's size; see utils.pad_across_processes.
---@generic T
---@param data T nested tensors
---@param opts { dim: integer?, pad_index: number|boolean|nil, pad_first: boolean? }?
---@return T
function Accelerator:pad_across_processes(data, opts) return operations.pad_across_processes(data, opts) end

--- Sets this rank's flag. `check_trigger` on all ranks sees it.
function Accelerator:set_trigger() self._trigger = true end

--- Returns true on every rank if any rank called set_trigger since the last check, and clears the
--- flags. All ranks must call it; each waits for the others.
---@return boolean
function Accelerator:check_trigger()
  local raised = core.tensor({ self._trigger and 1 or 0 }, { dtype = "int64" })
  if self._ranks > 1 then core.dist.all_reduce(raised, "sum") end
  local any = raised:totable()[1] > 0
  if any then self._trigger = false end
  return any
end

return Accelerator
