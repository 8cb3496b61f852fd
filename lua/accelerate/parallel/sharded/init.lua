--- Sharded training: buffers of a model's layouts are cut over ranks (host/flat.h, ax_home).
---
--- A prepared model (accelerate.parallel.record) whose `plan` cuts something follows its backward
--- passes as any other does. It differs in
---   layouts      one for each unit (plan/units.lua), cut over the ranks of `shards.group`; where
---                values are cut, no rank has them whole (values.lua)
---   reductions   of gradients that are cut: each unit's are delivered to the ranks' parts once the
---                unit has all of a pass, in the order of the layouts; also inside no_sync
---   steps        an optimizer steps this rank's pieces; then parts of whole values are exchanged,
---                and whole copies of values that are cut are out of date and freed
--- The model's parameters stay the objects they were, with their names and whole shapes.
local core = require "accelerate.core"
local distributed = require "accelerate.distributed"
local flat_buffers = require "accelerate.parallel.flat"
local options = require "accelerate.utils.options"
local pieces = require "accelerate.parallel.pieces"
local places = require "accelerate.parallel.sharded.places"
local scope = require "accelerate.utils.scope"
local state = require "accelerate.state"
local forward = require "accelerate.parallel.sharded.forward"
local units = require "accelerate.parallel.plan.units"
local values = require "accelerate.parallel.sharded.values"

local fail = options.fail

local M = {}

---@class accelerate.ShardedRecord: accelerate.ReplicaRecord
---@field plan accelerate.ShardingPlan how its buffers are cut over ranks
---@field shards accelerate.Shards the groups of ranks that they are cut over
---@field units accelerate.ShardedUnit[]
---@field eight table<accelerate.Tensor, boolean> which parameters are gathered in eight bits
---@field shared boolean? whether ranks have one copy of the parameters between them
---@field gathers boolean? whether some parameters are cut, and ranks have no copy of them
---@field delivers boolean whether gradients are cut: every pass is reduced

---@class accelerate.Shards the groups of a sharded model
---@field group accelerate.ProcessGroup the ranks that values are cut over
---@field copies accelerate.ProcessGroup? the ranks with the same part; nil: there is one copy

local HALF = { bfloat16 = true, float16 = true }

local known = {}  -- the groups by their sizes: making them is collective

local function groups_of(plan)
  local key = plan.replicate .. " x " .. plan.shard
  if not known[key] then
    local mesh = distributed.mesh { dp_replicate = plan.replicate, dp_shard = plan.shard }
    known[key] = { group = plan.replicate > 1 and mesh.dp_shard
      or require("accelerate.distributed.group").world(),
      copies = plan.replicate > 1 and mesh.dp_replicate or nil }
  end
  return known[key]
end

--- Returns whether values, gradients or states are cut. On one rank nothing is cut, except values
--- of a device that rest in host memory and are whole on the device for a time.
---@param plan accelerate.ShardingPlan
---@param what "values"|"gradients"|"states"
function M.is_cut(plan, what)
  return plan[what] == "cut" and (plan.shard > 1 or what ~= "states" and plan.offload[what] == "cpu")
end

local is_cut = M.is_cut

local function cuts(plan)
  return is_cut(plan, "values") or is_cut(plan, "gradients") or is_cut(plan, "states")
end

--- Returns whether a plan cuts anything on this run, or has buffers that rest in files.
---@param plan accelerate.ShardingPlan?
function M.applies(plan)
  return plan ~= nil and (state.PartialState().num_processes > 1 and cuts(plan) or places.applies(plan))
end

--- Refuses the parts of a plan that are not there.
local function check(plan, handler)
  places.check(plan, state.PartialState().device)
  if plan.values == "cut" and plan.gradients ~= "cut" then
    fail("prepare: %s: values that are cut need gradients that are cut", plan.name)
  end
  if handler and (handler.comm_hook or "no") ~= "no" then
    fail("prepare: %s: a communication hook is for replicated gradients, as DDP has them: leave comm_hook " ..
      "out, and give reduce_dtype in mixed_precision_policy for gradients that travel in a half type",
      plan.name)
  end
  if handler and handler.static_graph then
    fail("prepare: %s: static_graph is for replicated gradients, as DDP has them, " ..
      "and units need it not; leave it out", plan.name)
  end
end

