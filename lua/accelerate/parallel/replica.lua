--- A prepared model on one rank: its flat buffers, and how its gradients are averaged over the
--- ranks.
---
--- `prepare` lays a model's parameters out in one buffer for each element type, and their gradients
--- in a second one of the same layout (accelerate.parallel.flat), so that one all_reduce takes all
--- of them.
---
--- A gradient buffer ends with one number for each parameter, its presence: 1 where this rank has a
--- gradient. It travels with the gradients in the same all_reduce, so that ranks agree about
--- parameters that only some of them used: those take part as zeros on the others, and a parameter
--- that no rank used keeps no gradient. On GPUs that goes on beside backward
--- (accelerate.parallel.buckets).
local agreement = require "accelerate.parallel.agreement"
local buckets = require "accelerate.parallel.buckets"
local comm_hooks = require "accelerate.parallel.comm_hooks"
local core = require "accelerate.core"
local flat_buffers = require "accelerate.parallel.flat"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local prepared = 0  -- models on ranks so far: all ranks count alike, since preparing is collective

---@class accelerate.Replica what is known of a prepared model
---@field flats accelerate.Flat[]
---@field no_sync_depth integer how many no_sync scopes are open
---@field touched boolean a backward pass outside no_sync reached a parameter since the last
---  reduction; see M.is_touched
---@field mark integer gradients that had come when `touched` was looked at last
---@field begun_at integer gradients that had come when the backward pass under way began
---@field watched boolean whether its backward passes matter: it has parameters to train, and ranks
---  or weights
---@field weight number sum of this rank's weights since the last reduction
---@field divisor number mean weight by which the gradients of this window were divided so far; 0:
---  they were not
---@field as_sums boolean that division was undone, because another pass of the window came
---@field number integer the model's among those prepared on ranks, from 1; 0: it is this rank's own
---@field has_buffers boolean
---@field local_only boolean inside LocalSGD: gradients stay on the rank for good
---@field hook table? reduces in place of all_reduce
---@field ddp { broadcast_buffers: boolean, static_graph: boolean, all_used: boolean, bucket:
---  integer? } as the script's DistributedDataParallelKwargs say; bucket: the most bytes of one
---  all_reduce
---@field buckets accelerate.GradientBucket[]? in the order in which they are reduced; made when
---  they are needed
---@field cut_of accelerate.Flat[]? what they were made of
---@field launched integer how many of them are being reduced
---@field overlapping boolean whether full buckets of the backward pass under way are reduced at
---  once
---@field counting boolean static_graph: the pass under way finds out how often each parameter is
---  reached
---@field counted boolean? and it has done so
---@field unreached string? names that the first reduction found without a gradient, with
---  static_graph

-- Model -> replica. A replica refers to tensors, never to its model, so the weak key does its work.
local replicas = setmetatable({}, { __mode = "k" })

---@return accelerate.Replica?
function M.of(model) return replicas[model] end

--- While ranks may run different numbers of batches (accelerate.parallel.uneven_inputs): called
--- before every reduction.
---@type accelerate.UnevenInputs?
M.uneven_inputs = nil

-- ---- what backward passes have reached ----------------------------------------------------------

--- How many gradients backward passes have brought so far; the core counts them.
---@param replica accelerate.Replica
---@return integer
function M.reached(replica)
  local count = 0
  for _, flat in ipairs(replica.flats) do count = count + flat.layout:reached() end
  return count
end

--- Did a backward pass outside no_sync reach a parameter since the last reduction?
---@param replica accelerate.Replica
---@return boolean
function M.is_touched(replica)
  return replica.watched
    and (replica.touched or (replica.no_sync_depth == 0 and M.reached(replica) ~= replica.mark))
end

--- What backward passes have brought so far is dealt with.
local function untouch(replica)
  replica.touched, replica.mark = false, M.reached(replica)
end

