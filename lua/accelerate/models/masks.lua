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

--- Returns the mask of queries that see the keys up to themselves, (queries, past + queries) or
--- with padding (N, 1, queries, past + queries); of one query without padding nil.
---@param queries integer the number of new positions
---@param past integer the number of cached positions before them
---@param padding accelerate.Tensor? (N, past + queries), 0 for padding
---@param device string
---@return accelerate.Tensor?
function M.causal_of(queries, past, padding, device)
  if queries == 1 then return M.keys(padding) end
  local key = core.arange(past + queries, { device = device })
  local query = core.arange(past, past + queries, { device = device }):view(queries, 1)
  local allowed = key:le(query)
  if not padding then return allowed end
  -- padding before the first token sees itself: a row without keys would become NaN
  local before = M.keys(padding:cumsum(2):eq(0)):logical_and(key:eq(query))
  return M.keys(padding):logical_and(allowed):logical_or(before)
end

--- Returns the mask of queries that see the `window` positions up to themselves, (queries, past +
--- queries) or with padding (N, 1, queries, past + queries).
---@param queries integer
---@param past integer
---@param padding accelerate.Tensor? (N, past + queries), 0 for padding
---@param window integer
---@param device string
---@return accelerate.Tensor
function M.window(queries, past, padding, window, device)
  local key = core.arange(past + queries, { device = device })
  local query = core.arange(past, past + queries, { device = device }):view(queries, 1)
  local allowed = key:le(query):logical_and(key:gt(query - window))
  if not padding then return allowed end
  -- padding sees itself: a row without keys would become NaN
  local itself = M.keys(padding):logical_not():logical_and(key:eq(query))
  return M.keys(padding):logical_and(allowed):logical_or(itself)
end

--- Returns what scaled_dot_product_attention takes for such queries: a mask, or nil, and is_causal.
---@param queries integer
---@param past integer
---@param padding accelerate.Tensor?
---@param device string
---@return accelerate.Tensor? mask
---@return boolean is_causal
function M.causal(queries, past, padding, device)
  if past == 0 and not padding and queries > 1 then return nil, true end
  return M.causal_of(queries, past, padding, device), false
end

--- Returns the positions of tokens in rows that may be padded on the left, counted from 0.
---@param padding accelerate.Tensor (N, S)
---@return accelerate.Tensor int64 (N, S); 0 at padding before the first token
function M.positions(padding)
  return (as_bool(padding):long():cumsum(2) - 1):clamp_min(0)
end

return M
