--- Sparse tensors in coordinate form: the class. accelerate.sparse has the functions.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

--- A sparse tensor: where its values stand, and the values; all other elements are 0. A position
--- that occurs several times holds the sum of its values. Made by `tensor.sparse_coo_tensor` and
--- `x:to_sparse()`. Gradients are those of the values: a sparse tensor requires them where its
--- values do.
---
--- Besides the methods below there are functions that are 0 at 0 (they act on the coalesced
--- values): abs, neg, sign, sgn, sqrt, square, relu, sin, tan, asin, atan, sinh, tanh, asinh,
--- atanh, expm1, log1p, erf, ceil, floor, round, trunc, frac; and the operators + - * /.
---@class accelerate.sparse.SparseTensor
---@field shape integer[]
---@field ndim integer dims, sparse and dense ones
---@field dtype string of the values
---@field device string
---@field is_sparse boolean true
---@field layout string "sparse_coo"
---@field requires_grad boolean of the values
---@field grad accelerate.sparse.SparseTensor? the gradient of the values, at their positions
local SparseTensor = class("SparseTensor")
class.optional(SparseTensor, "grad")
SparseTensor.__described =
  "a sparse tensor (s:to_dense() gives a tensor, s:mm(x) a product, and with the sparse one first " ..
  "s + x a sum; see accelerate.sparse)"

local methods = SparseTensor -- what __index falls back to
local FIELDS = {
  ndim = function(s) return #s.shape end,
  dtype = function(s) return s._data.dtype end,
  device = function(s) return s._data.device end,
  is_sparse = function() return true end,
  layout = function() return "sparse_coo" end,
  requires_grad = function(s) return s._data.requires_grad end,
  grad = function(s)
    local g = s._data.grad
    return g and SparseTensor._make(s._places, g, s.shape, s._coalesced) or nil
  end,
}

-- Functions that are 0 at 0, of the coalesced values; made at their first use.
local AT_VALUES, of_values = {}, {}
for name in ([[abs neg sign sgn sqrt square relu sin tan asin atan sinh tanh asinh atanh expm1 log1p
  erf ceil floor round trunc frac]]):gmatch("%w+") do AT_VALUES[name] = true end

local function method_of_values(name)
  of_values[name] = of_values[name] or function(s)
    s = s:coalesce()
    return SparseTensor._make(s._places, s._data[name](s._data), s.shape, true, s._plans)
  end
  return of_values[name]
end

function SparseTensor.__index(s, key)
  if FIELDS[key] then return FIELDS[key](s) end
  if AT_VALUES[key] then return method_of_values(key) end
  local method = rawget(methods, key)
  if method ~= nil then return method end
  if type(key) ~= "string" then
    fail("sparse tensor: positions cannot be indexed; write s:to_dense()[...]")
  end
  if key:sub(1, 1) == "_" then return nil end
  local known, of_tensors = pcall(function() return core.empty(0)[key] end)
  if known and of_tensors ~= nil then
    fail("sparse tensor: '%s' is not defined for sparse tensors; write s:to_dense():%s(...)", key, key)
  end
  fail("sparse tensor: there is no field or method '%s'", key)
end

function SparseTensor.__newindex(_, key)
  fail("sparse tensor: '%s' cannot be assigned: its positions and values are fixed", tostring(key))
end

-- The positions are numbered to sort them.
local function check_countable(places, shape)
  local n = 1
  for d = 1, places.shape[1] do n = n * shape[d] end
  if n >= 2 ^ 63 then
    fail("sparse tensor: size [%s] has %.3g positions; int64 numbers 2^63 of them",
      table.concat(shape, ", "), n)
  end
end

-- What keeps the parts; `plans` is shared by a matrix and its copies with other values.
function SparseTensor._make(places, data, shape, coalesced, plans)
  check_countable(places, shape)
  local s = setmetatable({}, SparseTensor)
  rawset(s, "_places", places)  -- int64 (sparse dims, nnz)
  rawset(s, "_data", data)      -- (nnz, dense dims ...)
  rawset(s, "shape", shape)
  rawset(s, "_coalesced", coalesced or false)
  rawset(s, "_plans", plans or {})
  return s
end

--- Returns whether `value` is a sparse tensor.
---@param value any
---@return boolean
function SparseTensor._is(value) return class.is(value, SparseTensor) end

-- As many values as before, at the same places.
local function with(s, data) return SparseTensor._make(s._places, data, s.shape, s._coalesced, s._plans) end

local function size_of(shape, first, last)
  local n = 1
  for d = first, last do n = n * shape[d] end
  return n
