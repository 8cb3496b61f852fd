--- Which token comes next, out of scores (N, V) in float32.

local core = require "accelerate.core"

local M = {}

--- Returns what marks the tokens of rows, for the repetition penalty.
---@param ids accelerate.Tensor (N, T)
---@param vocabulary integer
---@param real accelerate.Tensor? (N, T) bool, false for padding
---@return accelerate.Tensor bool (N, vocabulary)
function M.seen(ids, vocabulary, real)
  local none = core.zeros({ ids:size(1), vocabulary }, { device = ids.device })
  local counts = real and real:float() or core.ones(ids.shape, { device = ids.device })
  return none:scatter_add(2, ids, counts):ne(0)
end

--- Returns the scores with those of tokens seen before made smaller: divided by the penalty above
--- 0, multiplied below.
function M.penalised(scores, seen, penalty)
  local less = core.where(scores:lt(0), scores * penalty, scores / penalty)
  return core.where(seen, less, scores)
end

-- All but the k largest scores of each row become -inf.
local function keep_largest(scores, k)
  local count = scores:size(2)
  if k >= count then return scores end
  local least = scores:topk(k, 2):narrow(2, k, 1)
  return scores:masked_fill(scores:lt(least), -math.huge)
end

-- The least likely tokens of each row whose chances sum to at most 1 - p become -inf, never the
-- likeliest.
local function keep_nucleus(scores, p)
  local sorted, order = scores:sort(2)
  local count = scores:size(2)
  local out = sorted:softmax(2):cumsum(2):le(1 - p)
  out:narrow(2, count, 1):fill_(false)
  return scores:masked_fill(core.zeros_like(out):scatter(2, order, out), -math.huge)
end

--- Returns the scores that the draw is made from.
---@param o { temperature: number, top_k: integer, top_p: number }
function M.warped(scores, o)
  if o.temperature ~= 1 then scores = scores / o.temperature end
  if o.top_k > 0 then scores = keep_largest(scores, o.top_k) end
  if o.top_p < 1 then scores = keep_nucleus(scores, o.top_p) end
  return scores
end

--- Draws a token of each row: the first whose running sum of chances, in the order of the
--- vocabulary, is above a uniform number of float64.
---@param scores accelerate.Tensor
---@param generator accelerate.Generator?
---@return accelerate.Tensor int64 (N)
function M.draw(scores, generator)
  local sums = scores:double():softmax(2):cumsum(2)
  local count = sums:size(2)
  local u = core.rand({ sums:size(1), 1 }, { dtype = "float64", generator = generator }):to(sums.device)
  local total = sums:narrow(2, count, 1)
  -- never the end itself, nor a token behind the last one that has a chance
  return core.searchsorted(sums, (u * total):minimum(total * (1 - 2 ^ -52)), true):squeeze(2)
end

return M
