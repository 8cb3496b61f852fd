--- Flat buffers: a model's parameters of one element type lie one after the other in one piece of
--- memory.
---
--- The Lua objects stay the same; they become views.  Slots are multiples of 256 bytes, in reverse
--- order of registration, which is about the order in which gradients get ready.  Padding is zero
--- and stays zero, so optimizers and norms may run over it.
---
--- A gradient buffer of the same layout ends with one number for each parameter, its presence: 1
--- where this rank has a gradient (accelerate.parallel says what for).
local core = require "accelerate.core"
local state = require "accelerate.state"

local M = {}

local SLOT_BYTES = 256

---@class accelerate.Chunk
---@field dtype string
---@field params accelerate.Tensor[] in the order of the buffer
---@field offsets integer[] in elements, counted from 0
---@field size integer elements of all slots
---@field flat accelerate.Tensor the parameters
---@field grads accelerate.Tensor? the gradients and the presence; made when a parameter wants a
---  gradient
---@field work accelerate.Tensor? the parameters once more, in a lower type, for mixed precision
---@field trainable boolean whether its parameters wanted gradients when it was made
---@field fused boolean whether an optimizer applies its gradients inside backward: then it has no
---  buffer for them

-- Parameter -> chunk.  Weak on both sides: the chunk holds its parameters, and the record holds the
-- chunk.
local homes = setmetatable({}, { __mode = "kv" })
-- Parameters whose gradients an optimizer applies, reduced by itself, inside backward.
local fused = setmetatable({}, { __mode = "k" })

M.homes, M.fused = homes, fused

--- How many chunks were made so far in this process: when it grew, optimizers' state no longer lies
--- as the parameters do.
M.layouts = 0

local function floating(t) return t.dtype:find("float", 1, true) ~= nil end

--- Reserves the gradients' slots.
function M.give_slots(chunk)
  chunk.grads = core.zeros({ chunk.size + #chunk.params }, { dtype = chunk.dtype, device = chunk.device })
  for i, p in ipairs(chunk.params) do core.set_grad_slot(p, chunk.grads, chunk.offsets[i]) end
end

--- Reserves the parameters' working copies.  Autocast writes them when it first needs them; from
--- then on optimizers do.
local function give_works(chunk, dtype)
  chunk.work = core.zeros({ chunk.size }, { dtype = dtype, device = chunk.device })
  for i, p in ipairs(chunk.params) do core.set_work(p, chunk.work, chunk.offsets[i]) end
end

local function new_chunk(params)
  local first = params[1]
  local chunk = { dtype = first.dtype, device = first.device, params = params, offsets = {}, size = 0,
    fused = fused[first] or false }
  chunk.trainable = first.requires_grad and not chunk.fused
  local unit = SLOT_BYTES / first:element_size()
  for i, p in ipairs(params) do
    chunk.offsets[i] = chunk.size
    chunk.size = chunk.size + math.ceil(p:numel() / unit) * unit
  end
  chunk.flat = core.zeros({ chunk.size }, { dtype = chunk.dtype, device = chunk.device })
  for i, p in ipairs(params) do
    core.rebind(p, chunk.flat, chunk.offsets[i])
    homes[p] = chunk
  end
  if chunk.trainable then
    M.give_slots(chunk)
  else
    for _, p in ipairs(params) do core.set_grad_slot(p, nil) end
  end
  local lower = state.lower_type()
  if lower and chunk.dtype == "float32" then give_works(chunk, lower) end
  M.layouts = M.layouts + 1
  return chunk
end

--- Parameters that are not laid out yet, grouped by element type and by what becomes of their
--- gradients; each group in reverse order of registration.
function M.groups_of(params)
  local groups, order, seen = {}, {}, {}
  for i = #params, 1, -1 do
    local p = params[i]
    if not seen[p] and not homes[p] and floating(p) then
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
---@param record { chunks: accelerate.Chunk[] } what the new ones, and those of other models that
---  hold some of them, join
---@param params accelerate.Tensor[]
---@return accelerate.Chunk[] the chunks made
function M.lay_out(record, params)
  local made = {}
  local groups, order = M.groups_of(params)
  for _, key in ipairs(order) do
    made[#made + 1] = new_chunk(groups[key])
  end
  for _, chunk in ipairs(made) do table.insert(record.chunks, chunk) end
  -- A parameter shared with another prepared model lives in that one's chunk, which must then be
  -- reduced with this model, too.
  local known = {}
  for _, chunk in ipairs(record.chunks) do known[chunk] = true end
  for _, p in ipairs(params) do
    local home = homes[p]
    if home and not known[home] then
      known[home] = true
      table.insert(record.chunks, home)
    end
  end
  return made
end

--- Lays a model out anew: its parameters were converted, or given other memory, since.
function M.lay_out_again(model, record)
  for _, chunk in ipairs(record.chunks) do
    for _, p in ipairs(chunk.params) do
      if homes[p] == chunk then homes[p] = nil end
    end
  end
  record.chunks = {}
  M.lay_out(record, model:parameters())
end

return M