end

-- The places as numbers: positions in the sparse dims laid out one after the other.
local function keys_of(places, shape)
  local dims = places.shape[1]
  local keys = places:select(1, 1)
  for d = 2, dims do keys = keys * shape[d] + places:select(1, d) end
  return keys
end
SparseTensor._keys_of = keys_of

-- From the number of a place back to its coordinates.
local function places_of(keys, shape, dims)
  local rows = {}
  for d = dims, 1, -1 do
    rows[d] = d > 1 and keys:remainder(shape[d]) or keys
    if d > 1 then keys = keys:div(shape[d], { rounding_mode = "floor" }):long() end
  end
  return core.stack(rows, 1)
end

--- Sums the values of positions that occur several times and sorts positions by row. Returns the
--- tensor itself when that is done already.
---@return accelerate.sparse.SparseTensor
function SparseTensor:coalesce()
  if self._coalesced then return self end
  local places, data, shape = self._places, self._data, self.shape
  local dims = places.shape[1]
  if places.shape[2] < 2 then return SparseTensor._make(places, data, shape, true) end
  local keys, inverse = keys_of(places, shape):unique { return_inverse = true }
  local wide = { keys:numel() }
  for d = 2, data.ndim do wide[d] = data.shape[d] end
  local sums = core.zeros(wide, { dtype = data.dtype, device = data.device }):index_add(1, inverse, data)
  return SparseTensor._make(places_of(keys, shape, dims), sums, shape, true)
end

---@return boolean
function SparseTensor:is_coalesced() return self._coalesced end

--- Returns how many values are stored.
---@return integer
function SparseTensor:nnz() return self._places.shape[2] end
SparseTensor._nnz = SparseTensor.nnz

local function need_coalesced(s, what)
  if not s._coalesced then
    fail("sparse tensor: %s of a tensor that is not coalesced; write s:coalesce():%s()", what, what)
  end
end

--- Returns the positions, int64 (sparse_dim, nnz), from 0. Raises where it is not coalesced.
---@return accelerate.Tensor
function SparseTensor:indices()
  need_coalesced(self, "indices")
  return self._places
end

--- Returns the values, (nnz, dense dims ...). Raises where it is not coalesced.
---@return accelerate.Tensor
function SparseTensor:values()
  need_coalesced(self, "values")
  return self._data
end

--- Returns the positions as they are, also where it is not coalesced.
---@return accelerate.Tensor
function SparseTensor:_indices() return self._places end

--- Returns the values as they are, also where it is not coalesced.
---@return accelerate.Tensor
function SparseTensor:_values() return self._data end

--- Returns how many dims the positions have.
---@return integer
function SparseTensor:sparse_dim() return self._places.shape[1] end

--- Returns how many dims each value has.
---@return integer
function SparseTensor:dense_dim() return self._data.ndim - 1 end

---@return integer
function SparseTensor:dim() return #self.shape end

--- Returns all sizes, or that of one dim.
---@param dim? integer
---@return integer[]|integer
function SparseTensor:size(dim)
  if dim == nil then return { unpack(self.shape) } end
  return self.shape[self:_dim("size", dim)]
end

