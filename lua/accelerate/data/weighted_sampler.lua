--- A sampler that draws positions in proportion to weights.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local by_position = require "accelerate.utils.positions"
local sampler = require "accelerate.data.sampler"

local fail, show = options.fail, options.show

local M = {}

-- Returns the weights as a list of numbers.
local function read_weights(weights)
  if core.is_tensor(weights) then
    if weights.ndim ~= 1 then
      fail("WeightedRandomSampler: expected weights with one dim, got %s", show(weights))
    end
    weights = weights:to("float64"):totable()
  elseif type(weights) ~= "table" or getmetatable(weights) then
    fail("WeightedRandomSampler: expected a list of weights or a tensor, got %s", show(weights))
  end
  local fault = lists.fault(weights)
  if fault then fail("WeightedRandomSampler: expected a list of weights, but it has %s", fault) end
  local list, sum = {}, 0
  for i = 1, #weights do
    local w = weights[i]
    if type(w) ~= "number" or not (w >= 0) or w == math.huge then
      fail("WeightedRandomSampler: weight %d must be a number of 0 or more, got %s", i, show(w))
    end
    list[i], sum = w, sum + w
  end
  if not (sum > 0) or sum == math.huge then
    fail("WeightedRandomSampler: the %d weights must have a sum above 0, got %g", #list, sum)
  end
  return list
end

--- Draws positions in proportion to their weights.
---@class accelerate.WeightedRandomSampler: accelerate.DrawnSampler
---@field weights number[]
---@field num_samples integer
---@field replacement boolean
local WeightedRandomSampler = class("WeightedRandomSampler", sampler.DrawnSampler)
M.WeightedRandomSampler = WeightedRandomSampler

local WEIGHTED_OPTIONS = {
  generator = { "Generator", optional = true }, seed = { "integer", optional = true },
  replacement = { "boolean", default = true },
}

---@param weights number[]|accelerate.Tensor one for each sample, 0 or more, in any unit
---@param num_samples integer number of positions in a pass
---@param opts? { replacement: boolean?, generator: accelerate.Generator?, seed: integer? }
---  replacement: default true; false: no position comes twice
function WeightedRandomSampler:init(weights, num_samples, opts)
  opts = options.check("WeightedRandomSampler", opts, WEIGHTED_OPTIONS)
  self.weights = read_weights(weights)
  self.num_samples = options.value("WeightedRandomSampler", "num_samples", num_samples,
    { "integer", min = 1 })
  self.replacement = opts.replacement
  if not self.replacement then
    local positive = 0
    for _, w in ipairs(self.weights) do positive = positive + (w > 0 and 1 or 0) end
    if positive < num_samples then
      fail("WeightedRandomSampler: %d samples without replacement, but only %d weights are above 0",
        num_samples, positive)
    end
  end
  sampler.take_generator(self, "WeightedRandomSampler", opts)
end

-- Finds the place of u * sum, with u uniform in 0 to 1, among the running sums.
local function with_replacement(weights, n, generator)
  local sums, sum = {}, 0
  for i, w in ipairs(weights) do
    sum = sum + w
    sums[i] = sum
  end
  local uniform = core.rand({ n }, { dtype = "float64", generator = generator })
  local order = core.empty({ n }, { dtype = "int64" })
  local u, p = uniform:data_ptr(), order:data_ptr()
  for k = 0, n - 1 do
    local lo, hi, x = 1, #sums, u[k] * sum -- the first running sum above x
    while lo < hi do
      local middle = math.floor((lo + hi) / 2)
      if sums[middle] > x then hi = middle else lo = middle + 1 end
    end
    while weights[lo] == 0 do lo = lo - 1 end -- x was rounded up to the total
    p[k] = lo - 1
  end
  return order
end

-- Draws exponential times with the weights as rates; the order of the n smallest is that of draws
-- without replacement.
local function without_replacement(weights, n, generator)
  local uniform = core.rand({ #weights }, { dtype = "float64", generator = generator })
  local u, times, positions = uniform:data_ptr(), {}, {}
  for i, w in ipairs(weights) do
    if w > 0 then
      times[i] = -math.log(1 - u[i - 1]) / w
      positions[#positions + 1] = i
    end
  end
  table.sort(positions, function(a, b)
    if times[a] ~= times[b] then return times[a] < times[b] end
    return a < b
  end)
  local order = core.empty({ n }, { dtype = "int64" })
  local p = order:data_ptr()
  for k = 1, n do p[k - 1] = positions[k] - 1 end
  return order
end

function WeightedRandomSampler:_order(generator)
  return (self.replacement and with_replacement or without_replacement)(self.weights, self.num_samples,
    generator)
end

by_position.constructors(M, {
  WeightedRandomSampler = "weights num_samples [replacement] [generator]",
})

return M
