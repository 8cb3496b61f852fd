--- Which token comes next, out of scores (N, V) in float32.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

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

-- The scores with -inf for tokens that top_k and top_p leave out.
local function truncated(scores, o)
  if o.top_k > 0 then scores = keep_largest(scores, o.top_k) end
  if o.top_p < 1 then scores = keep_nucleus(scores, o.top_p) end
  return scores
end

-- x * y, with 0 where x is 0: chances and their logarithms.
local function product(x, y) return (x * y):masked_fill(x:eq(0), 0) end

-- Entropies (N, 1) of scores.
local function entropy(scores)
  local logs = scores:log_softmax(2)
  return -product(logs:exp(), logs):sum(2, true)
end

-- Of the 100 likeliest tokens, the first ones whose share of the entropy is at most top_h.
local function keep_entropy(scores, top_h)
  local values, order = scores:topk(math.min(100, scores:size(2)), 2)
  local logs = values:log_softmax(2)
  local chances = logs:exp()
  local kept = (-product(chances, logs)):cumsum(2):le(entropy(values) * top_h):logical_and(chances:gt(0))
  kept:narrow(2, 1, 1):fill_(true)
  local out = core.ones_like(scores):ne(0):scatter(2, order, kept:logical_not())
  return scores:masked_fill(out, -math.huge)
end

-- Tokens at least min_p times as likely as the likeliest.
local function keep_near(scores, min_p)
  local chances = scores:softmax(2)
  return scores:masked_fill(chances:lt(chances:amax(2, true) * min_p), -math.huge)
end

-- The tokens whose surprise is nearest to the entropy, until their chances sum to `mass`.
local function keep_typical(scores, mass)
  local distance = (-scores:log_softmax(2) - entropy(scores)):abs()
  local sorted, order = distance:sort(2)
  local below = scores:gather(2, order):softmax(2):cumsum(2):lt(mass):long():sum(2, true)
  local out = sorted:gt(sorted:gather(2, below:clamp({ max = scores:size(2) - 1 })))
  out:narrow(2, 1, 1):fill_(false)
  return scores:masked_fill(core.zeros_like(out):scatter(2, order, out), -math.huge)
end

-- Tokens at least as likely as `least`, a number or (N, 1), and the likeliest.
local function keep_likely(scores, least)
  local out = scores:softmax(2):lt(least):logical_and(scores:lt(scores:amax(2, true)))
  return scores:masked_fill(out, -math.huge)
end

--- Returns whether draws depend on temperature, top_k and top_p alone.
---@param o table generate's options
---@return boolean
function M.is_quick(o)
  return not o.top_h and o.min_p == 0 and o.typical_p == 1 and o.epsilon_cutoff == 0 and o.eta_cutoff == 0
end

--- Returns the scores divided by the temperature, with -inf for tokens that are not drawn.
---@param scores accelerate.Tensor
---@param o table generate's options
---@return accelerate.Tensor
function M.warped(scores, o)
  if o.temperature ~= 1 then scores = scores / o.temperature end
  if o.top_h then scores = keep_entropy(scores, o.top_h) end
  scores = truncated(scores, o)
  if o.min_p > 0 then scores = keep_near(scores, o.min_p) end
  if o.typical_p < 1 then scores = keep_typical(scores, o.typical_p) end
  if o.epsilon_cutoff > 0 then scores = keep_likely(scores, o.epsilon_cutoff) end
  local eta = o.eta_cutoff
  if eta > 0 then
    scores = keep_likely(scores, ((-entropy(scores)):exp() * math.sqrt(eta)):clamp({ max = eta }))
  end
  return scores
end

-- A uniform number for each row, (N, 1).
local function uniform(scores, generator)
  return core.rand({ scores:size(1), 1 }, { dtype = "float64", generator = generator })
end

-- A token of each row, int64 (N): the first whose running sum of chances, in the order of the
-- vocabulary, is above the row's uniform number, u (N, 1).
local function draw(scores, u)
  local sums = scores:double():softmax(2):cumsum(2)
  local total = sums:narrow(2, sums:size(2), 1)
  local drawable = total:gt(0)  -- not where a score is NaN or inf, or all are -inf
  if not drawable:all():item() then
    options.fail(
      "generate: row %d of the scores has no token to draw: a score is NaN or inf, or all are -inf",
      drawable:squeeze(2):int():argmin():item() + 1)
  end
  -- never the end itself, nor a token behind the last one that has a chance
  local target = (u:to(sums.device) * total):minimum(total * (1 - 2 ^ -52))
  return core.searchsorted(sums, target, true):squeeze(2)
end

