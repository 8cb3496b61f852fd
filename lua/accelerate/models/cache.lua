--- Keys and values of the positions that a decoder has seen, so that a step computes only what is
--- new.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"

---@class accelerate.models.KeyValueCache
---@field length integer positions seen
---@field capacity integer positions that there is memory for
---@field one_by_one boolean attention takes new positions one by one
local Cache = class "KeyValueCache"

local OPTIONS = { capacity = { "integer", default = 64, min = 1 } }

--- Makes an empty cache, for one batch and `model(ids, { cache = cache })`.
---@param opts? { capacity: integer } capacity: positions to reserve memory for, default 64; it
---  grows
function Cache:init(opts)
  self.capacity = options.check("KeyValueCache", opts, OPTIONS).capacity
  self.length, self.keys, self.values, self.one_by_one = 0, {}, {}, false
end

-- A copy that outlives all scopes: a scope lets go of results, not of new tensors.
local function lasting(t)
  local copy = core.empty(t.shape, { dtype = t.dtype, device = t.device })
  copy:copy_(t)
  return copy
end

local function grown(t, capacity, like, used)
  local s = like.shape
  local wide = core.empty({ s[1], s[2], capacity, s[4] }, { dtype = like.dtype, device = like.device })
  if t and used > 0 then wide:narrow(3, 1, used):copy_(t:narrow(3, 1, used)) end
  return wide
end

--- Adds a layer's keys and values, (N, H, T, D), behind those seen, and returns all of them as
--- views (N, H, S, D). The length grows when `advance` is called, after the last layer.
---@param layer integer from 1
---@param k accelerate.Tensor
---@param v accelerate.Tensor
---@return accelerate.Tensor keys
---@return accelerate.Tensor values
function Cache:append(layer, k, v)
  local used, new = self.length, k:size(3)
  local total = used + new
  local keys, values = self.keys[layer], self.values[layer]
  if total > self.capacity then self.capacity = math.max(total, 2 * self.capacity) end
  if not keys or keys:size(3) < total then
    keys, values = grown(keys, self.capacity, k, used), grown(values, self.capacity, v, used)
    self.keys[layer], self.values[layer] = keys, values
  end
  if core.is_grad_enabled() then k, v = k:detach(), v:detach() end
  keys:narrow(3, used + 1, new):copy_(k)
  values:narrow(3, used + 1, new):copy_(v)
  return keys:narrow(3, 1, total), values:narrow(3, 1, total)
end

--- Counts the positions that all layers have added.
---@param count integer
function Cache:advance(count) self.length = self.length + count end

--- Makes row i of the cache what row index[i] was: beams that go on from others.
---@param index accelerate.Tensor int64, from 0
function Cache:reorder(index)
  for layer, keys in ipairs(self.keys) do
    self.keys[layer] = lasting(keys:index_select(1, index))
    self.values[layer] = lasting(self.values[layer]:index_select(1, index))
  end
end

return { KeyValueCache = Cache, lasting = lasting }
