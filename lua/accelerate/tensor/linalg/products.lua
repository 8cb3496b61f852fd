--- Powers, chains and products of matrices and vectors.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local matrix = require "accelerate.tensor.linalg.matrix"

local reads = matrix.reads

local M = {}

local function identity(x)
  local n = x.shape[x.ndim]
  return core.eye(n, { dtype = x.dtype, device = x.device }):expand(x.shape):contiguous()
end

--- Returns the n-th power of square matrices; of their inverse where n is negative.
---@param x accelerate.Tensor (.., n, n)
---@param n integer
---@return accelerate.Tensor
M.matrix_power = reads("matrix_power", "x:T n:int", function(x, n)
  matrix.check_square("matrix_power", x)
  if n < 0 then
    x, n = core._linalg.inv(x), -n
  end
  if n == 0 then -- of x, for its gradient 0
    return core.where(core.ones_like(x, { dtype = "bool" }), identity(x), x)
  end
  local result
  while true do
    if n % 2 == 1 then result = result and result:matmul(x) or x end
    n = math.floor(n / 2)
    if n == 0 then return result == x and x:clone() or result end
    x = x:matmul(x)
  end
end)

-- The power series of exp is cut after this term: norms are at most 1/2 there, and what is left is
-- below float64's eps.
local TERMS = 16

--- Returns the exponential of square matrices: I + x + x^2 / 2! + ...
---@param x accelerate.Tensor (.., n, n)
---@return accelerate.Tensor
M.matrix_exp = reads("matrix_exp", "x:T", function(x)
  matrix.check_square("matrix_exp", x)
  matrix.check_float("matrix_exp", x)
  if x:numel() == 0 then return x:clone() end
  local size = x:detach():abs():sum(-2):max():double():item()
  local halvings = 0
  if size > 0.5 and size < math.huge then halvings = math.ceil(math.log(size * 2) / math.log(2)) end
  local small, unit = x * 2 ^ -halvings, identity(x)
  local sum = unit + small / TERMS -- Horner's scheme
  for k = TERMS - 1, 1, -1 do sum = unit + small:matmul(sum) / k end
  for _ = 1, halvings do sum = sum:matmul(sum) end
  return sum
end)

-- The best place of the last product in each run i..j of matrices with these sizes.
local function best_places(sizes, n)
  local cost, place = {}, {}
  for i = 1, n do
    cost[i], place[i] = { [i] = 0 }, {}
  end
  for length = 2, n do
    for i = 1, n - length + 1 do
      local j = i + length - 1
      cost[i][j] = math.huge
      for k = i, j - 1 do
        local c = cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1]
        if c < cost[i][j] then cost[i][j], place[i][j] = c, k end
      end
    end
  end
  return place
end

--- Returns the product of two or more matrices, in the order with the fewest operations. The first
--- and the last one may be vectors.
---@param tensors accelerate.Tensor[]
---@return accelerate.Tensor
M.multi_dot = reads("multi_dot", "tensors:T*", function(tensors)
  local n = #tensors
  if n < 2 then options.fail("linalg.multi_dot: expected at least two tensors, got %d", n) end
  local list, sizes = {}, {}
  for i, x in ipairs(tensors) do
    local inner = i > 1 and i < n
    if x.ndim ~= 2 and (inner or x.ndim ~= 1) then
      options.fail("linalg.multi_dot: tensor %d must %s, got shape %s", i, inner and "be a matrix"
        or "be a matrix or a vector", lists.shape_text(x))
    end
    if x.ndim == 1 then x = i == 1 and x:unsqueeze(1) or x:unsqueeze(2) end
    if i > 1 and x.shape[1] ~= sizes[i] then
      options.fail("linalg.multi_dot: tensors %d and %d cannot be multiplied: %s x %s", i - 1, i,
        lists.shape_text(tensors[i - 1]), lists.shape_text(tensors[i]))
    end
    list[i], sizes[i], sizes[i + 1] = x, x.shape[1], x.shape[2]
  end
  local place = best_places(sizes, n)
  local function product(i, j)
    if i == j then return list[i] end
    return product(i, place[i][j]):mm(product(place[i][j] + 1, j))
  end
  local result = product(1, n)
  if tensors[n].ndim == 1 then result = result:squeeze(2) end
  if tensors[1].ndim == 1 then result = result:squeeze(1) end
  return result
end)

--- Returns the cross product of vectors of 3 elements along dim; other dims are broadcast.
---@param a accelerate.Tensor
---@param b accelerate.Tensor
---@param options { dim: integer? }? default the last one
---@return accelerate.Tensor
M.cross = reads("cross", "a:T b:T dim:dim=-1", function(a, b, dim)
  if a.ndim ~= b.ndim then
    options.fail("linalg.cross: expected as many dims on both sides, got shapes %s and %s",
      lists.shape_text(a),
      lists.shape_text(b))
  end
  return a:cross(b, dim)
end)