--- Draws a token of each row out of all whose scores are not -inf: the first whose running sum of
--- chances, in the order of the vocabulary, is above a uniform number of float64.
---@param scores accelerate.Tensor
---@param generator accelerate.Generator?
---@return accelerate.Tensor int64 (N)
function M.draw(scores, generator) return draw(scores, uniform(scores, generator)) end

-- ---- without sorting the vocabulary
--
-- The likeliest tokens are found without a sort. Where those hold all that top_k and top_p keep,
-- the rest is arithmetic on short lists.

local exp, least = math.exp, math.min
-- Tokens that are looked at for top_p, first and when those are too few; most for top_k; most that
-- are drawn from in Lua.
local FIRST, MOST, SHORT = 64, 4096, 512

-- How many of the likeliest tokens to look at, in one attempt after the other.
local function attempts(o, vocabulary)
  if o.top_k == 0 then
    return o.top_p < 1 and { least(FIRST, vocabulary), vocabulary > FIRST and least(MOST, vocabulary) or nil }
      or {}
  end
  local n = least(o.top_k + 1, vocabulary)  -- one more shows whether the last one ties
  return { n <= MOST and n or nil }
end

-- How many of the n likeliest tokens are kept, given their weights and the weight of all tokens
-- that count; complete: there are no others. nil: some that are not here may be.
local function kept(scores, weights, n, whole, complete, p)
  if p == 1 then return n end
  local head, count = weights[1], 1
  while count < n and head < p * whole do
    count = count + 1
    head = head + weights[count]
  end
  if count == n then return complete and n or nil end
  return scores[count] ~= scores[count + 1] and count or nil  -- which of equal ones goes, the sort says
end

-- The token that a uniform number draws from the first `count`, in the order of the vocabulary.
local function from_list(ids, weights, count, u)
  local order, weight, total = {}, {}, 0
  for i = 1, count do order[i], weight[ids[i]] = ids[i], weights[i] end
  table.sort(order)
  for i = 1, count do total = total + weight[order[i]] end
  local running, target = 0, least(u * total, total * (1 - 2 ^ -52))
  for i = 1, count do
    running = running + weight[order[i]]
    if running > target then return order[i] end
  end
end

-- The token of a row out of those of order (1, count).
local function from_row(scores, order, u)
  local ids = order:sort(2)
  return ids[1][draw(scores:gather(2, ids), u):item() + 1]:item()
end

-- The function that says how many of a row's tokens are kept, and their weights, for their scores,
-- the largest first, and the logarithm of the weight of all tokens; nil where they do not say it,
-- and then whether some more of them might: where they hold little, many more are wanted.
local function counter(o, n, vocabulary)
  local k = o.top_k > 0 and least(o.top_k, vocabulary) or n
  local complete = o.top_k > 0 or n == vocabulary
  return function(scores, log_total)
    if k < n and scores[k] == scores[n] then return nil end
    local weights, sum = {}, 0
    for i = 1, k do
      weights[i] = exp(scores[i] - scores[1])
      sum = sum + weights[i]
    end
    local whole = complete and sum or exp(log_total - scores[1])
    if not (whole < math.huge) then return nil end  -- or it is no number
    local count = kept(scores, weights, k, whole, complete, o.top_p)
    if count then return count, weights end
    return nil, nil, sum > whole * o.top_p / 8
  end
end

-- The tokens of all rows out of the n likeliest ones, or nil.
local function draw_few(scores, o, u, n)
  local values, order = scores:topk(n, 2)
  local totals = o.top_k == 0 and scores:logsumexp(2):tolist() or {}
  local rows, ids, numbers = values:tolist(), n <= SHORT and order:tolist(), u:tolist()
  local count_of, picked = counter(o, n, scores:size(2)), {}
  for row = 1, #rows do
    local count, weights, hope = count_of(rows[row], totals[row])
    if not count then return nil, hope end
    picked[row] = ids and from_list(ids[row], weights, count, numbers[row][1])
      or from_row(scores:narrow(1, row, 1), order:narrow(1, row, 1):narrow(2, 1, count), u:narrow(1, row, 1))
  end
  return core.tensor(picked, { dtype = "int64", device = scores.device })
end

--- Draws a token of each row, out of those that top_k and top_p leave, as `draw` does.
---@param scores accelerate.Tensor
---@param o { temperature: number, top_k: integer, top_p: number }
---@param generator accelerate.Generator?
---@return accelerate.Tensor int64 (N)
function M.sample(scores, o, generator)
  local u = uniform(scores, generator)
  if o.temperature ~= 1 then scores = scores / o.temperature end
  for _, n in ipairs(attempts(o, scores:size(2))) do
    local picked, hope = draw_few(scores, o, u, n)
    if picked then return picked end
    if not hope then break end
  end
  return draw(truncated(scores, o), u)
end

return M
