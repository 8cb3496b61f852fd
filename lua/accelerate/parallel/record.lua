--- A prepared model on one rank: its flat buffers, and how its gradients are averaged over the
--- ranks.
---
--- `prepare` puts a model's parameters into one buffer for each dtype, and their gradients into a
--- second buffer of one layout with it (accelerate.parallel.flat), so that one all_reduce takes all
--- of them.
---
--- A gradient buffer ends with the presence: one number for each parameter, 1 where this rank has a
--- gradient. It travels in the all_reduce of the gradients, so ranks agree about parameters that
--- only some of them used. Such a parameter counts as zero on the other ranks; a parameter that no
--- rank used keeps no gradient. On GPUs reductions overlap with backward
--- (accelerate.parallel.replicated.buckets).
local agreement = require "accelerate.parallel.agreement"
local buckets = require "accelerate.parallel.replicated.buckets"
local comm_hooks = require "accelerate.parallel.replicated.comm_hooks"
local core = require "accelerate.core"
local flat_buffers = require "accelerate.parallel.flat"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"
local sharded = require "accelerate.parallel.sharded"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local numbered = 0  -- models on ranks so far; equal on all ranks, since preparing is collective

---@class accelerate.ModelRecord state of a prepared model
---@field flats accelerate.Flat[]
---@field no_sync_depth integer number of open no_sync scopes
---@field touched boolean a backward pass outside no_sync reached a parameter since the last
---  reduction; see M.is_touched
---@field mark integer number of gradients that had arrived when `touched` was last updated
---@field begun_at integer number of gradients that had arrived when the current backward pass began
---@field watched boolean whether to follow its backward passes: it has parameters to train, and
---  ranks or weights
---@field weight number sum of this rank's weights since the last reduction
---@field divisor number mean weight that this window's gradients are divided by; 0: not divided
---@field as_sums boolean whether that division was undone for another pass of the window
---@field number integer the model's number among those prepared on ranks, from 1; 0: it is this
---  rank's own
---@field has_buffers boolean
---@field local_only boolean inside LocalSGD: gradients stay on the rank for good
---@field hook table? communication hook that replaces all_reduce
---@field ddp { broadcast_buffers: boolean, static_graph: boolean, all_used: boolean, bucket:
---  integer? } from DistributedDataParallelKwargs; bucket: most bytes of one all_reduce
---@field buckets accelerate.GradientBucket[]? in the order of reduction; made at first use
---@field cut_of accelerate.Flat[]? the flats that the buckets were cut from
---@field launched integer number of buckets being reduced
---@field overlapping boolean whether full buckets of the current backward pass are reduced at once
---@field counting boolean static_graph: whether the current pass counts how often each parameter is
---  reached
---@field captured boolean? its backward passes are recorded (dynamo_backend = "cudagraphs")
---@field captures boolean? whether a recording may contain the current pass's reduction
---@field replays integer number of replayed backward passes
---@field reduced_at integer? how many gradients had arrived when a replay reduced them
---@field counted boolean? static_graph: whether a pass has counted
---@field plan accelerate.ShardingPlan? how its buffers are cut over ranks; nil: they are whole
---@field shards accelerate.Shards? the groups of ranks that they are cut over
---@field units accelerate.ShardedUnit[]?
---@field eight table<accelerate.Tensor, boolean>? which parameters are gathered in eight bits
---@field shared boolean? whether ranks have one copy of the parameters between them
---@field gathers boolean? whether some parameters are cut, and ranks have no copy of them
---@field delivers boolean? whether gradients are cut: every pass is reduced
---@field unreached string? static_graph: names of the parameters without a gradient at the first
---  reduction

-- Model -> record. A record refers to tensors, never to its model, so the weak key does its work.
local records = setmetatable({}, { __mode = "k" })

---@return accelerate.ModelRecord?
function M.of(model) return records[model] end

--- Set while ranks may run different numbers of batches
--- (accelerate.parallel.replicated.uneven_inputs). Every reduction is announced to it.
---@type accelerate.UnevenInputs?
M.uneven_inputs = nil

-- ---- which parameters backward passes have reached ----------------------------------------------

--- Returns how many gradients backward passes have brought so far. The core counts them.
---@param record accelerate.ModelRecord
---@return integer
function M.reached(record)
  local count = record.replays
  for _, flat in ipairs(record.flats) do count = count + flat.layout:reached() end
  return count
end

--- Returns whether a backward pass outside no_sync has reached a parameter since the last
--- reduction.
---@param record accelerate.ModelRecord
---@return boolean
function M.is_touched(record)
  return record.watched
    and (record.touched or (record.no_sync_depth == 0 and M.reached(record) ~= record.mark))
end

--- Marks all gradients so far as handled.
local function untouch(record)
  record.touched, record.mark = false, M.reached(record)
end

