--- Flat buffers: a model's parameters of one element type lie one after the other in one piece of
--- memory.
---
--- The layout is the core's (host/flat.h): it owns the buffers of the parameters, of their
--- gradients and of their working copies. The Lua objects stay the same; they become views. Here is
--- which parameters share a layout: those of one type and device that are trained alike, in reverse
--- order of registration, which is about the order in which gradients get ready.
local core = require "accelerate.core"
local state = require "accelerate.state"

local M = {}

---@class accelerate.Flat
---@field layout userdata the core's
---@field number integer the layout's
---@field dtype string
---@field device string
---@field params accelerate.Tensor[] in the order of the buffer
---@field offsets integer[] in elements, counted from 0
---@field size integer elements of all slots
---@field values accelerate.Tensor the parameters
---@field grads accelerate.Tensor? the gradients, then the presence of each: 1 where this rank has
---  one; made when a parameter wants a gradient
---@field work accelerate.Tensor? the parameters once more, in a lower type, for mixed precision
---@field trainable boolean whether its parameters wanted gradients when it was made
---@field fused boolean whether an optimizer applies its gradients inside backward: then it has no
---  buffer for them
---@field cutter accelerate.Replica? the one whose buckets it is cut into
---@field full function? what the core calls when one of them is full

-- Number -> flat.  The replicas of models hold them.
local by_number = setmetatable({}, { __mode = "v" })
-- Parameters whose gradients an optimizer applies, reduced by itself, inside backward.
local fused = setmetatable({}, { __mode = "k" })

M.fused = fused

--- How many were made so far in this process: when it grew, optimizers' state no longer lies as the
--- parameters do.
M.count = 0

--- The flat that a parameter lies in.
---@param p accelerate.Tensor
---@return accelerate.Flat?
function M.of(p)
  local number = core.flat_of(p)
  return number and by_number[number]
end

local function floating(t) return t.dtype:find("float", 1, true) ~= nil end

--- Makes the buffer of gradients.
---@param flat accelerate.Flat
function M.give_grads(flat)
  flat.layout:give_grads()
  flat.grads = flat.layout:grads()
end

--- Makes the buffer of working copies. Autocast writes them when it first needs them; from then on
--- optimizers do.
local function give_work(flat, dtype)
  flat.layout:give_work(dtype)
  flat.work = flat.layout:work()
end

---@return accelerate.Flat
local function new(params)
  local first = params[1]
  local layout, number, offsets, size = core.flat(params)
  local flat = { layout = layout, number = number, offsets = offsets, size = size, params = params,
    dtype = first.dtype, device = first.device,
    values = layout:values(), fused = fused[first] or false }
  by_number[number] = flat
  flat.trainable = first.requires_grad and not flat.fused
  if flat.trainable then M.give_grads(flat) end
  local lower = state.lower_type()
  if lower and flat.dtype == "float32" then give_work(flat, lower) end
  M.count = M.count + 1
  return flat
end

--- Parameters that are not laid out yet, grouped by element type and by what becomes of their
--- gradients; each group in reverse order of registration.
function M.groups_of(params)
  local groups, order, seen = {}, {}, {}
  for i = #params, 1, -1 do
    local p = params[i]
    if not seen[p] and not core.flat_of(p) and floating(p) then
      seen[p] = true
      local key = ("%s %s %s"):format(p.dtype, p.device, fused[p] and "fused" or p.requires_grad and "trained"
        or "frozen")
      if not groups[key] then
        groups[key] = {}
        order[#order + 1] = key
      end
      table.insert(groups[key], p)
    end
  end
  return groups, order
end

--- Lays out what is new in `params`.
---@param flats accelerate.Flat[] what the new ones, and those of other models that hold some of the
---  parameters, join
---@param params accelerate.Tensor[]
---@return accelerate.Flat[] made
function M.lay_out(flats, params)
  local made = {}
  local groups, order = M.groups_of(params)
  for _, key in ipairs(order) do
    made[#made + 1] = new(groups[key])
    flats[#flats + 1] = made[#made]
  end
  -- A parameter shared with another prepared model lies in that one's buffers, which must then be
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

--- Ends these layouts, and lays the parameters out anew: some were converted, or given other
--- memory, since.
---@param flats accelerate.Flat[]
---@param params accelerate.Tensor[]
---@return accelerate.Flat[] flats the new ones
function M.lay_out_again(flats, params)
  for _, flat in ipairs(flats) do flat.layout:dissolve() end
  local fresh = {}
  M.lay_out(fresh, params)
  return fresh
end

--- Does a parameter of a flat that was frozen at prepare want a gradient by now? Then it gets the
--- buffer for them.
---@param flat accelerate.Flat
---@return boolean
function M.has_thawed(flat)
  if flat.fused or not flat.layout:wants_grad() then return false end
  if not flat.grads then M.give_grads(flat) end
  return true
end

return M