--- Runs `fn` with another depth of no_sync scopes.
local function at_depth(replica, depth, fn, ...)
  local former = replica.no_sync_depth
  local function change(to)
    replica.touched = M.is_touched(replica)  -- before, by the depth that it was at
    replica.no_sync_depth, replica.mark = to, M.reached(replica)
  end
  return scope.run(function() change(depth) end, function() change(former) end, fn, ...)
end

--- Gives every rank rank 0's buffers; where some ranks are done, those of the first rank that still
--- has batches.
local function share_buffers(model)
  local root = M.uneven_inputs and M.uneven_inputs.root or 0
  core.dist.broadcast_all(model:buffers(), root)
end

--- Every rank starts from rank 0's values.
local function share_values(model, made)
  for _, flat in ipairs(made) do core.dist.broadcast(flat.values, 0) end
  for _, p in ipairs(model:parameters()) do
    if not core.flat_of(p) then core.dist.broadcast(p.data, 0) end
  end
  share_buffers(model)
end

--- Has the replica's backward passes matter from now on, if it has parameters to train.
function M.watch(replica)
  if replica.watched then return end
  for _, flat in ipairs(replica.flats) do replica.watched = replica.watched or flat.layout:wants_grad() end
  replica.mark = M.reached(replica)
end

-- ---- preparing ----------------------------------------------------------------------------------

--- How the gradients of a model are reduced.
local function configure(replica, handler)
  replica.ddp = { broadcast_buffers = true, static_graph = false, all_used = false }
  if not handler then return end
  replica.hook = comm_hooks.make(handler)
  replica.ddp = {
    broadcast_buffers = handler.broadcast_buffers ~= false, static_graph = handler.static_graph or false,
    -- Presence travels with the gradients, so that unused parameters cost nothing; false is taken
    -- as a promise when the script writes it.
    all_used = handler.find_unused_parameters == false and (handler._given or {}).find_unused_parameters
      or false,
    bucket = handler.bucket_cap_mb and handler.bucket_cap_mb * 2 ^ 20,
  }
end

local function new(handler)
  local replica = { flats = {}, no_sync_depth = 0, touched = false, mark = 0, begun_at = 0, watched = false,
    weight = 0, divisor = 0, as_sums = false,
    local_only = false, number = 0, launched = 0, overlapping = false, counting = false }
  configure(replica, handler)
  return replica
end

--- Lays a model's parameters out, and brings all ranks to rank 0's values. Once more for the same
--- model: takes in what was added to it since.
---@param model accelerate.Module
---@param handler accelerate.DistributedDataParallelKwargs? how it is reduced; taken at the first
---  call
---@return accelerate.Replica
function M.prepare(model, handler)
  local replica = replicas[model]
  local params = model:parameters()
  if replica then
    local _, fresh = flat_buffers.groups_of(params)
    if #fresh == 0 then return replica end
  else
    replica = new(handler)
  end
  -- As in DDP: a model without a parameter to train is each rank's own.
  local trained = false
  for _, p in ipairs(params) do trained = trained or p.requires_grad end
  local distributed = trained and state.PartialState().num_processes > 1
  if distributed then
    agreement.check(model)
    if replica.number == 0 then
      prepared = prepared + 1
      replica.number = prepared
    end
  end
  local touched = M.is_touched(replica)
  local made = flat_buffers.lay_out(replica.flats, params)
  replica.touched, replica.mark = touched, M.reached(replica)
  if distributed then
    share_values(model, made)
    M.watch(replica)
  end
  replica.has_buffers = #model:buffers() > 0
  replicas[model] = replica
  return replica
end

--- Lays a model out anew: its parameters were converted, or given other memory, since.
local function lay_out_again(model, replica)
  local touched = M.is_touched(replica)
  replica.flats = flat_buffers.lay_out_again(replica.flats, model:parameters())
  replica.touched, replica.mark = touched, M.reached(replica)
end

