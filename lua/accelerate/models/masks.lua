--- Attention masks: bool, true where a query may attend.

local core = require "accelerate.core"

local M = {}

local function as_bool(mask)
  if mask.dtype == "bool" then return mask end
  return mask:ne(0)
end

--- Returns a mask (N, 1, 1, S) of keys that are no padding.
---@param mask accelerate.Tensor? (N, S), 1 or true for a token, 0 or false for padding
---@return accelerate.Tensor?
function M.keys(mask)
  if not mask then return nil end
  local shape = mask.shape
  return as_bool(mask):view(shape[1], 1, 1, shape[2])
end

--- Returns what scaled_dot_product_attention takes for queries that see the keys before them: a
--- mask, or nil, and is_causal.
---@param queries integer the number of new positions
---@param past integer the number of cached positions before them
---@param padding accelerate.Tensor? (N, past + queries), 0 for padding
---@param device string
---@return accelerate.Tensor? mask
---@return boolean is_causal
function M.causal(queries, past, padding, device)
  if queries == 1 then return M.keys(padding), false end
  if past == 0 and not padding then return nil, true end
  local key = core.arange(past + queries, { device = device })
  local query = core.arange(past, past + queries, { device = device }):view(queries, 1)
  local allowed = key:le(query)
  if padding then
    -- padding before the first token sees itself: a row without keys would become NaN
    local before = M.keys(padding:cumsum(2):eq(0)):logical_and(key:eq(query))
    allowed = M.keys(padding):logical_and(allowed):logical_or(before)
  end
  return allowed, false
end

--- Returns the positions of tokens in rows that may be padded on the left, counted from 0.
---@param padding accelerate.Tensor (N, S)
---@return accelerate.Tensor int64 (N, S); 0 at padding before the first token
function M.positions(padding)
  return (as_bool(padding):long():cumsum(2) - 1):clamp_min(0)
end

return M
