--- What the files of tensor.linalg share: checks of matrices, batches of them, adjoints.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local lists = require "accelerate.utils.lists"

local M = {}

--- A function of tensor.linalg: its arguments are read by a signature in the language of
--- host/core/ops/ops.def, and messages call it linalg.NAME.
---@param name string
---@param signature string
---@param fn function
---@return function
function M.reads(name, signature, fn)
  return core._composed("linalg." .. name, signature, fn)
end

--- Raises where x is not a stack of square matrices.
function M.check_square(where, x)
  local n = x.ndim
  if n < 2 or x.shape[n] ~= x.shape[n - 1] then
    options.fail("linalg.%s: expected square matrices, got shape %s", where, lists.shape_text(x))
  end
end

--- Raises where x is neither floating nor complex.
function M.check_float(where, x)
  if not core._is_float(x) and not x:is_complex() then
    options.fail("linalg.%s: expected a floating-point or complex tensor, got %s %s", where, x.dtype,
      lists.shape_text(x))
  end
end

--- x^H: of real x the transposed one.
function M.adjoint(x) return x:transpose(-2, -1):conj() end

--- The type of singular values, norms and bounds: that of the parts of complex numbers.
function M.real_type(x)
  return x.dtype == "complex64" and "float32" or x.dtype == "complex128" and "float64" or x.dtype
end

--- The difference between 1 and the next number of x's type.
function M.eps(x) return M.real_type(x) == "float64" and 2 ^ -52 or 2 ^ -23 end

--- Both in the type that they have together, where one of them is complex.
function M.one_type(a, b)
  if a:is_complex() == b:is_complex() then return a, b end
  local wide = M.real_type(a) == "float64" or M.real_type(b) == "float64"
  local dtype = wide and "complex128" or "complex64"
  return a:to(dtype), b:to(dtype)
end

--- All sizes but the last `n`.
local function leading(x, n)
  local shape = {}
  for d = 1, x.ndim - n do shape[d] = x.shape[d] end
  return shape
end
M.leading = leading

M.same = lists.same

-- The joint shape of two batches.
local function joint(where, a, b)
  local x, y = leading(a, 2), leading(b, 2)
  local n = math.max(#x, #y)
  local out = {}
  for d = 1, n do
    local p, q = x[d - n + #x] or 1, y[d - n + #y] or 1
    if p ~= q and p ~= 1 and q ~= 1 then
      options.fail("linalg.%s: the batches of shapes %s and %s do not fit together", where,
        lists.shape_text(a),
        lists.shape_text(b))
    end
    out[d] = p == 1 and q or p
  end
  return out
end

local function spread(x, batch)
  local n = #batch
  local shape = { unpack(batch) }
  shape[n + 1], shape[n + 2] = x.shape[x.ndim - 1], x.shape[x.ndim]
  return lists.same(shape, x.shape) and x or x:expand(shape)
end

--- a and b, stacks of matrices, expanded to one batch.
function M.one_batch(where, a, b)
  for _, x in ipairs { a, b } do
    if x.ndim < 2 then
      options.fail("linalg.%s: expected at least two dims, got shape %s", where, lists.shape_text(x))
    end
  end
  local batch = joint(where, a, b)
  return spread(a, batch), spread(b, batch)
end

--- A factorisation (.., n, n), its pivots (.., n) and the right sides b, expanded to one batch.
---@param name string what the factorisation is called in messages
function M.one_batch_with_pivots(where, name, factors, pivots, b)
  if pivots.ndim ~= factors.ndim - 1 then
    options.fail("linalg.%s: pivots must have the shape of %s without its last dim, got %s and %s", where,
      name, lists.shape_text(pivots), lists.shape_text(factors))
  end
  local batch, sides = M.one_batch(where, factors, b)
  local wide = leading(batch, 1)
  return batch, lists.same(wide, pivots.shape) and pivots or pivots:expand(wide), sides
end

--- Returns whether b holds vectors for the matrices of a, not matrices: PyTorch's rule.
function M.holds_vectors(a, b)
  if b.ndim == 1 then return true end
  if b.ndim ~= a.ndim - 1 then return false end
  return lists.same(b.shape, leading(a, 1))
end

--- Returns whether ops record the gradient of x.
function M.records(x) return x.requires_grad and core.is_grad_enabled() end

return M