--- Leaves the gradients of these parameters to an optimizer that applies them inside backward: they
--- get no place in the flat buffers, so that each can be freed at once.
---@param models accelerate.nn.Module[] the prepared ones
---@param params accelerate.Tensor[]
function M.fuse(models, params)
  local fused = flat_buffers.fused
  for _, p in ipairs(params) do fused[p] = true end
  for _, model in ipairs(models) do
    local replica, changed = replicas[model], false
    for _, flat in ipairs(replica.flats) do
      for _, p in ipairs(flat.params) do changed = changed or (fused[p] or false) ~= flat.fused end
    end
    if changed then lay_out_again(model, replica) end
  end
end

-- ---- reducing -----------------------------------------------------------------------------------

--- What the script promised of the parameters that a loss reaches.
local function check_reached(model, replica)
  local ddp = replica.ddp
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
    replica.unreached = replica.unreached or text
    if text ~= replica.unreached then
      fail("backward: static_graph = true, but the graph has changed: parameters without a gradient are " ..
        "%s now and were %s in the first step",
        text, replica.unreached)
    end
  end
end

--- One parameter's gradient averaged over all ranks; those without one count as zeros. nil: no rank
--- has one. All ranks must call it for the same parameter.
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
  local replica = replicas[model]
  if M.uneven_inputs then M.uneven_inputs:announce("reduce", model) end
  untouch(replica)
  if not M.uneven_inputs then check_reached(model, replica) end
  if not buckets.reduce(replica) then
    lay_out_again(model, replica)
    buckets.reduce(replica)  -- means of means: what was reduced already does not change
  end
  -- As in DDP, rank 0's buffers are everybody's. There they travel before the next forward pass;
  -- here at once, so that an evaluation in between sees the same on every rank.
  if replica.has_buffers and replica.ddp.broadcast_buffers then share_buffers(model) end
  if replica.hook then replica.hook.steps = replica.hook.steps + 1 end
end

--- Drops what was noted of gradients that no reduction will take along.
---@param replica accelerate.Replica
function M.drop_touched(replica) untouch(replica) end

--- Reduces what backward passes outside Accelerator:backward (`loss:backward()`) have left
--- unreduced.
---@param models accelerate.nn.Module[]
function M.flush(models)
  for _, model in ipairs(models) do
    local replica = replicas[model]
    if replica.no_sync_depth == 0 and M.is_touched(replica) then M.reduce(model) end
  end
end

--- Runs `fn` with gradients kept on each rank for good: no later reduction takes them along.
function M.local_only(model, fn, ...)
  local replica = replicas[model]
  return at_depth(replica, replica.no_sync_depth + 1, function(...)
    return scope.with(replica, "local_only", true, fn, ...)
  end, ...)
end

--- Runs `fn` with the reduction of `model`'s gradients put off: they add up on each rank, and the
--- next reduction takes them along.
function M.no_sync(model, fn, ...)
  local replica = replicas[model]
  if not replica then return fn(...) end
  return at_depth(replica, replica.no_sync_depth + 1, fn, ...)
end

--- Runs `fn` with the reduction on, also inside no_sync.
function M.with_sync(model, fn, ...)
  local replica = replicas[model]
  if not replica then return fn(...) end
  return at_depth(replica, 0, fn, ...)
end

-- ---- parameters ---------------------------------------------------------------------------------

--- Averages the parameters of a prepared model over all ranks.
---@param model accelerate.nn.Module
function M.average_parameters(model)
  local replica = replicas[model]
  for _, flat in ipairs(replica.flats) do
    if not flat.layout:is_current() then
      lay_out_again(model, replica)
      break
    end
  end
  for _, flat in ipairs(replica.flats) do
    if flat.layout:wants_grad() then
      core.dist.all_reduce(flat.values, "mean")
      flat.layout:touch()  -- each parameter counts its own edits; working copies and saved graphs go by them
    end
  end
end

--- Calls fn(parameter) for the parameters of a prepared model.
function M.each_parameter(model, fn)
  for _, flat in ipairs(replicas[model].flats) do
    for _, p in ipairs(flat.params) do fn(p) end
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
      if not core.flat_of(p) then core.dist.broadcast(p.data, root) end
    end
    for _, buffer in ipairs(model:buffers()) do core.dist.broadcast(buffer, root) end
  end)
end

return M
