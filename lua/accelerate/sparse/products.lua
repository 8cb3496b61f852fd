--- Products with sparse matrices.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local SparseTensor = require "accelerate.sparse.coo"

local fail = options.fail
local product, dots = core._row "_sparse_product", core._row "_sparse_dots"

local M = {}

-- The plan by rows: host/core/ops/sparse.def says what is in it.
local function plan_of(major, minor, rows, sorted)
  local starts = core.arange(rows + 1, { device = major.device })
  if sorted then return core.cat({ core.searchsorted(major, starts), minor }, 1) end
  local ordered, order = major:sort(1)
  return core.cat({ core.searchsorted(ordered, starts), minor:index_select(1, order), order }, 1)
end

-- Plans of a matrix are made when they are first needed, and kept with it.
local function by_rows(s)
  local plans = s._plans
  plans.rows = plans.rows
    or core.keep(plan_of(s._places:select(1, 1):contiguous(), s._places:select(1, 2), s.shape[1],
    s._coalesced))
  return plans.rows
end

local function by_columns(s)
  local plans = s._plans
  plans.turned = plans.turned or { turned = plans }
  plans.turned.rows = plans.turned.rows
    or core.keep(plan_of(s._places:select(1, 2):contiguous(), s._places:select(1, 1), s.shape[2], false))
  return plans.turned.rows
end

local function check_matrix(where, s)
  if s:sparse_dim() ~= 2 or s:dense_dim() ~= 0 then
    fail("%s: expected a sparse matrix, got shape %s with %d sparse and %d dense dims; write s:to_dense()",
      where, s:_text(), s:sparse_dim(), s:dense_dim())
  end
  if not s.dtype:find("float", 1, true) then
    fail("%s: expected a sparse matrix of a floating type, got %s; cast it or write s:to_dense()", where,
      s.dtype)
  end
end

local function check_pair(where, a, b)
  if b.ndim ~= 2 then
    fail("%s: expected two matrices, got shapes [%s] and [%s]", where, table.concat(a.shape, ", "),
      table.concat(b.shape, ", "))
  end
  if a.shape[2] ~= b.shape[1] then
    fail("%s: inner dimensions differ: [%s] x [%s]", where, table.concat(a.shape, ", "),
      table.concat(b.shape, ", "))
  end
  if a.device ~= b.device then
    fail("%s: the operands are on %s and %s; move one of them", where, a.device, b.device)
  end
end

-- Gradients need both plans.
local function turned_plan(s, other)
  return core.is_grad_enabled() and (s._data.requires_grad or other.requires_grad) and by_columns(s) or nil
end

local function times_dense(where, s, x)
  check_matrix(where, s)
  check_pair(where, s, x)
  if x.dtype ~= s.dtype then
    fail("%s: element types differ: %s and %s", where, s.dtype, x.dtype)
  end
  local y = product(s._data, x, by_rows(s), turned_plan(s, x), s.shape[1])
  return y.dtype == s.dtype and y or y:to(s.dtype)
end

-- Each value of a meets the row of b that its column names.
local function times_sparse(where, a, b)
  check_matrix(where, a)
  check_matrix(where, b)
  check_pair(where, a, b)
  if a.dtype ~= b.dtype then fail("%s: element types differ: %s and %s", where, a.dtype, b.dtype) end
  a, b = a:coalesce(), b:coalesce()
  local starts = by_rows(b):narrow(1, 1, b.shape[1] + 1)
  local columns = a._places:select(1, 2)
  local first = starts:index_select(1, columns)
  local lengths = starts:index_select(1, columns + 1) - first
  local source = core.repeat_interleave(core.arange(a:nnz(), { device = a.device }), lengths)
  local before = (lengths:cumsum(1) - lengths):index_select(1, source)
  local target = core.arange(source:numel(), { device = a.device }) - before + first:index_select(1, source)
  local places = core.stack({ a._places:select(1, 1):index_select(1, source),
    b._places:select(1, 2):index_select(1, target) }, 1)
  local data = a._data:index_select(1, source) * b._data:index_select(1, target)
  return SparseTensor._make(places, data, { a.shape[1], b.shape[2] }, false):coalesce()
end

local function check_operand(where, name, v)
  if not core.is_tensor(v) and not SparseTensor._is(v) then
    fail("%s: %s: expected a sparse matrix or a tensor, got %s", where, name, options.show(v))
  end
end

local function multiply(where, a, b)
  check_operand(where, "mat1", a)
  check_operand(where, "mat2", b)
  if SparseTensor._is(a) then
    return SparseTensor._is(b) and times_sparse(where, a, b) or times_dense(where, a, b)
  end
  if not SparseTensor._is(b) then fail("%s: neither matrix is sparse; write a:mm(b)", where) end
  check_pair(where, b.ndim == 2 and a or b, b)
  if a.ndim ~= 2 then fail("%s: expected a matrix, got %s", where, options.show(a)) end
  return times_dense(where, b:t(), a:t()):t()
