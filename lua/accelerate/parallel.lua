--- The reduction of gradients over ranks.
---
--- `prepare` lays a model's parameters out in one buffer for each element type, and their gradients
--- in a second one of
--- the same layout (accelerate.flat), so that one all_reduce takes all of them.
---
--- A gradient buffer ends with one number for each parameter, its presence: 1 where this rank has a
--- gradient.  It travels with the gradients in the same all_reduce, so that ranks agree about
--- parameters that only some of them used: those take part as zeros on the others, and a parameter
--- that no rank used keeps no gradient.  On GPUs that goes on beside backward (accelerate.buckets).
local buckets = require "accelerate.buckets"
local core = require "accelerate.core"
local flat = require "accelerate.flat"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local comm_hooks  -- loaded when a script asks for a hook
local homes, fused = flat.homes, flat.fused
-- how many models have been prepared on ranks: all ranks count alike, since preparing is collective
local numbered = 0

---@class accelerate.Record what is known of a prepared model
---@field chunks accelerate.Chunk[]
---@field quiet integer how many no_sync scopes are open
---@field touched boolean a backward pass outside no_sync reached a parameter since the last
---  reduction
---@field hits integer parameters that the current backward pass reached
---@field watched integer parameters with a hook
---@field hooked table<accelerate.Tensor, boolean>
---@field weight number sum of this rank's weights since the last reduction
---@field divisor number mean weight by which the gradients of this window were divided so far; 0:
---  they were not
---@field summing boolean that division was undone, because another pass of the window came
---@field number integer the model's among those prepared on ranks, from 1; 0: it is this rank's own
---@field has_buffers boolean
---@field alone boolean inside LocalSGD: gradients stay on the rank for good
---@field hook table? reduces in place of all_reduce
---@field ddp { broadcast_buffers: boolean, static_graph: boolean, all_used: boolean, bucket:
---  integer? } as the script's DistributedDataParallelKwargs say; bucket: the most bytes of one
---  all_reduce
---@field buckets accelerate.GradientBucket[]? in the order in which they are reduced; made when
---  they are needed
---@field cut_of accelerate.Chunk[]? what they were made of
---@field launched integer how many of them are being reduced
---@field live boolean whether complete buckets of the backward pass under way are reduced at once
---@field arrivals table<accelerate.Tensor, integer>? static_graph: how often the first pass reached
---  each parameter
---@field unreached string? names that the first reduction found without a gradient, with
---  static_graph

-- Model -> record.  A record refers to tensors, never to its model, so the weak key does its work.
local records = setmetatable({}, { __mode = "k" })

---@return accelerate.Record?
function M.record_of(model) return records[model] end

-- ---- agreement between ranks --------------------------------------------------------------------

