--- Steps of Adafactor over parameters that are cut over ranks.
---
--- A rank has an interval of the flattened parameter, whose ends may be inside of rows. Sums over
--- rows, columns and all elements are made of the ranks' sums: two collectives a step, one of sums
--- of squares, one of the sizes of the updates. The means for rows and columns are whole on every
--- rank; a vector's mean of squares is cut as the vector is.
---
--- As in kernels/cpu/optim_adafactor.c, gradients are read three times, and nothing of a
--- parameter's size is kept in between.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"

local M = {}

local EPSILON = { float32 = 2 ^ -23, float64 = 2 ^ -52 }

---@class accelerate.optim.Factored a parameter that is cut
---@field p accelerate.Tensor
---@field part accelerate.optim.Part
---@field kept table its states, and the number of the step
---@field hyper table the numbers of the step, as they go to the core

-- Where a parameter's states are. With offload its elements and their gradient may be elsewhere.
local function device_of(kept) return (kept.row_var or kept.variance).device end

-- ---- one parameter

-- What of a parameter's matrices this rank has, filled up to whole rows where there is one matrix,
-- else to whole matrices: `view` { matrices, rows, columns }, `lead` elements before its own.
local function extent(p, part)
  local rows, cols = p:size(-2), p:size(-1)
  local matrices = p:numel() / (rows * cols)
  local unit = matrices == 1 and cols or rows * cols
  local lead = part.from % unit
  local count = math.ceil((lead + part.n) / unit)
  local first = (part.from - lead) / unit
  return { lead = lead, size = count * unit,
    view = matrices == 1 and { 1, count, cols } or { count, rows, cols },
    first_matrix = matrices == 1 and 0 or first, first_row = matrices == 1 and first or first * rows }
end

local function filled(own, piece)
  if own.size == piece:numel() then return piece:view(own.view) end
  local block = core.zeros({ own.size }, { dtype = piece.dtype, device = piece.device })
  block:narrow(1, own.lead + 1, piece:numel()):copy_(piece)
  return block:view(own.view)
end

-- How many sums a parameter has over rows, and how many over columns. In the ranks' sums they
-- follow one number, the squares of the parameter.
local function sums_of(p)
  if p:dim() < 2 then return 0, 0 end
  return p:numel() / p:size(-1), p:numel() / p:size(-2)
end

--- Returns the bytes that a rank sends in a step over a parameter that is cut: its numbers of both
--- sums, which are all_reduced.
---@param p accelerate.Tensor
---@param ranks integer
---@return number
function M.bytes_sent(p, ranks)
  local rows, cols = sums_of(p)
  return 2 * (ranks - 1) / ranks * (rows + cols + 2) * p:element_size()
end

-- Adds this rank's squares of a gradient, and of the parameter, to its place in the sums.
local function measure(one, sums)
  local part, rows = one.part, (sums_of(one.p))
  if part.n == 0 then return end
  sums:narrow(1, 1, 1):copy_(part.value:to(sums.device):square():sum())
  if not one.own then return end
  local squares = filled(one.own, part.grad:to(sums.device)):square()
  local of_rows, of_cols = squares:sum(3):view(-1), squares:sum(2):view(-1)
  sums:narrow(1, 2 + one.own.first_row, of_rows:numel()):copy_(of_rows)
  sums:narrow(1, 2 + rows + one.own.first_matrix * one.p:size(-1), of_cols:numel()):copy_(of_cols)
end

-- Moves the means to the squares of all ranks.
local function advance(one, sums)
  local p, kept, rows, cols = one.p, one.kept, sums_of(one.p)
  local weight = kept.step ^ one.hyper.beta2_decay
  if p:dim() >= 2 then
    kept.row_var:view(-1):lerp_(sums:narrow(1, 2, rows) / p:size(-1), weight)
    kept.col_var:view(-1):lerp_(sums:narrow(1, 2 + rows, cols) / p:size(-2), weight)
  elseif one.part.n > 0 then
    kept.variance:lerp_(one.part.grad:to(sums.device):square(), weight)
  end
end

-- 1 / sqrt of the mean of squares, which the means for rows and columns approximate.
local function factors(one, least)
  local own, shape = one.own, one.own.view
  local matrices, at = shape[1], own.first_matrix
  local rows = one.kept.row_var:view { -1, one.p:size(-2), 1 }:narrow(1, at + 1, matrices)
  local mean = rows:mean(2, true):clamp { min = least }
  if shape[2] < rows:size(2) then rows = rows:narrow(2, own.first_row + 1, shape[2]) end
  local cols = one.kept.col_var:view { -1, 1, one.p:size(-1) }:narrow(1, at + 1, matrices)
  return (rows / mean):rsqrt() * cols:rsqrt()
end

-- The update of this rank's elements.
local function update(one)
  local grad = one.part.grad:to(device_of(one.kept))
  local least = one.hyper.eps1 >= 0 and one.hyper.eps1 or EPSILON[one.p.dtype]
  local most = { max = 1 / least }
  if not one.own then return grad * one.kept.variance:rsqrt():clamp(most) end
  local whole = filled(one.own, grad) * factors(one, least):clamp(most)
  return whole:view(-1):narrow(1, one.own.lead + 1, one.part.n)
end

-- squares, sizes: of the whole parameter and of its whole update, one element each.
local function apply(one, squares, sizes)
  local hyper, count, value = one.hyper, one.p:numel(), one.part.value
  if not value then return end
  local step = (squares / count):sqrt():clamp { min = hyper.eps2 }
    * math.min(hyper.lr, 1 / math.sqrt(one.kept.step))
    / ((sizes / count):sqrt() / hyper.d):clamp { min = 1 }
  value:mul_(1 - hyper.lr * hyper.weight_decay)
  value:sub_((update(one) * (hyper.maximize and -step or step)):to(value.device))
end

-- ---- all of them

-- The parameters of one group of ranks, of one type and on one device.
local function run(list)
  local group, like = list[1].part.group, { dtype = list[1].p.dtype, device = device_of(list[1].kept) }
  local size, place = 0, {}
  for i, one in ipairs(list) do
    local rows, cols = sums_of(one.p)
    place[i] = { size + 1, 1 + rows + cols }
    size = size + 1 + rows + cols
    one.own = one.p:dim() >= 2 and one.part.n > 0 and extent(one.p, one.part)
  end
  local sums = core.zeros({ size }, like)
  local sizes = core.zeros({ #list }, like)
  local function sums_at(i) return sums:narrow(1, place[i][1], place[i][2]) end
  for i, one in ipairs(list) do core.scope(measure, one, sums_at(i)) end
  core.dist.all_reduce(sums, "sum", 0, false, group._handle)
  for i, one in ipairs(list) do
    core.scope(function()
      advance(one, sums_at(i))
      if one.part.n > 0 then sizes:narrow(1, i, 1):copy_(update(one):square():sum()) end
    end)
  end
  core.dist.all_reduce(sizes, "sum", 0, false, group._handle)
  for i, one in ipairs(list) do core.scope(apply, one, sums_at(i):narrow(1, 1, 1), sizes:narrow(1, i, 1)) end
end

--- Steps parameters. A collective of the ranks that they are cut over, which give alike lists.
---@param list accelerate.optim.Factored[]
function M.step(list)
  local function place(one)
    return ("%s %s %s"):format(one.part.group.name, one.p.dtype, device_of(one.kept))
  end
  for _, each in ipairs(lists.grouped(list, place)) do core.no_grad(core.scope, run, each) end
end

return M