end

--- Multiplies two matrices. At least one is sparse. The product of two sparse ones is sparse.
---@param a accelerate.sparse.SparseTensor|accelerate.Tensor (n, m)
---@param b accelerate.sparse.SparseTensor|accelerate.Tensor (m, p), of a's element type
---@return accelerate.Tensor|accelerate.sparse.SparseTensor product (n, p); gradients go to both
---  operands
function M.mm(a, b) return multiply("sparse.mm", a, b) end

local SCALES = { beta = { "number", default = 1 }, alpha = { "number", default = 1 } }

--- Returns beta input + alpha (mat1 @ mat2) for a sparse mat1.
---@param input accelerate.Tensor that broadcasts to the product's shape
---@param mat1 accelerate.sparse.SparseTensor (n, m)
---@param mat2 accelerate.Tensor (m, p)
---@param opts? { beta: number, alpha: number } default 1
---@return accelerate.Tensor (n, p)
function M.addmm(input, mat1, mat2, opts)
  local o = options.check("sparse.addmm", opts, SCALES)
  options.value("sparse.addmm", "input", input, { "tensor" })
  if not SparseTensor._is(mat1) then
    fail("sparse.addmm: mat1: expected a sparse matrix, got %s", options.show(mat1))
  end
  check_operand("sparse.addmm", "mat2", mat2)
  local y = multiply("sparse.addmm", mat1, mat2)
  if SparseTensor._is(y) then y = y:to_dense() end
  if o.alpha ~= 1 then y = y * o.alpha end
  if o.beta == 0 then return y end
  return (o.beta == 1 and input or input * o.beta) + y
end

--- Returns beta input + alpha (mat1 @ mat2) at input's positions alone; other elements are not
--- computed.
---@param input accelerate.sparse.SparseTensor (n, p)
---@param mat1 accelerate.Tensor (n, m)
---@param mat2 accelerate.Tensor (m, p)
---@param opts? { beta: number, alpha: number } default 1
---@return accelerate.sparse.SparseTensor (n, p)
function M.sampled_addmm(input, mat1, mat2, opts)
  local where = "sparse.sampled_addmm"
  local o = options.check(where, opts, SCALES)
  if not SparseTensor._is(input) then
    fail("%s: input: expected a sparse matrix, got %s", where, options.show(input))
  end
  options.value(where, "mat1", mat1, { "tensor" })
  options.value(where, "mat2", mat2, { "tensor" })
  check_matrix(where, input)
  if mat1.ndim ~= 2 then fail("%s: mat1: expected a matrix, got %s", where, options.show(mat1)) end
  check_pair(where, mat1, mat2)
  local s = input:coalesce()
  if mat1.shape[1] ~= s.shape[1] or mat2.shape[2] ~= s.shape[2] then
    fail("%s: the product is [%d, %d], input %s", where, mat1.shape[1], mat2.shape[2], s:_text())
  end
  local wanted = core.is_grad_enabled() and (mat1.requires_grad or mat2.requires_grad)
  local data = dots(mat1, mat2:t(), by_rows(s), wanted and by_columns(s) or nil, s:nnz()):to(mat1.dtype)
  if o.alpha ~= 1 then data = data * o.alpha end
  if o.beta ~= 0 then data = data + s._data * o.beta end
  return SparseTensor._make(s._places, data, s.shape, true, s._plans)
end

--- Multiplies with a matrix: see sparse.mm.
---@param other accelerate.Tensor|accelerate.sparse.SparseTensor
---@return accelerate.Tensor|accelerate.sparse.SparseTensor
function SparseTensor:mm(other) return multiply("sparse mm", self, other) end
SparseTensor.spmm = SparseTensor.mm

--- Multiplies with a vector.
---@param vector accelerate.Tensor (m)
---@return accelerate.Tensor (n)
function SparseTensor:mv(vector)
  options.value("sparse mv", "vector", vector, { "tensor" })
  if vector.ndim ~= 1 then fail("sparse mv: expected a vector, got %s", options.show(vector)) end
  return multiply("sparse mv", self, vector:unsqueeze(2)):squeeze(2)
end

--- Multiplies with a matrix or a vector.
---@param other accelerate.Tensor|accelerate.sparse.SparseTensor
---@return accelerate.Tensor|accelerate.sparse.SparseTensor
function SparseTensor:matmul(other)
  if core.is_tensor(other) and other.ndim == 1 then return self:mv(other) end
  return multiply("sparse matmul", self, other)
end

return M
