--- Sparse tensors in coordinate form, as torch.sparse has them: adjacency matrices of graphs,
--- gradients of embeddings.
---
---   local sparse = require "accelerate.sparse"
---   local a = sparse.sparse_coo_tensor({ { 0, 1, 1 }, { 2, 0, 2 } }, { 3, 4, 5 }, { 2, 3 })
---   local y = a:mm(x)          -- or sparse.mm(a, x); x (3, n)
---
--- A sparse tensor is a Lua object over two tensors, its positions and its values, not a tensor
--- itself: what is not listed here is refused with an error, and `s:to_dense()` gives a tensor.
--- Sums have a fixed order, on any number of threads.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local SparseTensor = require "accelerate.sparse.coo"
local products = require "accelerate.sparse.products"

local fail = options.fail

---@class accelerate.sparse
local M = { mm = products.mm, addmm = products.addmm, sampled_addmm = products.sampled_addmm }

--- Returns whether `value` is a sparse tensor.
---@param value any
---@return boolean
function M.is_sparse(value) return SparseTensor._is(value) end

local MAKE = {
  size = { "list", optional = true },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
  requires_grad = { "boolean", default = false },
  is_coalesced = { "boolean", default = false },
}
local MAKER = "sparse_coo_tensor"

local function read_indices(indices, device)
  if type(indices) == "table" then
    local empty = #indices > 0 and type(indices[1]) == "table" and #indices[1] == 0
    indices = empty and core.zeros({ #indices, 0 }, { dtype = "int64" })
      or core.tensor(indices, { dtype = "int64" })
  end
  if not core.is_tensor(indices) or not (indices.dtype == "int64" or indices.dtype == "int32") then
    fail("%s: indices: expected integers (sparse dims, nnz), got %s", MAKER, options.show(indices))
  end
  if indices.ndim ~= 2 or indices.shape[1] == 0 then
    fail("%s: indices: expected (sparse dims, nnz), got shape [%s]", MAKER, table.concat(indices.shape, ", "))
  end
  return indices:detach():to({ dtype = "int64", device = device }):clone()
end

local function read_values(values, o, count)
  if type(values) == "table" or type(values) == "number" then
    values = type(values) == "table" and #values == 0 and core.zeros({ 0 }, { dtype = o.dtype })
      or core.tensor(values, { dtype = o.dtype })
  end
  if not core.is_tensor(values) or values.dtype == "bool" then
    fail("%s: values: expected numbers (nnz, ...), got %s", MAKER, options.show(values))
  end
  if values.ndim == 0 then values = values:expand(count) end
  if values.shape[1] ~= count then
    fail("%s: %d positions and %d values", MAKER, count, values.shape[1])
  end
  local wanted = { dtype = o.dtype or values.dtype, device = o.device or values.device }
  return values:to(wanted)
end

-- Each position within its size; sizes that were not given are as small as can be.
local function checked_shape(size, places, data)
  local dims, count = places.shape[1], places.shape[2]
  local n = dims + data.ndim - 1
  if size ~= nil then
    options.value(MAKER, "size", size, { "list" })
    if #size ~= n then
      fail("%s: size has %d dims; %d rows of positions and values [%s] make %d", MAKER, #size, dims,
        table.concat(data.shape, ", "), n)
    end
    for d = 1, n do options.value(MAKER, ("size[%d]"):format(d), size[d], { "integer", min = 0 }) end
  elseif count == 0 then
    fail("%s: size: expected a list of sizes where there are no values", MAKER)
  end
  local low = count > 0 and places:amin(2):totable() or {}
  local high = count > 0 and places:amax(2):totable() or {}
  local shape = {}
  for d = 1, n do
    shape[d] = size and size[d] or d <= dims and high[d] + 1 or data.shape[d - dims + 1]
    if d > dims and shape[d] ~= data.shape[d - dims + 1] then
      fail("%s: size %d of dim %d differs from that of the values, [%s]", MAKER, shape[d], d,
        table.concat(data.shape, ", "))
    elseif d <= dims and count > 0 and (low[d] < 0 or high[d] >= shape[d]) then
      fail("%s: index %d in dim %d is outside 0..%d", MAKER, low[d] < 0 and low[d] or high[d], d,
        shape[d] - 1)
    end
  end
  return shape
end

--- Makes a sparse tensor. Positions are copied; values are not, and gradients go to them.
---@param indices accelerate.Tensor|integer[][] int64 (sparse dims, nnz), from 0; in any order, also
---  repeated (their values are summed)
---@param values accelerate.Tensor|number[]|number (nnz, dense dims ...), or one for all positions
---@param opts? { size: integer[], dtype: string, device: string, requires_grad: boolean,
---  is_coalesced: boolean } size: default the largest positions + 1; is_coalesced: the positions
---  are sorted and differ, which is checked
---@return accelerate.sparse.SparseTensor
function M.sparse_coo_tensor(indices, values, opts)
  local o = options.check(MAKER, opts, MAKE)
  local device = o.device or core.is_tensor(values) and values.device
    or core.is_tensor(indices) and indices.device or nil
  local places = read_indices(indices, device)
  local data = read_values(values, { dtype = o.dtype, device = places.device }, places.shape[2])
  local shape = checked_shape(o.size, places, data)
  if o.requires_grad and not data.requires_grad then data = data:detach():requires_grad_() end
  if o.is_coalesced and places.shape[2] > 1 then
    local keys = SparseTensor._keys_of(places, shape)
    if keys:diff():le(0):any():item() then
      fail("%s: is_coalesced: the positions are not sorted, or one occurs twice", MAKER)
    end
  end
  return SparseTensor._make(places, data, shape, o.is_coalesced)
end

--- Returns the elements of x that are not 0, as a sparse tensor; their gradient goes to x.
---@param x accelerate.Tensor
---@param sparse_dim? integer dims of the positions, from the front; default all: the rest are dims
---  of each value, which is stored where one of its elements is not 0
---@return accelerate.sparse.SparseTensor coalesced
function M.to_sparse(x, sparse_dim)
  if SparseTensor._is(x) then return x end
  options.value("to_sparse", "x", x, { "tensor" })
  local n = options.value("to_sparse", "sparse_dim", sparse_dim == nil and x.ndim or sparse_dim,
    { "integer", min = 1 })
  if n > x.ndim then fail("to_sparse: %d sparse dims of a tensor of %d", n, x.ndim) end
  local stored = x:detach():ne(0)
  if n < x.ndim then stored = stored:flatten(n + 1, -1):any(n + 1) end
  local places = core.nonzero(stored):t():contiguous()
  local wide, shape = { 1 }, x.shape
  for d = 1, x.ndim do
    if d <= n then wide[1] = wide[1] * shape[d] else wide[#wide + 1] = shape[d] end
  end
  local data = x:reshape(wide):index_select(1, SparseTensor._keys_of(places, shape))
  return SparseTensor._make(places, data, { unpack(shape) }, true)
end

-- The dims of a reduction as a set.
local function dim_set(where, s, dim)
  local set = {}
  for _, d in ipairs(type(dim) == "table" and dim or { dim }) do
    local at = s:_dim(where, d)
    if set[at] then fail("%s: dim %d is listed twice", where, d) end
    set[at] = true
  end
  return set
end

local SUM = { dim = { "integer|list", optional = true }, dtype = { "string", optional = true } }

--- Sums all values, or over dims: a sparse tensor while a sparse dim is left, else a dense one.
---@param input accelerate.sparse.SparseTensor
---@param opts? { dim: integer|integer[], dtype: string } dim: default all; dtype: the values are
---  cast first
---@return accelerate.Tensor|accelerate.sparse.SparseTensor
function M.sum(input, opts)
  local s = input
  if not SparseTensor._is(s) then fail("sparse.sum: expected a sparse tensor, got %s", options.show(s)) end
  local o = options.check("sparse.sum", opts, SUM)
  local dim, data, dims = o.dim, s._data, s:sparse_dim()
  if o.dtype then data = data:to(o.dtype) end
  if dim == nil then return data:sum() end
  local summed = dim_set("sparse.sum", s, dim)
  local kept, shape, inner = {}, {}, {}
  for d = 1, s.ndim do
    if d <= dims and not summed[d] then kept[#kept + 1] = d - 1 end
    if d > dims and summed[d] then inner[#inner + 1] = d - dims + 1 end
    if not summed[d] then shape[#shape + 1] = s.shape[d] end
  end
  if #inner > 0 then data = data:sum(inner) end
  if #kept == 0 then return data:sum(1) end
  local places = s._places
  if #kept < dims then
    places = places:index_select(1, core.tensor(kept, { dtype = "int64", device = s.device }))
  end
  return SparseTensor._make(places, data, shape, false):coalesce()
end

-- x - log(sum(exp(x))) over the values of each group, and that sum's logarithm taken in one pass.
local function grouped_log_softmax(x, group, count)
  local wide = { count }
  for d = 2, x.ndim do wide[d] = x.shape[d] end
  local index = group
  for _ = 2, x.ndim do index = index:unsqueeze(-1) end
  local top = core.full(wide, -math.huge, { dtype = x.dtype, device = x.device })
    :scatter_reduce(1, index:expand(x.shape), x:detach(), "amax"):index_select(1, group)
  local below = x - core.where(top:isfinite(), top, 0)
  local sums = core.zeros(wide, { dtype = x.dtype, device = x.device }):index_add(1, group, below:exp())
  return below - sums:log():index_select(1, group)
end

local CAST = { dtype = { "string", optional = true } }

local function log_softmax(where, s, dim, opts)
  if not SparseTensor._is(s) then fail("%s: expected a sparse tensor, got %s", where, options.show(s)) end
  local dtype = options.check(where, opts, CAST).dtype
  if dtype then s = s:to(dtype) end
  local at, dims = s:_dim(where, dim), s:sparse_dim()
  s = s:coalesce()
  if at > dims then return s, s._data:log_softmax(at - dims + 1) end
  if s:nnz() == 0 then return s, s._data end
  if dims == 1 then return s, s._data:log_softmax(1) end
  local rest, shape = {}, {}
  for d = 1, dims do
    if d ~= at then rest[#rest + 1], shape[#shape + 1] = d - 1, s.shape[d] end
  end
  local others = s._places:index_select(1, core.tensor(rest, { dtype = "int64", device = s.device }))
  local groups, group = SparseTensor._keys_of(others, shape):unique { return_inverse = true }
  return s, grouped_log_softmax(s._data, group, groups:numel())
end

--- Softmax over the stored values along dim; elements that are not stored count as -infinity and
--- stay 0.
---@param input accelerate.sparse.SparseTensor
---@param dim integer
---@param opts? { dtype: string } the values are cast first
---@return accelerate.sparse.SparseTensor
function M.softmax(input, dim, opts)
  local of, data = log_softmax("sparse.softmax", input, dim, opts)
  return SparseTensor._make(of._places, of:nnz() > 0 and data:exp() or data, of.shape, true, of._plans)
end

--- The logarithm of softmax; elements that are not stored stay so.
---@param input accelerate.sparse.SparseTensor
---@param dim integer
---@param opts? { dtype: string } the values are cast first
---@return accelerate.sparse.SparseTensor
function M.log_softmax(input, dim, opts)
  local of, data = log_softmax("sparse.log_softmax", input, dim, opts)
  return SparseTensor._make(of._places, data, of.shape, true, of._plans)
end

--- Makes a sparse matrix from the rows of `diagonals`: element j of row k stands in column j (from
--- 0) of the diagonal offsets[k], above the main one where it is positive.
---@param diagonals accelerate.Tensor (count, length), or (length) for one
---@param offsets accelerate.Tensor|integer[] int64 (count), all different
---@param shape integer[] of the matrix
---@return accelerate.sparse.SparseTensor
function M.spdiags(diagonals, offsets, shape)
  options.value("sparse.spdiags", "diagonals", diagonals, { "tensor" })
  if diagonals.ndim == 1 then diagonals = diagonals:unsqueeze(1) end
  if core.is_tensor(offsets) then offsets = offsets:reshape(-1):totable() end
  options.value("sparse.spdiags", "offsets", offsets, { "list" })
  options.value("sparse.spdiags", "shape", shape, { "list" })
  if diagonals.ndim ~= 2 or #offsets ~= diagonals.shape[1] or #shape ~= 2 then
    fail("sparse.spdiags: expected (count, length), count offsets and two sizes, got [%s], %d and %d",
      table.concat(diagonals.shape, ", "), #offsets, #shape)
  end
  local parts, values, seen = {}, {}, {}
  for k, offset in ipairs(offsets) do
    options.value("sparse.spdiags", ("offsets[%d]"):format(k), offset, { "integer" })
    if seen[offset] then fail("sparse.spdiags: offset %d occurs twice", offset) end
    seen[offset] = true
    local first = math.max(0, offset)
    local last = math.min(diagonals.shape[2], shape[2], shape[1] + offset) - 1
    if last >= first then
      local columns = core.arange(first, last + 1, { device = diagonals.device })
      parts[#parts + 1] = core.stack({ columns - offset, columns }, 1)
      values[#values + 1] = diagonals:select(1, k):narrow(1, first + 1, last - first + 1)
    end
  end
  if #parts == 0 then
    return M.sparse_coo_tensor(core.zeros({ 2, 0 }, { dtype = "int64", device = diagonals.device }),
      diagonals:reshape(-1):narrow(1, 1, 0), shape)
  end
  return M.sparse_coo_tensor(core.cat(parts, 2), core.cat(values, 1), shape):coalesce()
end

--- Multiplies a sparse matrix with a matrix, as torch.spmm.
M.spmm = M.mm
M.SparseTensor = SparseTensor

-- Arguments by position or by name, in PyTorch's order.
for name, order in next, { sparse_coo_tensor = "indices values [size] [dtype] [device] [requires_grad]",
  sum = "input [dim] [dtype]", softmax = "input dim [dtype]", log_softmax = "input dim [dtype]" } do
  M[name] = positions.arrange(name == MAKER and MAKER or "sparse." .. name, order, M[name])
end

function SparseTensor:sum(...) return M.sum(self, ...) end
function SparseTensor:softmax(...) return M.softmax(self, ...) end
function SparseTensor:log_softmax(...) return M.log_softmax(self, ...) end

return require("accelerate.utils.properties").strict("accelerate.sparse", M)
