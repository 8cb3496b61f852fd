--- Boxes: blocks of a tensor, { offsets, sizes } with a number for each dim, offsets from 0. A run
--- is a part of the flattened tensor: n elements from element `from` (from 0) on.
local lists = require "accelerate.utils.lists"

local M = {}

---@class accelerate.Box
---@field offsets integer[] from 0
---@field sizes integer[]

--- Returns the number of elements of a shape, or of a box's sizes.
---@param sizes integer[]
---@return integer
function M.count(sizes) return lists.product(sizes) end

-- The elements between neighbours along each dim.
local function strides_of(shape)
  local strides, step = {}, 1
  for d = #shape, 1, -1 do
    strides[d] = step
    step = step * shape[d]
  end
  return strides
end

-- The largest box that begins at element `at` and is a run of at most `n` elements; how many it
-- has.
local function largest(shape, strides, at, n)
  local dim = #shape
  for d = 1, #shape do
    if at % strides[d] == 0 and strides[d] <= n then
      dim = d
      break
    end
  end
  local offsets, sizes = {}, {}
  for d = 1, #shape do
    offsets[d] = math.floor(at / strides[d]) % shape[d]
    sizes[d] = d < dim and 1 or shape[d]
    if d == dim then sizes[d] = math.min(math.floor(n / strides[d]), shape[d] - offsets[d]) end
  end
  return { offsets = offsets, sizes = sizes }, dim == 0 and 1 or sizes[dim] * strides[dim]
end

--- Returns the boxes that a run consists of, in its order: the tail of a row, whole rows and the
--- head of a row, say. They are at most 2 * dims - 1, and each is a run itself.
---@param shape integer[] of the whole tensor
---@param from integer
---@param n integer
---@return accelerate.Box[]
function M.of(shape, from, n)
  local strides, boxes, stop = strides_of(shape), {}, from + n
  while from < stop do
    local box, count = largest(shape, strides, from, stop - from)
    boxes[#boxes + 1] = box
    from = from + count
  end
  return boxes
end

--- Returns the run that a box is; nil where its elements do not follow each other.
---@param shape integer[] of the whole tensor
---@param box accelerate.Box
---@return integer? from
---@return integer? n
function M.run(shape, box)
  local from, strides, cut = 0, strides_of(shape), false
  for d = #shape, 1, -1 do
    if cut and box.sizes[d] ~= 1 then return nil end
    cut = cut or box.sizes[d] ~= shape[d]
    from = from + box.offsets[d] * strides[d]
  end
  return from, M.count(box.sizes)
end

--- Returns the box that two boxes have in common, or nil.
---@param a accelerate.Box
---@param b accelerate.Box
---@return accelerate.Box?
function M.meet(a, b)
  local offsets, sizes = {}, {}
  for d = 1, #a.sizes do
    local from = math.max(a.offsets[d], b.offsets[d])
    local to = math.min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d])
    if from >= to then return nil end
    offsets[d], sizes[d] = from, to - from
  end
  return { offsets = offsets, sizes = sizes }
end

--- Returns the view of `part` in a tensor that holds the elements of `box`.
---@param t accelerate.Tensor of the shape box.sizes
---@param box accelerate.Box
---@param part accelerate.Box inside it
---@return accelerate.Tensor
function M.view(t, box, part)
  for d = 1, #box.sizes do
    if part.sizes[d] ~= box.sizes[d] then
      t = t:narrow(d, part.offsets[d] - box.offsets[d] + 1, part.sizes[d])
    end
  end
  return t
end

return M
