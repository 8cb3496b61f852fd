--- Each rank has the whole model, as under PyTorch's DDP: gradients become their mean over the
--- ranks, in buckets (buckets, comm_hooks), and buffers of modules are rank 0's.
---
--- A gradient buffer ends with the presence: one number for each parameter, 1 where this rank has a
--- gradient. It travels in the all_reduce of the gradients, so ranks agree about parameters that
--- only some of them used. Such a parameter counts as zero on the other ranks; a parameter that no
--- rank used keeps no gradient. On GPUs reductions overlap with backward. Ranks may have different
--- numbers of batches (uneven_inputs), and check whether they still agree to the bit (identical).
local Strategy = require "accelerate.parallel.strategy"
local announcements = require "accelerate.parallel.replicated.announcements"
local buckets = require "accelerate.parallel.replicated.buckets"
local class = require "accelerate.utils.class"
local comm_hooks = require "accelerate.parallel.replicated.comm_hooks"
local core = require "accelerate.core"
local flat_buffers = require "accelerate.parallel.flat"
local histories = require "accelerate.parallel.replicated.histories"
local options = require "accelerate.utils.options"
local records = require "accelerate.parallel.record"

local fail = options.fail

---@class accelerate.ReplicaRecord: accelerate.ModelRecord
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
---@field reduced_at integer? how many gradients had arrived when a replay reduced them
---@field history boolean? whether a pass since the last reduction gave gradients a history
---@field counted boolean? static_graph: whether a pass has counted
---@field unreached string? static_graph: names of the parameters without a gradient at the first
---  reduction

---@class accelerate.Replicated: accelerate.Strategy
local Replicated = class("Replicated", Strategy)

-- ---- preparing

function Replicated:begin(record)
  local handler = self.handler
  record.launched, record.overlapping, record.counting = 0, false, false
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

-- Gives every rank rank 0's buffers; when some ranks are done, those of the first rank that still
-- has batches.
local function share_buffers(model) core.dist.broadcast_all(model:buffers(), announcements.root()) end

function Replicated:share(_, model, made)
  for _, flat in ipairs(made) do
    if not flat.former then core.dist.broadcast(flat.values, 0) end
  end
  for _, p in ipairs(model:parameters()) do
    if not core.flat_of(p) then core.dist.broadcast(p.data, 0) end
  end
  share_buffers(model)
end

function Replicated:keeps_buffers(record)
  return self.ranks > 1 and record.has_buffers and not record.ddp.broadcast_buffers
end

--- Leaves the gradients of these parameters to an optimizer that applies them inside backward. They
--- have no slot in the gradient buffers, so that each can be freed at once.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
function Replicated:fuse(record, model)
  local changed = false
  for _, flat in ipairs(record.flats) do
    for _, p in ipairs(flat.params) do changed = changed or (flat_buffers.fused[p] or false) ~= flat.fused end
  end
  if changed then records.lay_out_again(record, model) end
end

-- ---- a backward pass

--- Returns whether full buckets may be reduced during backward. Not with several models, whose
--- order may differ between ranks; not with uneven inputs, where ranks announce each reduction
--- first.
local function may_overlap(record, pass)
  if not (pass.due and pass.alone and record.strategy.ranks > 1) then return false end
  if record.no_sync_depth > 0 or record.local_only or not record.watched or announcements.are_made() then
    return false
  end
  for _, flat in ipairs(record.flats) do
    if flat.device == "cpu" or flat.fused then return false end
  end
  return true
end

local function expect(record)
  record.overlapping = not record.ddp.static_graph or record.counted or false
  record.counting = not record.overlapping
  buckets.expect(record, record.overlapping)
end

function Replicated:begin_pass(record, pass)
  record.overlapping, record.captures, record.reduced_at = false, false, nil
  record.history = record.history or pass.history
  if not may_overlap(record, pass) then return end
  if record.captured and not record.hook and not core.is_recording() then record.captures = true
  else expect(record) end
end

function Replicated:finish_pass(record, model, pass)
  if not pass.due or record.no_sync_depth > 0 then return false end
  if not (records.is_touched(record) or (pass.alone and record.watched)) then return false end
  -- A replay has reduced what had arrived until then. What came behind it is each rank's own,
  -- and the mean of a mean stays what it is.
  if self.ranks > 1 and record.reduced_at ~= records.reached(record) then self:reduce(record, model) end
  records.untouch(record)
  return true
end

function Replicated:recorded_reduction(record, model)
  if self.ranks == 1 then return nil end
  record.captured = true
  return {
    due = function() return record.captures or false end,
    run = function(pass)
      expect(record)
      pass()
      self:reduce(record, model)
    end,
    replayed = function(reduces)
      record.replays = record.replays + 1  -- the core counts no gradients in a replay
      record.captures = false
      record.reduced_at = reduces and records.reached(record) or nil
    end,
  }
end

-- ---- reducing

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
      "take part, so leave that out or set it to true", text)
  end
  if ddp.static_graph then
    record.unreached = record.unreached or text
    if text ~= record.unreached then
      fail("backward: static_graph = true, but the graph has changed: parameters without a gradient are " ..
        "%s now and were %s in the first step", text, record.unreached)
    end
  end
end

--- Averages the gradients over the ranks. What is derived from this class may do it otherwise.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
function Replicated:reduce_gradients(record, model)
  if buckets.reduce(record) then return end
  records.lay_out_again(record, model)
  buckets.reduce(record)  -- buckets that were reduced already are means, and stay unchanged
end

function Replicated:reduce(record, model)
  announcements.announce("reduce", model)
  records.untouch(record)
  if not announcements.are_made() then check_reached(model, record) end
  local kept = record.history and histories.of(model)
  self:reduce_gradients(record, model)
  if kept then histories.give_back(kept) end
  record.history = false
  -- As in DDP, all ranks use rank 0's buffers. DDP sends them before the next forward pass; they
  -- are sent here, so that an evaluation in between agrees on all ranks.
  if record.has_buffers and record.ddp.broadcast_buffers then share_buffers(model) end
  if record.hook then record.hook.steps = record.hook.steps + 1 end
end

function Replicated:divide(record, model)
  if not record.local_only then announcements.announce("divide", model) end
  Strategy.divide(self, record, model)
end

--- Averages one parameter's gradient over all ranks; ranks without one count as zeros. Returns nil
--- when no rank has one. All ranks must call it for the same parameter.
---@param p accelerate.Tensor
---@return accelerate.Tensor?
function Replicated.mean_gradient(p)
  local grad = p.grad
  local some = core.dist.all_reduce(core.tensor { grad and 1 or 0 }, "sum"):item() > 0
  if not some then return nil end
  grad = grad or core.zeros(p.shape, { dtype = p.dtype, device = p.device })
  return core.no_grad(core.dist.all_reduce, grad, "mean")
end

--- Averages the parameters of a model over all ranks.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
function Replicated:average(record, model)
  for _, flat in ipairs(record.flats) do
    if not flat.layout:is_current() then
      records.lay_out_again(record, model)
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

return Replicated
