--- Flat buffers: a model's parameters of one dtype stand one after the other in memory.
---
--- The layout is the core's (host/flat.h), which owns the buffers of parameters, gradients and
--- working copies. Parameters keep their Lua objects and become views. This file decides which
--- parameters share a layout: those of one dtype and device that are trained alike, in reverse
--- order of registration, which is about the order in which their gradients arrive.
local core = require "accelerate.core"
local state = require "accelerate.state"

local M = {}

---@class accelerate.Flat
---@field layout userdata the core's object
---@field number integer the core's number of the layout
---@field dtype string
---@field device string
---@field params accelerate.Tensor[] in the order of the buffer
---@field offsets integer[] in elements, from 0
---@field size integer number of elements of all slots
---@field values accelerate.Tensor the parameters
---@field grads accelerate.Tensor? the gradients, then the presence of each: 1 where this rank has a
---  gradient; made when a parameter first requires a gradient
---@field work accelerate.Tensor? working copies in a lower dtype, for mixed precision
---@field trainable boolean whether its parameters required gradients when it was made
---@field fused boolean whether an optimizer applies its gradients inside backward; it has no
---  gradient buffer then
---@field cut boolean? whether optimizer states are cut over ranks
---@field cut_values boolean? whether the parameters are
---@field shared boolean? whether the ranks of `group` have one copy of the parameters between them
---@field group accelerate.ProcessGroup? the ranks that it is cut over
---@field summoned integer? open scopes of summon_full_params
---@field away boolean? whether some of its buffers rest in files
---@field whole boolean? of a sharded model: its parameters are left as they are, and not managed
---@field former accelerate.Tensor[]? of a layout without values, until its pieces are written: what
---  its parameters were before
---@field cutter accelerate.ModelRecord? whose record cut it into buckets
---@field full function? the core calls it when a bucket is full

-- Number -> flat. The records of models hold the references.
local by_number = setmetatable({}, { __mode = "v" })
-- Parameters whose optimizer reduces and applies each gradient inside backward.
local fused = setmetatable({}, { __mode = "k" })

M.fused = fused

--- Number of flats made in this process. When it has grown, optimizer states may no longer match
--- the parameters' layout.
M.count = 0

--- Returns the flat that holds a parameter.
---@param p accelerate.Tensor
---@return accelerate.Flat?
function M.of(p)
  local number = core.flat_of(p)
  return number and by_number[number]
end

--- Returns the flats that hold parameters of an optimizer's groups, as keys.
---@param groups table[] param_groups
---@return table<accelerate.Flat, boolean>
function M.of_groups(groups)
  local found = {}
  for _, group in ipairs(groups) do
    for _, p in ipairs(group.params) do
      local flat = M.of(p)
      if flat then found[flat] = true end
    end
  end
  return found
end

local floating = core._is_float

--- Makes the gradient buffer.
---@param flat accelerate.Flat
function M.give_grads(flat)
  flat.layout:give_grads()
  flat.grads = flat.layout:grads()
end

--- Makes the buffer of working copies. Autocast writes them at their first use; from then on
--- optimizers do.
local function give_work(flat, dtype)
  flat.layout:give_work(dtype)
  flat.work = flat.layout:work()
end

---@param params accelerate.Tensor[]
---@param units { parts: integer, bare: fun(p: accelerate.Tensor): boolean, made: fun(flat:
---  accelerate.Flat)? }? of a model under a plan; parts: equal ones that it can be cut into; bare:
---  its values are cut at once: it never has the whole of them, and gets gradients when it is cut;
---  made: decides where buffers rest
---@return accelerate.Flat
local function new(params, units)
  local parts, bare = units and units.parts or 1, units and units.bare(params[1]) or false
  local first, former = params[1], bare and {} or nil
  for i = 1, bare and #params or 0 do former[i] = params[i]:detach() end
  local layout, number, offsets, size = core.flat(params, parts, bare)
  local flat = { layout = layout, number = number, offsets = offsets, size = size, params = params,
    dtype = first.dtype, device = first.device, former = former,
    values = layout:values(), fused = fused[first] or false }
  by_number[number] = flat
  flat.trainable = first.requires_grad and not flat.fused
  if units and units.made then units.made(flat) end
  if flat.trainable and not bare then M.give_grads(flat) end
  local lower = state.lower_type()
  if lower and flat.dtype == "float32" and parts == 1 and not flat.away
    and not (units and units.cuts) then give_work(flat, lower) end
  M.count = M.count + 1
  return flat
end

--- Groups parameters that are in no flat yet by dtype, device and kind of training (trained,
--- frozen, fused), each group in reverse order of registration.
---@param params accelerate.Tensor[]
---@param key_of? fun(p: accelerate.Tensor): string a further key, of a unit
function M.groups_of(params, key_of)
  local groups, order, seen = {}, {}, {}
  for i = #params, 1, -1 do
    local p = params[i]
    if not seen[p] and not core.flat_of(p) and floating(p) then
      seen[p] = true
      local key = ("%s %s %s%s"):format(p.dtype, p.device,
        fused[p] and "fused" or p.requires_grad and "trained" or "frozen", key_of and key_of(p) or "")
      if not groups[key] then
        groups[key] = {}
        order[#order + 1] = key
      end
      table.insert(groups[key], p)
    end
  end
  return groups, order
end

--- Makes flats for the parameters that are in none yet.
---@param flats accelerate.Flat[] gets the new flats appended, and other models' flats that hold
---  some of the parameters
---@param params accelerate.Tensor[]
---@param units? { key: fun(p: accelerate.Tensor): string, parts: integer, bare: fun(p:
---  accelerate.Tensor): boolean, made: fun(flat: accelerate.Flat)? } of a model under a plan
---@return accelerate.Flat[] made
function M.lay_out(flats, params, units)
  local made = {}
  local groups, order = M.groups_of(params, units and units.key)
  for _, key in ipairs(order) do
    made[#made + 1] = new(groups[key], units)
    flats[#flats + 1] = made[#made]
  end
  -- A parameter shared with another prepared model is in that model's buffers, which must then be
  -- reduced with this model, too.
  local known = {}
  for _, flat in ipairs(flats) do known[flat] = true end
  for _, p in ipairs(params) do
    local flat = M.of(p)
    if flat and not known[flat] then
      known[flat] = true
      flats[#flats + 1] = flat
    end
  end
  return made
end

--- Dissolves these layouts and makes new ones, after parameters were converted or got new memory.
---@param flats accelerate.Flat[]
---@param params accelerate.Tensor[]
---@return accelerate.Flat[] flats the new ones
function M.lay_out_again(flats, params)
  for _, flat in ipairs(flats) do flat.layout:dissolve() end
  local fresh = {}
  M.lay_out(fresh, params)
  return fresh
end

--- Returns whether a flat has a parameter that requires a gradient, also one that was frozen at
--- `prepare`. Makes the gradient buffer if it is missing.
---@param flat accelerate.Flat
---@return boolean
function M.has_thawed(flat)
  if flat.fused or not flat.layout:wants_grad() then return false end
  if not flat.grads then M.give_grads(flat) end
  return true
end

return M