local function describe(model)
  local lines = {}
  for name, p in model:named_parameters() do
    lines[#lines + 1] = ("%s %s [%s]%s"):format(name, p.dtype, table.concat(p.shape, ", "), p.requires_grad
      and "" or " (frozen)")
  end
  for name, b in model:named_buffers() do
    lines[#lines + 1] = ("%s %s [%s] (buffer)"):format(name, b.dtype, table.concat(b.shape, ", "))
  end
  return lines
end

--- Raises, on the ranks that differ from rank 0, unless names, types and shapes agree.
local function check_agreement(model)
  local mine = describe(model)
  local theirs = core.dist.broadcast_bytes(state.PartialState().process_index == 0
    and table.concat(mine, "\n") or nil, 0)
  if theirs == table.concat(mine, "\n") then return end
  local i = 0
  for line in (theirs .. "\n"):gmatch("(.-)\n") do
    i = i + 1
    if line ~= mine[i] then
      fail("prepare: the model differs between ranks: entry %d is '%s' here and '%s' on rank 0", i, mine[i]
        or "nothing", line)
    end
  end
  fail("prepare: the model differs between ranks: '%s' is not on rank 0", mine[i + 1] or "an entry")
end

--- While ranks may run different numbers of batches (accelerate.joining): told of every reduction
--- before it begins.
---@type accelerate.Joining?
M.joining = nil

--- Gives every rank rank 0's buffers; while ranks join, those of the first rank that still has
--- batches.
local function share_buffers(model)
  local root = M.joining and M.joining.root or 0
  core.dist.broadcast_all(model:buffers(), root)
end

--- Every rank starts from rank 0's values.
local function share_values(model, made)
  for _, chunk in ipairs(made) do core.dist.broadcast(chunk.flat, 0) end
  for _, p in ipairs(model:parameters()) do
    if not homes[p] then core.dist.broadcast(p.data, 0) end
  end
  share_buffers(model)
end

--- Watches backward passes reach the parameters: what is reduced when, and a script that calls
--- loss:backward() itself, hang on it.
local function watch(record)
  for _, chunk in ipairs(record.chunks) do
    for _, p in ipairs(chunk.params) do
      if p.requires_grad and not record.hooked[p] then
        record.hooked[p] = true
        record.watched = record.watched + 1
        p:register_post_accumulate_grad_hook(function()
          record.hits = record.hits + 1
          if record.quiet == 0 then record.touched = true end
          if record.live then buckets.arrived(record, p)
          elseif record.counting then record.counting[p] = (record.counting[p] or 0) + 1 end
        end)
      end
    end
  end
end

-- ---- preparing ----------------------------------------------------------------------------------

--- How the gradients of a model are reduced.
local function configure(record, handler)
  record.ddp = { broadcast_buffers = true, static_graph = false, all_used = false }
  if not handler then return end
  comm_hooks = comm_hooks or require "accelerate.comm_hooks"
  record.hook = comm_hooks.make(handler)
  record.ddp = {
    broadcast_buffers = handler.broadcast_buffers ~= false, static_graph = handler.static_graph or false,
    -- Presence travels with the gradients, so that unused parameters cost nothing; false is taken
    -- as a promise when the script writes it.
    all_used = handler.find_unused_parameters == false and (handler._given or {}).find_unused_parameters
      or false,
    bucket = handler.bucket_cap_mb and handler.bucket_cap_mb * 2 ^ 20,
  }
end

--- Lays a model's parameters out, and brings all ranks to rank 0's values.  Once more for the same
--- model: takes in what was added to it since.
---@param model accelerate.Module
---@param handler accelerate.DistributedDataParallelKwargs? how it is reduced; taken at the first
---  call
---@return accelerate.Record
function M.prepare(model, handler)
  local record = records[model]
  local params = model:parameters()
  if record then
    local _, new = flat.groups_of(params)
    if #new == 0 then return record end
  else
    record = { chunks = {}, quiet = 0, touched = false, hits = 0, watched = 0,
      hooked = setmetatable({}, { __mode = "k" }),
      weight = 0, divisor = 0, summing = false, alone = false, number = 0, launched = 0, live = false }
    configure(record, handler)
  end
  -- As in DDP: a model without a parameter to train is each rank's own.
  local trained = false
  for _, p in ipairs(params) do trained = trained or p.requires_grad end
  local distributed = trained and state.PartialState().num_processes > 1
  if distributed then
    check_agreement(model)
    if record.number == 0 then
      numbered = numbered + 1
      record.number = numbered
    end
  end
  local made = flat.lay_out(record, params)
  if distributed then
    share_values(model, made)
    watch(record)
  end
  record.has_buffers = #model:buffers() > 0
  records[model] = record
  return record
end

-- ---- reducing -----------------------------------------------------------------------------------

--- Does a parameter of a chunk that was frozen at prepare want a gradient by now?
local function thawed(record, chunk)
  if chunk.fused then return false end
  for _, p in ipairs(chunk.params) do
    if p.requires_grad then
      if not chunk.grads then flat.give_slots(chunk) end
      watch(record)
      return true
    end
  end
  return false
end

buckets.thawed = thawed

--- What the script promised of the parameters that a loss reaches.
local function check_reached(model, record)
  local ddp = record.ddp
  if not (ddp.static_graph or ddp.all_used) then return end
  local names = {}
  for name, p in model:named_parameters() do
    if p.requires_grad and not p.grad and homes[p] and not fused[p] then names[#names + 1] = name end
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

--- Leaves the gradients of these parameters to an optimizer that applies them inside backward: they
--- get no place in the flat buffers, so that each can be freed at once.
---@param models accelerate.nn.Module[] the prepared ones
---@param params accelerate.Tensor[]
function M.fuse(models, params)
  for _, p in ipairs(params) do fused[p] = true end
  for _, model in ipairs(models) do
    local record, changed = records[model], false
    for _, chunk in ipairs(record.chunks) do
      for _, p in ipairs(chunk.params) do changed = changed or (fused[p] or false) ~= chunk.fused end
    end
    if changed then flat.lay_out_again(model, record) end
  end
end

--- One parameter's gradient averaged over all ranks; those without one count as zeros.  nil: no
--- rank has one.  All ranks must call it for the same parameter.
---@param p accelerate.Tensor
---@return accelerate.Tensor?
function M.mean_gradient(p)
  local grad = p.grad
  local some = core.dist.all_reduce(core.tensor { grad and 1 or 0 }, "sum"):item() > 0
  if not some then return nil end
  grad = grad or core.zeros(p.shape, { dtype = p.dtype, device = p.device })
  return core.no_grad(core.dist.all_reduce, grad, "mean")
end

--- Averages the gradients of a prepared model over all ranks, in one all_reduce for each chunk.
---@param model accelerate.nn.Module
function M.reduce(model)
  local record = records[model]
  if M.joining then M.joining:announce("reduce", model) end
  record.touched = false
  if not M.joining then check_reached(model, record) end
  if not buckets.reduce(record) then
    flat.lay_out_again(model, record)
    buckets.reduce(record)  -- means of means: what was reduced already does not change
  end
  -- As in DDP, rank 0's buffers are everybody's.  There they travel before the next forward pass;
  -- here at once, so that an evaluation in between sees the same on every rank.
  if record.has_buffers and record.ddp.broadcast_buffers then share_buffers(model) end
  if record.hook then record.hook.steps = record.hook.steps + 1 end
end

--- Averages the parameters of a prepared model over all ranks.
---@param model accelerate.nn.Module
function M.average_parameters(model)
  for _, chunk in ipairs(records[model].chunks) do
    local wanted = false
    for _, p in ipairs(chunk.params) do wanted = wanted or p.requires_grad end
    if wanted then
      core.dist.all_reduce(chunk.flat, "mean")
      -- Each parameter counts its own edits; working copies and saved graphs go by them.
      core.no_grad(function()
        for _, p in ipairs(chunk.params) do
          if p.device == "cpu" then p:data_ptr() else core.dist.touch { p } end
        end
      end)
    end
  end
end

--- Runs `fn` with gradients kept on each rank for good: no later reduction takes them along.
function M.alone(model, fn, ...)
  local record = records[model]
  record.quiet = record.quiet + 1
  return scope.run(nil, function() record.quiet = record.quiet - 1 end, function(...)
    return scope.with(record, "alone", true, fn, ...)
  end, ...)
end

--- Runs `fn` with the reduction of `model`'s gradients put off: they add up on each rank, and the
--- next reduction takes them along.
function M.no_sync(model, fn, ...)
  local record = records[model]
  if not record then return fn(...) end
  record.quiet = record.quiet + 1
  return scope.run(nil, function() record.quiet = record.quiet - 1 end, fn, ...)
end

--- Runs `fn` with the reduction on, also inside no_sync.
function M.with_sync(model, fn, ...)
  local record = records[model]
  if not record then return fn(...) end
  return scope.with(record, "quiet", 0, fn, ...)
end

--- Reduces what backward passes outside Accelerator:backward (`loss:backward()`) have left
--- unreduced.
---@param models accelerate.nn.Module[]
function M.flush(models)
  for _, model in ipairs(models) do
    local record = records[model]
    if record.touched and record.quiet == 0 then M.reduce(model) end
  end
end

-- ---- weighted windows ---------------------------------------------------------------------------

local function scale(record, factor)
  core.no_grad(function()
    for _, chunk in ipairs(record.chunks) do
      for _, p in ipairs(chunk.params) do
        local grad = p.grad
        if grad then grad:mul_(factor) end
      end
    end
  end)
end

--- Has any parameter of these models a gradient?
function M.any_gradient(models)
  for _, model in ipairs(models) do
    for _, chunk in ipairs(records[model].chunks) do
      for _, p in ipairs(chunk.params) do
        if p.grad then return true end
      end
    end
  end
  return false
end

--- Before a weighted backward pass: gradients that an earlier pass of this window divided become
--- sums again.
function M.open_window(models)
  for _, model in ipairs(models) do
    local record = records[model]
    watch(record)
    if record.weight > 0 or record.divisor > 0 then
      if not M.any_gradient { model } then
        record.weight, record.divisor = 0, 0  -- cleared by hand: a new window
      elseif record.divisor > 0 and not record.summing then
        scale(record, record.divisor)
        record.summing = true
      end
    end
  end
end

--- At a sync, after the reduction: the mean of sums becomes the sum of gradients over the sum of
--- weights.
local function divide(model)
  local record = records[model]
  if M.joining and not record.alone then M.joining:announce("divide", model) end
  local mine = record.weight
  if not record.alone and state.PartialState().num_processes > 1 then
    mine = core.dist.all_reduce(core.tensor({ mine }, { dtype = "float64" }), "mean"):totable()[1]
  end
  local total = record.divisor + mine
  if not (total > 0) then
    fail("backward: the weights of this window sum to %g on all ranks; expected more than 0", total)
  end
  scale(record, 1 / total)
  record.weight, record.divisor, record.summing = 0, total, false
end

M.divide = divide

--- Calls fn(parameter) for the parameters of a prepared model.
function M.each_parameter(model, fn)
  for _, chunk in ipairs(records[model].chunks) do
    for _, p in ipairs(chunk.params) do fn(p) end
  end
end

--- Gives every rank the parameters and buffers of rank `root`, as they are there now.
function M.share_from(model, root)
  core.no_grad(function()
    M.each_parameter(model, function(p)
      local received = p:detach():clone()
      core.dist.broadcast(received, root)
      p:copy_(received) -- not in place of the buffer: whoever watches the parameter's version has to see it
    end)
    for _, p in ipairs(model:parameters()) do
      if not homes[p] then core.dist.broadcast(p.data, root) end
    end
    for _, buffer in ipairs(model:buffers()) do core.dist.broadcast(buffer, root) end
  end)
end

--- Forgets the open window of a weighted backward.
function M.drop_window(model)
  local record = records[model]
  record.weight, record.divisor, record.summing, record.touched = 0, 0, false, false
end

--- Ends the windows of the models that own one of these parameters: their gradients were applied.
---@param groups table[] an optimizer's param_groups
function M.close_windows(models, groups)
  local applied = {}
  for _, group in ipairs(groups) do
    for _, p in ipairs(group.params) do
      local home = homes[p]
      if home then applied[home] = true end
    end
  end
  for _, model in ipairs(models) do
    local record = records[model]
    for _, chunk in ipairs(record.chunks) do
      if applied[chunk] then record.weight, record.divisor, record.summing = 0, 0, false end
    end
  end
end

-- ---- one backward pass --------------------------------------------------------------------------

--- May complete buckets be reduced while backward goes on?  With several models a pass may reach
--- any of them, in an order that need not be the same on all ranks; ranks that join say first what
--- they are about to do.
local function overlaps(record)
  if record.quiet > 0 or record.alone or record.watched == 0 or M.joining then return false end
  for _, chunk in ipairs(record.chunks) do
    if chunk.device == "cpu" or chunk.fused then return false end
  end
  return true
end

--- Before a backward pass of Accelerator:backward.
---@param models accelerate.nn.Module[]
---@param due boolean whether the gradients are to be reduced after it, or in it
function M.begin(models, due)
  for _, model in ipairs(models) do
    local record = records[model]
    record.hits, record.live = 0, false
    if due and #models == 1 and state.PartialState().num_processes > 1 and overlaps(record) then
      buckets.expect(record)
      record.live = not record.ddp.static_graph or record.arrivals ~= nil
      if not record.live then record.counting = setmetatable({}, { __mode = "k" }) end
    end
  end
end

--- After it: reduces the models that it reached.  With one model all ranks take part even where a
--- rank's loss did not reach it.
---@param models accelerate.nn.Module[]
---@param sync boolean whether a weighted window ends here; plain gradients are reduced in each pass
---  outside no_sync
---@param weight number? of this rank's loss, in a weighted window
function M.finish(models, sync, weight)
  local distributed = state.PartialState().num_processes > 1
  local single = #models == 1
  for _, model in ipairs(models) do
    local record = records[model]
    local reached = single or record.hits > 0
    if weight and reached then record.weight = record.weight + weight end
    local due = sync or not weight
    if due and record.alone then
      if weight then divide(model) end
    elseif due and record.quiet == 0 and (record.touched or (single and record.watched > 0)) then
      if distributed then M.reduce(model) end
      record.touched = false
      if weight then divide(model) end
    end
  end
end

return M