--- Runs `fn` at another depth of no_sync scopes.
local function at_depth(record, depth, fn, ...)
  local former = record.no_sync_depth
  local function change(to)
    record.touched = M.is_touched(record)  -- must come first: it reads the old depth
    record.no_sync_depth, record.mark = to, M.reached(record)
  end
  return scope.run(function() change(depth) end, function() change(former) end, fn, ...)
end

--- Gives every rank rank 0's buffers; when some ranks are done, those of the first rank that still
--- has batches.
local function share_buffers(model)
  local root = M.uneven_inputs and M.uneven_inputs.root or 0
  core.dist.broadcast_all(model:buffers(), root)
end

--- Gives every rank rank 0's parameters and buffers.
local function share_values(model, made)
  for _, flat in ipairs(made) do
    if not flat.former then core.dist.broadcast(flat.values, 0) end
  end
  for _, p in ipairs(model:parameters()) do
    if not core.flat_of(p) then core.dist.broadcast(p.data, 0) end
  end
  share_buffers(model)
end

--- Starts following the record's backward passes if it has parameters to train.
function M.watch(record)
  if record.watched then return end
  for _, flat in ipairs(record.flats) do record.watched = record.watched or flat.layout:wants_grad() end
  record.mark = M.reached(record)
end

-- ---- preparing ----------------------------------------------------------------------------------

--- Reads how to reduce the model's gradients.
local function configure(record, handler)
  record.ddp = { broadcast_buffers = true, static_graph = false, all_used = false }
  if not handler then return end
  record.hook = comm_hooks.make(handler)
  record.ddp = {
    broadcast_buffers = handler.broadcast_buffers ~= false, static_graph = handler.static_graph or false,
    -- Presence travels with the gradients, so unused parameters cost nothing. Only a false that the
    -- script wrote is taken as a promise.
    all_used = handler.find_unused_parameters == false and (handler._given or {}).find_unused_parameters
      or false,
    bucket = handler.bucket_cap_mb and handler.bucket_cap_mb * 2 ^ 20,
  }
end

local function new(handler)
  local record = { flats = {}, no_sync_depth = 0, touched = false, mark = 0, begun_at = 0, watched = false,
    weight = 0, divisor = 0, as_sums = false,
    local_only = false, number = 0, launched = 0, overlapping = false, counting = false, replays = 0 }
  configure(record, handler)
  return record
end

--- Puts a model's parameters into flat buffers and gives all ranks rank 0's values. A second call
--- for one model adds the parameters that are new.
---@param model accelerate.Module
---@param handler accelerate.DistributedDataParallelKwargs? how to reduce gradients; read at the
---  first call
---@param plan accelerate.ShardingPlan? how to cut its buffers over ranks; read at the first call
---@return accelerate.ModelRecord
function M.prepare(model, handler, plan)
  local record = records[model]
  local params = model:parameters()
  if record then
    local _, fresh = flat_buffers.groups_of(params)
    if #fresh == 0 then return record end
  else
    record = new(handler)
    if sharded.applies(plan) then sharded.begin(record, model, plan, handler) end
  end
  -- As in DDP, a model without a parameter to train is each rank's own.
  local trained = false
  for _, p in ipairs(params) do trained = trained or p.requires_grad end
  local distributed = trained and state.PartialState().num_processes > 1
  if distributed then
    agreement.check(model)
    if record.number == 0 then
      numbered = numbered + 1
      record.number = numbered
    end
  end
  local touched = M.is_touched(record)
  local made = flat_buffers.lay_out(record.flats, params, record.plan and sharded.units_of(record, model))
  record.touched, record.mark = touched, M.reached(record)
  if distributed then
    share_values(model, made)
  end
  if distributed or record.delivers then M.watch(record) end
  if record.plan then sharded.cut(record, model, made) end
  record.has_buffers = #model:buffers() > 0
  records[model] = record
  return record
end

--- Makes new layouts for a model whose parameters were converted or got new memory.
local function lay_out_again(model, record)
  local touched = M.is_touched(record)
  record.flats = flat_buffers.lay_out_again(record.flats, model:parameters())
  record.touched, record.mark = touched, M.reached(record)
end

--- Leaves the gradients of these parameters to an optimizer that applies them inside backward. They
--- have no slot in the gradient buffers, so that each can be freed at once.
---@param models accelerate.nn.Module[] the prepared ones
---@param params accelerate.Tensor[]
function M.fuse(models, params)
  local fused = flat_buffers.fused
  for _, p in ipairs(params) do fused[p] = true end
  for _, model in ipairs(models) do
    local record, changed = records[model], false
    for _, flat in ipairs(record.flats) do
      for _, p in ipairs(flat.params) do changed = changed or (fused[p] or false) ~= flat.fused end
    end
    if changed then lay_out_again(model, record) end
  end
end

-- ---- reducing -----------------------------------------------------------------------------------

