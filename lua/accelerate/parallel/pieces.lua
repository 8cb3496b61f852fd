--- What this rank keeps of a prepared model and its optimizers: named runs of elements of whole
--- values. Files of sharded checkpoints hold them.
local core = require "accelerate.core"
local cut = require "accelerate.optim.cut"
local flat_buffers = require "accelerate.parallel.flat"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

---@class accelerate.Piece
---@field name string the parameter's name in the model
---@field names string[] all its names: a tied parameter has several
---@field param accelerate.Tensor
---@field shape integer[] of the whole value
---@field dtype string
---@field from integer where the piece begins in the flattened value, from 0
---@field n integer elements of the piece; 0: this rank has nothing of the value
---@field cut boolean whether other ranks have other pieces; else every rank has the whole value
---@field copy integer which of several equal copies of the piece this rank has, from 0
---@field tensor accelerate.Tensor? the piece itself, one dim, in the memory where it rests; what is
---  copied into it changes the model (call M.changed afterwards). nil where n is 0

-- The flat of a parameter that is cut over ranks, and its slot there; nil of others.
local function cut_of(p)
  local flat = flat_buffers.of(p)
  if not flat or not flat.cut then return nil end
  local _, slot = core.flat_of(p)
  return flat, slot
end

--- Returns what this rank has of a parameter: where it begins in the flattened value (from 0), how
--- many elements, whether the value is cut over ranks, and whether these rest here alone.
---@param p accelerate.Tensor
---@return integer from
---@return integer n
---@return boolean cut whether values are cut
---@return accelerate.Tensor? piece of values that are cut
function M.of(p)
  local flat, slot = cut_of(p)
  if not flat or not flat.cut_values then return 0, p:numel(), false end
  local from, n, piece = flat.layout:piece(slot)
  return from, n, true, piece
end

--- Returns this rank's pieces of a prepared model's parameters, in the order of the model.
---@param model accelerate.nn.Module
---@param record accelerate.ModelRecord
---@return accelerate.Piece[]
function M.of_model(model, record)
  local list, known = {}, {}
  local copies = record.shards and record.shards.copies
  for name, p in model:named_parameters { remove_duplicate = false } do
    local piece = known[p]
    if piece then piece.names[#piece.names + 1] = name
    else
      local from, n, is_cut, tensor = M.of(p)
      if not is_cut then tensor = n > 0 and p:detach():reshape(-1) or nil end
      piece = { name = name, names = { name }, param = p, shape = p.shape, dtype = p.dtype, from = from,
        n = n, cut = is_cut, copy = is_cut and copies and copies.rank or 0, tensor = tensor }
      known[p], list[#list + 1] = piece, piece
    end
  end
  return list
end

--- Returns whether a tensor is a transposed view of a piece's parameter, which is cut: what state
--- dicts have of GPT-2's weights.
---@param piece accelerate.Piece? of the parameter with the tensor's name
---@param t accelerate.Tensor
---@return boolean
function M.is_formed(piece, t)
  return piece ~= nil and piece.cut and not rawequal(piece.param, t) and t:dim() == 2
    and t:size(1) == piece.shape[2] and t:size(2) == piece.shape[1]
    and t:stride(1) == 1 and t:stride(2) == piece.shape[2]
end

--- Copies this rank's elements of a parameter from its transposed whole value.
---@param piece accelerate.Piece
---@param whole accelerate.Tensor
function M.take_formed(piece, whole)
  if piece.n == 0 then return end
  piece.tensor:copy_(whole:t():contiguous():reshape(-1):narrow(1, piece.from + 1, piece.n))
end

--- Waits for the ranks that have one copy of the values with this one, where there are such: none
--- reads values while another one writes its part.
---@param record accelerate.ModelRecord
function M.meet(record)
  if record.shared then core.dist.barrier(record.shards.group._handle) end
end

--- After pieces were written on all ranks: edits of the parameters are counted, and whole copies
--- are freed. `meet` comes before the first is written.
---@param record accelerate.ModelRecord
function M.changed(record)
  M.meet(record)
  for _, flat in ipairs(record.flats) do
    if flat.cut_values then flat.layout:drop_values() end
    flat.layout:touch()
  end
end

-- The layout and the slot of a parameter whose gradient is cut; nil of others.
local function cut_gradient(p)
  local flat, slot = cut_of(p)
  if flat and flat.delivers then return flat.layout, slot end
end

--- Returns what this rank has of a parameter's gradient: one dim where it is cut; nil where there
--- is none.
---@param p accelerate.Tensor
---@return accelerate.Tensor?
function M.gradient_of(p)
  local layout, slot = cut_gradient(p)
  if not layout then return p.grad end
  local has, piece = layout:own_grad(slot)
  return has and (piece or core.zeros({ 0 }, { dtype = p.dtype, device = p.device })) or nil
end

--- Gives a parameter a gradient, or takes it away (nil). Raises where the gradient is cut and `g`
--- is not this rank's piece of it.
---@param p accelerate.Tensor
---@param g accelerate.Tensor? as gradient_of returned it
function M.set_gradient(p, g)
  local layout, slot = cut_gradient(p)
  if not layout or not g then
    p.grad = g
    return
  end
  local _, n = layout:piece(slot)
  if g:dim() ~= 1 or g:numel() ~= n then
    fail("this rank has %d elements of a gradient of shape %s, and %d were saved: " ..
      "the model was cut in another way", n, lists.shape_text(p), g:numel())
  end
  local _, piece = layout:own_grad(slot, true)
  if piece then core.no_grad(function() piece:copy_(g) end) end
end

-- This rank's elements of a gradient that may be whole.
local function own_gradient(p, layout, slot, from, n)
  local has, grad = layout:own_grad(slot)
  if not has or n == 0 then return nil end
  if grad:numel() ~= p:numel() then return grad end
  return grad:detach():contiguous():reshape(-1):narrow(1, from + 1, n)
end

--- Says to optimizers how parameters are cut.
function cut.part(p)
  local flat, slot = cut_of(p)
  if not flat then return nil end
  local from, n, value = flat.layout:piece(slot)
  return { group = flat.group, from = from, n = n, value = value,
    grad = own_gradient(p, flat.layout, slot, from, n),
    of = function(rank) return flat.layout:piece(slot, rank) end }
end

---@class accelerate.StatePiece
---@field group table the optimizer's group
---@field index integer the parameter's place in the group
---@field param accelerate.Tensor
---@field from integer where the piece of a state of the parameter's shape begins, from 0
---@field n integer
---@field cut boolean
---@field kept table? the step count and the states by name: one dim of n elements where the states
---  are cut, else the parameter's shape; nil: the parameter was never stepped

--- Returns this rank's pieces of an optimizer's states, group by group.
---@param optimizer accelerate.optim.Optimizer
---@return accelerate.StatePiece[]
function M.of_optimizer(optimizer)
  local list = {}
  optimizer:_settle()
  for _, group in ipairs(optimizer.param_groups) do
    for index, p in ipairs(group.params) do
      local flat, slot = cut_of(p)
      local from, n = 0, p:numel()
      if flat then from, n = flat.layout:piece(slot) end
      list[#list + 1] = { group = group, index = index, param = p, from = from, n = n, cut = flat ~= nil,
        kept = optimizer:_kept(group, index) }
    end
  end
  return list
end

return M
