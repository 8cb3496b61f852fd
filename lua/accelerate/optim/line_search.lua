--- The line search of optim.LBFGS: a step length that meets the strong Wolfe conditions (Nocedal
--- and Wright, algorithms 3.5 and 3.6). A point is { t = length, loss, grad, slope = the derivative
--- along the direction }.

local M = {}

local SUFFICIENT, CURVATURE, LEAST = 1e-4, 0.9, 1e-9

-- The minimum of the cubic through two points and their slopes, within [low, high].
local function cubic(a, b, low, high)
  if a.t > b.t then a, b = b, a end
  low, high = low or a.t, high or b.t
  local d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
  local square = d1 * d1 - a.slope * b.slope
  if not (square >= 0) then return (low + high) / 2 end
  local d2 = math.sqrt(square)
  local at = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
  return math.min(math.max(at, low), high)
end

local function is_steep(point, start) return math.abs(point.slope) > -CURVATURE * start.slope end

local function is_high(point, start)
  return point.loss > start.loss + SUFFICIENT * point.t * start.slope
end

-- Lengthens the step until an interval holds a point that fits.  Returns the interval's ends, the
-- lower loss first; a point alone fits already.
local function bracket(at, t, start, most)
  local before, point, tries, count = start, at(t), 0, 1
  while tries < most do
    if is_high(point, start) or (tries > 1 and point.loss >= before.loss) then break end
    if not is_steep(point, start) then return point, nil, tries, count end
    if point.slope >= 0 then break end
    t = cubic(before, point, point.t + 0.01 * (point.t - before.t), point.t * 10)
    before, point, tries, count = point, at(t), tries + 1, count + 1
  end
  if tries == most then before = start end
  if before.loss <= point.loss then return before, point, tries, count end
  return point, before, tries, count
end

-- The next length to try between two points.  near: whether the last one was close to an end.
local function between(low, high, near)
  local first, last = math.min(low.t, high.t), math.max(low.t, high.t)
  local t, margin = cubic(low, high), 0.1 * (last - first)
  if math.min(last - t, t - first) >= margin then return t, false end
  if not near and t < last and t > first then return t, true end
  return math.abs(t - last) < math.abs(t - first) and last - margin or first + margin, false
end

--- Returns a point along the direction and the number of evaluations. It meets the strong Wolfe
--- conditions unless `most` evaluations did not suffice, or the interval got too small.
---@param at fun(t: number): table computes the point of a length
---@param t number the first length
---@param start table the point of length 0
---@param longest number the largest element of the direction, absolute
---@param most integer
---@return table point, integer evaluations
function M.strong_wolfe(at, t, start, longest, most)
  local low, high, tries, count = bracket(at, t, start, most)
  local near = false
  while high and tries < most and math.abs(high.t - low.t) * longest >= LEAST do
    t, near = between(low, high, near)
    local point = at(t)
    tries, count = tries + 1, count + 1
    if is_high(point, start) or point.loss >= low.loss then
      high = point
      if high.loss < low.loss then low, high = high, low end
    else
      if not is_steep(point, start) then return point, count end
      if point.slope * (high.t - low.t) >= 0 then high = low end
      low = point
    end
  end
  return low, count
end

return M