--- Returns how many elements the tensor stands for.
---@return integer
function SparseTensor:numel() return size_of(self.shape, 1, #self.shape) end

-- A dim counted from 1, or from the end below 0.
function SparseTensor:_dim(where, dim)
  local n = #self.shape
  where = where:find("^sparse") and where or "sparse " .. where
  options.value(where, "dim", dim, { "integer" })
  local at = dim < 0 and dim + n + 1 or dim
  if at < 1 or at > n then
    fail("%s: dim %d is out of range; expected 1..%d or -%d..-1", where, dim, n, n)
  end
  return at
end

--- Returns all elements as a tensor. Its gradient goes to the values.
---@return accelerate.Tensor
function SparseTensor:to_dense()
  local data, shape, dims = self._data, self.shape, self._places.shape[1]
  local wide = { size_of(shape, 1, dims) }
  for d = 2, data.ndim do wide[d] = data.shape[d] end
  local zeros = core.zeros(wide, { dtype = data.dtype, device = data.device })
  return zeros:index_add(1, keys_of(self._places, shape), data):view(shape)
end

--- Returns the tensor itself.
---@return accelerate.sparse.SparseTensor
function SparseTensor:to_sparse() return self end

--- Swaps two sparse dims. The positions of the result are not sorted any more.
---@param dim0 integer
---@param dim1 integer
---@return accelerate.sparse.SparseTensor
function SparseTensor:transpose(dim0, dim1)
  local dims = self._places.shape[1]
  local a, b = self:_dim("transpose", dim0), self:_dim("transpose", dim1)
  if a == b then return self end
  if a > dims or b > dims then
    fail("sparse transpose: dims %d and %d: only the %d sparse dims can be swapped", dim0, dim1, dims)
  end
  local order, shape = {}, { unpack(self.shape) }
  for d = 1, dims do order[d] = d - 1 end
  order[a], order[b] = order[b], order[a]
  shape[a], shape[b] = shape[b], shape[a]
  local places = self._places:index_select(1, core.tensor(order, { dtype = "int64", device = self.device }))
  -- the plan by rows of a transposed matrix is the plan by columns
  local plans = self._plans
  plans.turned = plans.turned or { turned = plans }
  return SparseTensor._make(places, self._data, shape, self:nnz() < 2, plans.turned)
end

--- Transposes a matrix.
---@return accelerate.sparse.SparseTensor
function SparseTensor:t()
  if #self.shape ~= 2 then fail("sparse t: expected a matrix, got %s", tostring(self:_text())) end
  return self:transpose(1, 2)
end

function SparseTensor:_text() return ("[%s]"):format(table.concat(self.shape, ", ")) end

-- ---- gradients, types, devices

--- Returns the tensor without the history of its values.
---@return accelerate.sparse.SparseTensor
function SparseTensor:detach() return with(self, self._data:detach()) end

--- Returns a copy of the values at the same positions.
---@return accelerate.sparse.SparseTensor
function SparseTensor:clone() return with(self, self._data:clone()) end

--- Says whether gradients of the values are wanted; the values must be a leaf.
---@param on? boolean default true
---@return accelerate.sparse.SparseTensor # itself
function SparseTensor:requires_grad_(on)
  self._data:requires_grad_(on == nil and true or on)
  return self
end

--- Moves positions and values to a device, or casts the values: `s:to("cuda")`, `s:to("float64")`.
---@param ... any as for tensors
---@return accelerate.sparse.SparseTensor
function SparseTensor:to(...)
  local data = self._data:to(...)
  if data.device == self._data.device then return with(self, data) end
  return SparseTensor._make(self._places:to(data.device), data, self.shape, self._coalesced)
end

---@return accelerate.sparse.SparseTensor
function SparseTensor:cpu() return self:to("cpu") end

---@param ... any a device, default the first GPU
---@return accelerate.sparse.SparseTensor
function SparseTensor:cuda(...)
  local data = self._data:cuda(...)
  return SparseTensor._make(self._places:to(data.device), data, self.shape, self._coalesced)
end

---@return accelerate.sparse.SparseTensor
function SparseTensor:float() return self:to("float32") end

---@return accelerate.sparse.SparseTensor
function SparseTensor:double() return self:to("float64") end

-- ---- sums and products, element by element

-- A matrix of s's places whose values come from a dense tensor.
local function picked(s, x)
  local dims = s._places.shape[1]
  local wide = { size_of(s.shape, 1, dims) }
  for d = dims + 1, #s.shape do wide[#wide + 1] = s.shape[d] end
  return x:reshape(wide):index_select(1, keys_of(s._places, s.shape))
end

local function same_shape(where, a, b)
  if table.concat(a.shape, ",") ~= table.concat(b.shape, ",") then
    fail("sparse %s: the shapes [%s] and [%s] differ; they are not broadcast", where,
      table.concat(a.shape, ", "), table.concat(b.shape, ", "))
  end
  if a.dtype ~= b.dtype or a.device ~= b.device then
    fail("sparse %s: expected operands of one type on one device, got %s on %s and %s on %s", where, a.dtype,
      a.device, b.dtype, b.device)
  end
end

local function same_dims(where, a, b)
  same_shape(where, a, b)
  if a:sparse_dim() ~= b:sparse_dim() then
    fail("sparse %s: %d and %d sparse dims; write a:to_dense()", where, a:sparse_dim(), b:sparse_dim())
  end
end

--- Adds a sparse tensor (the result is sparse) or a dense one of the same shape (it is dense),
--- times alpha.
---@param other accelerate.sparse.SparseTensor|accelerate.Tensor
---@param opts? { alpha: number } default 1
---@return accelerate.sparse.SparseTensor|accelerate.Tensor
function SparseTensor:add(other, opts)
  local alpha = options.check("sparse add", opts, { alpha = { "number", default = 1 } }).alpha
  if core.is_tensor(other) then
    same_shape("add", self, other)
    return self:to_dense() + (alpha == 1 and other or other * alpha)
  end
  if not SparseTensor._is(other) then
    fail("sparse add: expected a sparse tensor or a tensor of its shape, got %s; a number would fill all " ..
      "elements: write s:to_dense()", options.show(other))
  end
  same_dims("add", self, other)
  local sum = SparseTensor._make(core.cat({ self._places, other._places }, 2),
    core.cat({ self._data, alpha == 1 and other._data or other._data * alpha }, 1), self.shape, false)
  return self._coalesced and other._coalesced and sum:coalesce() or sum
end

--- Subtracts a sparse tensor or a dense one of the same shape, times alpha.
---@param other accelerate.sparse.SparseTensor|accelerate.Tensor
---@param opts? { alpha: number } default 1
---@return accelerate.sparse.SparseTensor|accelerate.Tensor
function SparseTensor:sub(other, opts)
  return self:add(other, { alpha = -options.check("sparse sub", opts,
    { alpha = { "number", default = 1 } }).alpha })
end

local function is_number(v)
  return type(v) == "number" or core.is_tensor(v) and v.ndim == 0
end

-- The values of the places that both have.
local function common(a, b)
  a, b = a:coalesce(), b:coalesce()
  if a:nnz() == 0 or b:nnz() == 0 then return with(a, a._data * 0) end
  local mine, theirs = keys_of(a._places, a.shape), keys_of(b._places, b.shape)
  local at = core.searchsorted(theirs, mine):clamp { max = b:nnz() - 1 }
  local both = core.nonzero(theirs:index_select(1, at):eq(mine)):reshape(-1)
  return SparseTensor._make(a._places:index_select(2, both),
    a._data:index_select(1, both) * b._data:index_select(1, at:index_select(1, both)), a.shape, true)
end

--- Multiplies with a number, a 0-d tensor, or element by element with a sparse or dense tensor of
--- the same shape.
---@param other number|accelerate.Tensor|accelerate.sparse.SparseTensor
---@return accelerate.sparse.SparseTensor
function SparseTensor:mul(other)
  if is_number(other) then return with(self, self._data * other) end
  if core.is_tensor(other) then
    same_shape("mul", self, other)
    return with(self, self._data * picked(self, other))
  end
  if not SparseTensor._is(other) then
    fail("sparse mul: expected a number or a tensor, got %s", options.show(other))
  end
  same_dims("mul", self, other)
  return common(self, other)
end

--- Divides by a number, a 0-d tensor, or element by element by a dense tensor of the same shape.
---@param other number|accelerate.Tensor
---@return accelerate.sparse.SparseTensor
function SparseTensor:div(other)
  if is_number(other) then return with(self, self._data / other) end
  if not core.is_tensor(other) then
    fail("sparse div: expected a number or a tensor, got %s; elsewhere it would be 0 / 0",
      options.show(other))
  end
  same_shape("div", self, other)
  return with(self, self._data / picked(self, other))
end

function SparseTensor.__add(a, b)
  if SparseTensor._is(a) then return a:add(b) end
  return b:add(a)
end
function SparseTensor.__sub(a, b)
  if SparseTensor._is(a) then return a:sub(b) end
  return (-b):add(a)
end
function SparseTensor.__mul(a, b)
  if SparseTensor._is(a) then return a:mul(b) end
  return b:mul(a)
end
function SparseTensor.__div(a, b)
  if SparseTensor._is(a) then return a:div(b) end
  fail("sparse div: a sparse tensor cannot be the divisor: most of its elements are 0")
end
function SparseTensor.__unm(s) return with(s, -s._data) end

-- "tensor(indices=..., values=..., size=(2, 3), nnz=3, layout=sparse_coo)"
function SparseTensor.__tostring(s)
  local function part(name, x)
    local shift = "\n" .. (" "):rep(#"tensor(" + #name + 1)
    return name .. "=" .. tostring(x:detach()):gsub("\n", shift)
  end
  local text = { part("indices", s._places), part("values", s._data),
    ("size=(%s%s), nnz=%d"):format(table.concat(s.shape, ", "), #s.shape == 1 and "," or "", s:nnz()) }
  if s.dtype ~= "float32" then text[3] = text[3] .. ", dtype=" .. s.dtype end
  local last = "layout=sparse_coo"
  if s.requires_grad then last = last .. ", requires_grad=True" end
  return "tensor(" .. text[1] .. ",\n       " .. text[2] .. ",\n       " .. text[3] .. ", " .. last .. ")"
end

return SparseTensor