--- Refuses an optimizer that takes the gradients of all parameters as one vector, where ranks have
--- parts of them.
---@param plan accelerate.ShardingPlan?
---@param optimizer accelerate.optim.Optimizer
function M.check_optimizer(plan, optimizer)
  if not (optimizer._takes_whole and M.applies(plan) and is_cut(plan, "gradients")) then return end
  fail("prepare_optimizer: %s takes the gradients of all parameters as one vector, of which a rank has a " ..
    "part under %s (PyTorch's FSDP has no %s either): use AdamW, say, " ..
    "or a plan with whole gradients, such as ZeRO-1", optimizer.__name, plan.name, optimizer.__name)
end

--- Refuses gradients with a history of their own: reducing them into parts leaves none.
---@param record accelerate.ModelRecord
function M.check_history(record)
  if not record.delivers then return end
  fail("backward: create_graph: gradients are reduced into the parts of %s, which have no history (FSDP " ..
    "has no second derivatives of them either): autograd.grad(loss, inputs, { create_graph = true }) has " ..
    "one, and backward takes what is made of it", record.plan.name)
end

--- Refuses what recordings of a model's passes (dynamo_backend = "cudagraphs") cannot contain.
---@param plan accelerate.ShardingPlan
function M.check_recorded(plan)
  local what = places.applies(plan) and "offload, whose transfers the host makes"
    or plan.whole_in_no_sync and "whole_in_no_sync, whose gradients outlast a recorded pass"
  if what then
    fail("prepare_model: dynamo_backend = 'cudagraphs' cannot record passes under %s with %s", plan.name,
      what)
  end
end

--- Prepares a model for its layouts. Called once, before they are made.
---@param record accelerate.ShardedRecord
---@param model accelerate.nn.Module
---@param plan accelerate.ShardingPlan
---@param handler accelerate.DistributedDataParallelKwargs?
function M.begin(record, model, plan, handler)
  check(plan, handler)
  record.plan, record.shards = plan, groups_of(plan)
  record.delivers = is_cut(plan, "gradients")
  record.units, record.unit_of = units.divide(model, plan.units and plan.units(model) or {})
  record.ignored = plan.ignored and plan.ignored(model) or {}
  record.eight = plan.eight and is_cut(plan, "values") and plan.eight(model) or {}
end

-- The half type that a layout's values are gathered in; nil: their own type.
local function gathered_type(plan, flat)
  local dtype = plan.param_dtype or state.lower_type()
  return flat.dtype == "float32" and HALF[dtype] and dtype or nil
end

-- Has a layout of weights that compute in eight bits gathered so, where its values are gathered in
-- nothing else that rounds.
local function gather_in_eight(plan, flat)
  local lower, gathered = state.lower_type(), gathered_type(plan, flat)
  if not lower or flat.dtype ~= "float32" and flat.dtype ~= lower then return end
  if not gathered or gathered == lower then flat.layout:gather_in_eight(lower) end
end

local function names_of(model)
  local names = {}
  for name, p in model:named_parameters() do names[p] = name end
  return names
end

local function unit_of(record, flat) return record.unit_of[flat.params[1]] or record.units[1] end

-- Of a model that is not cut, where a layout rests is decided before its gradients are made.
local function rest_whole(record, flat, names)
  if record.ignored[flat.params[1]] then return end
  forward.name(unit_of(record, flat), flat, names)
  places.rest(record.plan, flat, false)
end

