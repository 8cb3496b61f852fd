--- The record of a prepared model on one rank: its layouts, which of its gradients backward passes
--- have brought, whether reductions are put off, and an open weighted window. How the model's
--- gradients and values travel is its strategy's business (accelerate.parallel.strategy).
---
--- `prepare` puts a model's parameters into one buffer for each dtype, and their gradients into a
--- second buffer of one layout with it (accelerate.parallel.flat), so that one reduction takes all
--- of them.
local agreement = require "accelerate.parallel.agreement"
local flat_buffers = require "accelerate.parallel.flat"
local scope = require "accelerate.utils.scope"

local M = {}

local numbered = 0  -- models on ranks so far; equal on all ranks, since preparing is collective

---@class accelerate.ModelRecord state of a prepared model
---@field strategy accelerate.Strategy
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
---@field replays integer number of replayed backward passes

-- Model -> record. A record refers to tensors, never to its model, so the weak key does its work.
local records = setmetatable({}, { __mode = "k" })

---@return accelerate.ModelRecord?
function M.of(model) return records[model] end

-- ---- which parameters backward passes have reached

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

--- Marks all gradients so far as handled: they are reduced, or no reduction will take them.
---@param record accelerate.ModelRecord
function M.untouch(record)
  record.touched, record.mark = false, M.reached(record)
end

--- Starts following the model's backward passes if it has parameters to train.
---@param record accelerate.ModelRecord
function M.watch(record)
  if record.watched then return end
  for _, flat in ipairs(record.flats) do record.watched = record.watched or flat.layout:wants_grad() end
  record.mark = M.reached(record)
end

-- ---- putting reductions off

--- Runs `fn` at another depth of no_sync scopes.
local function at_depth(record, depth, fn, ...)
  local former = record.no_sync_depth
  local function change(to)
    record.touched = M.is_touched(record)  -- must come first: it reads the old depth
    record.no_sync_depth, record.mark = to, M.reached(record)
  end
  return scope.run(function() change(depth) end, function() change(former) end, fn, ...)
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

-- ---- layouts

local function new(strategy)
  return { strategy = strategy, flats = {}, no_sync_depth = 0, touched = false, mark = 0, begun_at = 0,
    watched = false, weight = 0, divisor = 0, as_sums = false, local_only = false, number = 0, replays = 0 }
end

-- Runs change(), which makes other layouts: gradients that had arrived stay counted.
local function keeping_touched(record, change)
  local touched = M.is_touched(record)
  local made = change()
  record.touched, record.mark = touched, M.reached(record)
  return made
end

-- Whether a model is trained over ranks. As in DDP, one without a parameter to train is each rank's
-- own.
local function is_distributed(record, params)
  for _, p in ipairs(params) do
    if p.requires_grad then return record.strategy.ranks > 1 end
  end
  return false
end

local function lay_out(record, model, params)
  local strategy, distributed = record.strategy, is_distributed(record, params)
  if distributed then
    agreement.check(model)
    if record.number == 0 then
      numbered = numbered + 1
      record.number = numbered
    end
  end
  local made = keeping_touched(record, function()
    return flat_buffers.lay_out(record.flats, params, strategy:divided(record, model))
  end)
  if distributed then
    strategy:share(record, model, made)
    M.watch(record)
  end
  strategy:place(record, model, made)
  record.has_buffers = #model:buffers() > 0
end

--- Puts a model's parameters into flat buffers and gives all ranks rank 0's values. A second call
--- for one model adds the parameters that are new.
---@param model accelerate.nn.Module
---@param strategy accelerate.Strategy? what decides at the first call
---@return accelerate.ModelRecord
function M.prepare(model, strategy)
  local record, params = records[model], model:parameters()
  if record then
    local _, fresh = flat_buffers.groups_of(params)
    if #fresh == 0 then return record end
  else
    record = new(strategy)
    strategy:begin(record, model)
  end
  lay_out(record, model, params)
  records[model] = record
  return record
end

--- Makes new layouts for a model whose parameters were converted or got new memory.
---@param record accelerate.ModelRecord
---@param model accelerate.nn.Module
function M.lay_out_again(record, model)
  keeping_touched(record, function()
    record.flats = flat_buffers.lay_out_again(record.flats, model:parameters())
  end)
end

return M