local function dotted(a, b, dim) return (a:conj() * b):sum(dim) end

--- Returns the sums of products of vectors along dim, complex ones of a with their signs turned;
--- other dims are broadcast.
---@param a accelerate.Tensor
---@param b accelerate.Tensor
---@param options { dim: integer? }? default the last one
---@return accelerate.Tensor
M.vecdot = reads("vecdot", "a:T b:T dim:int=-1", function(a, b, dim)
  matrix.check_float("vecdot", a)
  return dotted(a, b, dim)
end)

--- Returns the powers 0 to N - 1 of each element, as a last dim.
---@param x accelerate.Tensor (.., n)
---@param options { N: integer? }? default n
---@return accelerate.Tensor (.., n, N)
M.vander = reads("vander", "x:T N:int?", function(x, n)
  if x.ndim == 0 then x = x:view(1) end
  n = n or x.shape[x.ndim]
  if n < 1 then options.fail("linalg.vander: N must be at least 1, got %d", n) end
  local shape = { unpack(x.shape) }
  shape[#shape + 1] = n - 1
  local one = core.ones_like(x):unsqueeze(-1)
  if n == 1 then return one end
  return core.cat({ one, x:unsqueeze(-1):expand(shape):cumprod(-1) }, -1)
end)

-- ---- tensors as matrices

local function product_of(shape, from, to)
  local n = 1
  for d = from, to do n = n * shape[d] end
  return n
end

local function slice(shape, from, to)
  local out = {}
  for d = from, to do out[#out + 1] = shape[d] end
  return out
end

--- Returns the inverse for tensordot over `ind` dims: x as a matrix of its first `ind` dims by the
--- others.
---@param x accelerate.Tensor product of the first `ind` sizes = product of the others
---@param options { ind: integer? }? default 2
---@return accelerate.Tensor the other sizes, then the first ones
M.tensorinv = reads("tensorinv", "x:T ind:int=2", function(x, ind)
  if ind < 1 then options.fail("linalg.tensorinv: ind must be at least 1, got %d", ind) end
  local shape = x.shape
  local rows, cols = product_of(shape, 1, math.min(ind, x.ndim)), product_of(shape, ind + 1, x.ndim)
  if rows ~= cols then
    options.fail("linalg.tensorinv: the first %d sizes of shape %s multiply to %d, the others to %d", ind,
      lists.shape_text(x), rows, cols)
  end
  local out = slice(shape, ind + 1, x.ndim)
  for d = 1, math.min(ind, x.ndim) do out[#out + 1] = shape[d] end
  return core._linalg.inv(x:reshape(rows, cols)):reshape(out)
end)

--- Returns x with tensordot(a, x, x.ndim) = b.
---@param a accelerate.Tensor its first sizes are those of b; product of the others = b:numel()
---@param b accelerate.Tensor
---@param options { dims: integer[]? }? dims of a that are moved to the end first
---@return accelerate.Tensor
M.tensorsolve = reads("tensorsolve", "a:T b:T dims:dims?", function(a, b, dims)
  if dims then
    local to = {}
    for k = 1, #dims do to[k] = a.ndim - #dims + k end
    a = a:movedim(dims, to)
  end
  local n, shape = b:numel(), slice(a.shape, b.ndim + 1, a.ndim)
  local cols = product_of(shape, 1, #shape)
  if n ~= cols or a:numel() ~= n * cols then
    options.fail("linalg.tensorsolve: a must hold as many equations as unknowns, got shapes %s and %s",
      lists.shape_text(a), lists.shape_text(b))
  end
  return core._linalg.solve(a:reshape(n, cols), b:reshape(n, 1)):reshape(shape)
end)

--- Returns the product of matrices: another name of tensor.matmul.
---@param a accelerate.Tensor
---@param b accelerate.Tensor
---@return accelerate.Tensor
M.matmul = reads("matmul", "a:T b:T", function(a, b) return a:matmul(b) end)

--- Returns a diagonal of two dims as a last dim.
---@param x accelerate.Tensor
---@param options { offset: integer?, dim1: integer?, dim2: integer? }? default the main diagonal of
---  the last two dims
---@return accelerate.Tensor a view
M.diagonal = reads("diagonal", "x:T offset:int=0 dim1:dim=-2 dim2:dim=-1", function(x, offset, dim1, dim2)
  return x:diagonal(offset, dim1, dim2)
end)

return M