--- Cuts layouts that were made. All ranks have rank 0's values afterwards.
---@param record accelerate.ShardedRecord
---@param model accelerate.nn.Module
---@param made accelerate.Flat[]
function M.cut(record, model, made)
  local plan, names, bare = record.plan, names_of(model), {}
  for _, flat in ipairs(cuts(plan) and made or {}) do
    local unit = unit_of(record, flat)
    flat.whole = record.ignored[flat.params[1]] or false
    if not flat.whole then
      forward.name(unit, flat, names)
      places.rest(plan, flat, true)
      flat.layout:cut_over(record.shards.group._handle, record.shards.copies
        and record.shards.copies._handle,
        is_cut(plan, "values"), is_cut(plan, "gradients"), gathered_type(plan, flat))
      flat.cut, flat.cut_values = true, is_cut(plan, "values")
      if record.eight[flat.params[1]] then gather_in_eight(plan, flat) end
      if flat.former then
        bare[#bare + 1] = flat
        if flat.trainable then flat_buffers.give_grads(flat) end
      end
      flat.shared, flat.group = flat.layout:is_shared(), record.shards.group
      record.shared = record.shared or flat.shared
      record.gathers = record.gathers or flat.cut_values and not flat.shared
      flat.delivers = is_cut(plan, "gradients") and flat.trainable
      unit.flats[#unit.flats + 1] = flat
    end
  end
  values.fill(bare)
  pieces.meet(record)
  if record.gathers and not record.installed then
    record.installed = true
    forward.install(record, plan.reshard_after_forward)
  end
  if places.applies(plan) then core.empty_cache() end -- the memory of its former buffers is given back
end

-- Parameters that are divided into layouts as others are -> the number of the other's layout.
local like = setmetatable({}, { __mode = "k" })

--- Puts a parameter, when its model is prepared, into one layout with those that are like others of
--- one layout.
---@param p accelerate.Tensor
---@param other accelerate.Tensor
function M.group_like(p, other)
  local flat = flat_buffers.of(other)
  like[p] = flat and flat.number
end

--- Returns how the parameters of a model are divided into layouts.
---@param record accelerate.ShardedRecord
---@param model accelerate.nn.Module
function M.units_of(record, model)
  local names = not cuts(record.plan) and names_of(model)
  return { made = names and function(flat) rest_whole(record, flat, names) end or nil,
    cuts = cuts(record.plan), parts = record.shards.group.size, key = function(p)
    if record.ignored[p] then return " ignored" end
    return " " .. (record.unit_of[p] or record.units[1]).name .. (record.eight[p] and " eight" or "") ..
      (like[p] and " like " .. like[p] or "")
  end, bare = function(p) return is_cut(record.plan, "values") and not record.ignored[p] end }
end

-- ---- gradients

-- In the order of delivery. The model's own unit has the first and the last layers of a forward
-- pass, so that its gradients are complete last: other units must not wait for it.
local function trained(record)
  local list, own = {}, {}
  for _, flat in ipairs(record.flats) do
    local unit = unit_of(record, flat)
    local into = unit.root and own or list
    if not flat.whole and (flat.trainable or flat_buffers.has_thawed(flat)) then into[#into + 1] = flat end
  end
  for _, flat in ipairs(own) do list[#list + 1] = flat end
  return list
end

-- Gradients that are reduced in a lower type are rounded to it before they are summed.
local function deliver(flat, dtype)
  flat.layout:deliver(dtype)
  if flat.cut_values then flat.layout:drop_values() end
end

-- Inside summon_full_params values are a copy, which is taken back at its end.
local function refuse_summoned(flats, what)
  for _, flat in ipairs(flats) do
    if flat.summoned then
      fail("%s: the model's values are a copy inside summon_full_params, which would take back what this " ..
        "changes; " ..
        "call it outside", what)
    end
  end
end

--- Prepares a backward pass: with `overlapping`, units that have all gradients of the pass are
--- delivered inside it.
---@param record accelerate.ShardedRecord
---@param overlapping boolean
function M.expect(record, overlapping)
  local list, full = trained(record), {}
  refuse_summoned(list, "backward")
  record.delivered, record.late = 0, {}
  local function arrived(i, late)
    full[i] = true
    if late and i <= record.delivered then record.late[i] = true end
    while full[record.delivered + 1] do
      local flat = list[record.delivered + 1]
      if flat.layout:is_watched(1) then return end
      deliver(flat, record.plan.reduce_dtype)
      record.delivered = record.delivered + 1
    end
  end
  for i, flat in ipairs(list) do
    if flat.cutter ~= record then
      flat.layout:cut { #flat.params }
      flat.cutter = record
    end
    flat.full = function(_, late) arrived(i, late) end
    flat.layout:expect(overlapping and flat.full or nil)
    full[i] = flat.layout:pending(1) == 0
  end
end

--- Follows the backward pass no longer: a replay has delivered its gradients.
---@param record accelerate.ModelRecord
function M.ignore(record)
  for _, flat in ipairs(trained(record)) do flat.layout:ignore() end
end

-- Reading the agreement of ranks waits for the device, and a unit that some ranks deliver
-- twice is rare: on a GPU only where parts of the model are computed again in backward.
local function asks_for_late(record, presence)
  record.had_late = record.had_late or next(record.late) ~= nil
  return presence.device == "cpu" or record.had_late or record.plan.activation_checkpointing
end

-- In a recording nothing is read from the device, so each rank has to have all gradients, and ranks
-- compare what they have recorded: a unit that one of them delivers twice is delivered so by all.
local function reduce_recorded(record, list)
  for i, flat in ipairs(list) do
    for k, p in ipairs(flat.params) do
      if p.requires_grad and not p.grad then
        fail("backward: '%s' has no gradient on this rank, and a captured step cannot ask the device " ..
          "whether others have one: freeze it, or call the step without capture", flat.names[k])
      end
    end
    if record.late[i] then deliver(flat, record.plan.reduce_dtype) end
  end
end

--- Delivers the units that are left, and makes ranks agree about parameters without a gradient, and
--- about units that got another gradient on some rank after their delivery. A collective.
---@param record accelerate.ShardedRecord
function M.reduce(record)
  local list, layouts, first = trained(record), {}, { 1 }
  for i, flat in ipairs(list) do
    flat.layout:ignore()
    layouts[i], first[i + 1] = flat.layout, first[i] + #flat.params
  end
  if #list == 0 then return end
  record.late = record.late or {}
  for i = (record.delivered or 0) + 1, #list do deliver(list[i], record.plan.reduce_dtype) end
  if core.is_recording() then
    reduce_recorded(record, list)
    record.delivered, record.late = 0, {}
    return
  end
  local presence = core.flat_presence(layouts)
  for i in pairs(record.late) do presence[first[i]] = 2 end
  core.dist.all_reduce(presence, "max")
  core.flat_adopt(layouts, presence)
  if asks_for_late(record, presence) then
    presence = presence:cpu()
    for i, flat in ipairs(list) do
      if presence[first[i]]:item() == 2 then deliver(flat, record.plan.reduce_dtype) end
    end
  end
  record.delivered, record.late = 0, {}
end

--- Ends a backward pass: whole copies of values are freed.
---@param record accelerate.ShardedRecord
function M.finish(record)
  for _, flat in ipairs(record.flats) do
    if flat.cut_values then flat.layout:drop_values() end
  end
end

--- Before an optimizer's step.
---@param record accelerate.ShardedRecord
function M.steps(record)
  refuse_summoned(record.flats, "step")
  pieces.meet(record)
end

--- After an optimizer's step: gives all ranks the values that each has stepped.
---@param record accelerate.ShardedRecord
---@param groups table[] the optimizer's param_groups
function M.stepped(record, groups)
  local moved = flat_buffers.of_groups(groups)
  for _, flat in ipairs(record.flats) do
    if flat.cut_values then
      flat.layout:drop_values()
      if moved[flat] then flat.layout:touch() end -- an optimizer that steps in Lua writes pieces
    elseif moved[flat] and not flat.whole then flat.layout:spread() end
  end
  pieces.meet(record)
end

-- ---- the whole model

-- Runs fn(...) with the values of flats whole.
local function with_whole(flats, write, from, fn, ...)
  local group
  for _, flat in ipairs(flats) do
    flat.layout:acquire(write ~= nil and "write" or "read")
    flat.summoned = (flat.summoned or 0) + 1
    if flat.shared then group = flat.group end
  end
  local results = scope.pack(xpcall(fn, scope.traced, ...))
  if group and write then core.dist.barrier(group._handle) end -- all ranks have their copies
  for _, flat in ipairs(flats) do
    if write and results[1] then
      if from then core.dist.broadcast(flat.values, from) end
      flat.layout:take_back()
    end
    flat.layout:let_go(false)
    flat.summoned = flat.summoned > 1 and flat.summoned - 1 or nil
  end
  if group and write then core.dist.barrier(group._handle) end -- and all parts are written
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, results.n)
end

--- Runs fn(...) with the model's values whole on every rank, and returns what it returns. A
--- collective, also inside: no rank may leave early.
---@param record accelerate.ShardedRecord
---@param write boolean? whether edits are taken back; nil: there are none; ranks must have made the
---  same ones, or give `from`
---@param from integer? the rank whose values all ranks take before
---@param fn function
---@return any ...
function M.summon(record, write, from, fn, ...)
  local flats = {}
  for _, flat in ipairs(record.flats) do
    if flat.cut_values then flats[#flats + 1] = flat end
  end
  return with_whole(flats, write, from, fn, ...)
end

--- Runs fn(...) as `summon` does, with the units alone that have some of these parameters.
---@param params accelerate.Tensor[]
---@return any ...
function M.gather(params, write, from, fn, ...)
  local flats, seen = {}, {}
  for _, p in ipairs(params) do
    local flat = flat_buffers.of(p)
    if flat and flat.cut_values and not seen[flat] then
      seen[flat], flats[#flats + 1] = true, flat
    end
  end
  return with_whole(flats, write, from, fn, ...)
end

return M