--- Raises when a loss does not reach the parameters that the script promised.
local function check_reached(model, record)
  local ddp = record.ddp
  if not (ddp.static_graph or ddp.all_used) then return end
  local names = {}
  for name, p in model:named_parameters() do
    if p.requires_grad and not p.grad and core.flat_of(p) and not flat_buffers.fused[p] then
      names[#names + 1] = name
    end
  end
  local text = #names > 0 and "'" .. table.concat(names, "', '") .. "'" or "none"
  if ddp.all_used and #names > 0 then
    fail("backward: the loss did not reach %s; with find_unused_parameters = false all parameters must " ..
      "take part, " ..
      "so leave that out or set it to true", text)
  end
  if ddp.static_graph then
    record.unreached = record.unreached or text
    if text ~= record.unreached then
      fail("backward: static_graph = true, but the graph has changed: parameters without a gradient are " ..
        "%s now and were %s in the first step",
        text, record.unreached)
    end
  end
end

--- Averages one parameter's gradient over all ranks; ranks without one count as zeros. Returns nil
--- when no rank has one. All ranks must call it for the same parameter.
---@param p accelerate.Tensor
---@return accelerate.Tensor?
function M.mean_gradient(p)
  local grad = p.grad
  local some = core.dist.all_reduce(core.tensor { grad and 1 or 0 }, "sum"):item() > 0
  if not some then return nil end
  grad = grad or core.zeros(p.shape, { dtype = p.dtype, device = p.device })
  return core.no_grad(core.dist.all_reduce, grad, "mean")
end

--- Averages the gradients of a prepared model over all ranks, in one all_reduce for each bucket.
---@param model accelerate.nn.Module
function M.reduce(model)
  local record = records[model]
  if M.uneven_inputs then M.uneven_inputs:announce("reduce", model) end
  untouch(record)
  if not M.uneven_inputs then check_reached(model, record) end
  if record.delivers then sharded.reduce(record)
  elseif not buckets.reduce(record) then
    lay_out_again(model, record)
    buckets.reduce(record)  -- buckets that were reduced already are means, and stay unchanged
  end
  -- As in DDP, all ranks use rank 0's buffers. DDP sends them before the next forward pass; they
  -- are sent here, so that an evaluation in between agrees on all ranks.
  if record.has_buffers and record.ddp.broadcast_buffers then share_buffers(model) end
  if record.hook then record.hook.steps = record.hook.steps + 1 end
end

--- Forgets gradients that no reduction will take.
---@param record accelerate.ModelRecord
function M.drop_touched(record) untouch(record) end

--- Reduces the gradients of backward passes outside Accelerator:backward (`loss:backward()`).
---@param models accelerate.nn.Module[]
function M.flush(models)
  for _, model in ipairs(models) do
    local record = records[model]
    if record.no_sync_depth == 0 and M.is_touched(record) then
      M.reduce(model)
      sharded.finish(record)
    end
  end
end

--- Runs `fn` with gradients that stay on each rank: no later reduction takes them.
function M.local_only(model, fn, ...)
  local record = records[model]
  return at_depth(record, record.no_sync_depth + 1, function(...)
    return scope.with(record, "local_only", true, fn, ...)
  end, ...)
end

--- Runs `fn` with the reduction of `model`'s gradients put off. They accumulate on each rank until
--- the next reduction.
function M.no_sync(model, fn, ...)
  local record = records[model]
  if not record then return fn(...) end
  return at_depth(record, record.no_sync_depth + 1, fn, ...)
end

--- Runs `fn` with the reduction on, also inside no_sync.
function M.with_sync(model, fn, ...)
  local record = records[model]
  if not record then return fn(...) end
  return at_depth(record, 0, fn, ...)
end

-- ---- parameters ---------------------------------------------------------------------------------

--- Averages the parameters of a prepared model over all ranks.
---@param model accelerate.nn.Module
function M.average_parameters(model)
  local record = records[model]
  for _, flat in ipairs(record.flats) do
    if not flat.layout:is_current() then
      lay_out_again(model, record)
      break
    end
  end
  for _, flat in ipairs(record.flats) do
    if flat.layout:wants_grad() then
      core.dist.all_reduce(flat.values, "mean")
      flat.layout:touch()  -- counts an edit of each parameter, for working copies and saved tensors
    end
  end
end

--- Calls fn(parameter) for the parameters of a prepared model.
function M.each_parameter(model, fn)
  for _, flat in ipairs(records[model].flats) do
    for _, p in ipairs(flat.params) do fn(p) end
  end
end

--- Gives every rank the current parameters and buffers of rank `root`.
function M.share_from(model, root)
  core.no_grad(function()
    M.each_parameter(model, function(p)
      local received = p:detach():clone()
      core.dist.broadcast(received, root)
      p:copy_(received) -- not into the buffer: the parameter's version must change
    end)
    for _, p in ipairs(model:parameters()) do
      if not core.flat_of(p) then core.dist.broadcast(p.data, root) end
    end
    for _, buffer in ipairs(model:buffers()) do core.dist.broadcast(buffer, root) end
  end)
end

return M
