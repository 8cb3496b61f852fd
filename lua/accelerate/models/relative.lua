--- Relative positions in buckets, as T5 has them.

local core = require "accelerate.core"

local M = {}

--- Returns the bucket of each distance between a query and a key: small distances have one each,
--- larger ones share, up to a distance from which all are alike.
---@param past integer the queries' first position
---@param queries integer
---@param keys integer
---@param both_ways boolean half of the buckets are for keys after the query; else these are as near
---@param count integer buckets
---@param farthest integer
---@param device string
---@return accelerate.Tensor int64 (queries, keys), from 0
function M.buckets(past, queries, keys, both_ways, count, farthest, device)
  local query = core.arange(past, past + queries, { device = device }):view(queries, 1)
  local distance = core.arange(keys, { device = device }) - query
  local after
  if both_ways then
    count = math.floor(count / 2)
    after = distance:gt(0):long() * count
    distance = distance:abs()
  else
    distance = (-distance):clamp_min(0)
  end
  local exact = math.floor(count / 2)
  local far = ((distance:clamp_min(1):float() / exact):log() / math.log(farthest / exact) * (
    count - exact)):long()
  local bucket = core.where(distance:lt(exact), distance, (far + exact):clamp_max(count - 1))
  return after and bucket + after or bucket
end

return M
