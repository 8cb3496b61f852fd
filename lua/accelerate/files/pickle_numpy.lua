--- NumPy's values in pickles: scalars are numbers, booleans or { re, im }, arrays are tensors.
--- Types that tensors lack are widened, as data.read_npy does; of other types a value is lost.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local ffi = require "ffi"
local stand_ins = require "accelerate.files.pickle_stand_ins"

local M = {}

local stand_in, kind_of, lost = stand_ins.stand_in, stand_ins.kind_of, stand_ins.lost

---@class accelerate.files.NumpyKind
---@field c string the C type of an element; of a complex one, of its parts
---@field size integer bytes
---@field dtype string of the tensor
---@field same boolean? a tensor's elements have these bytes
local KINDS = {
  f2 = { c = "uint16_t", size = 2, dtype = "float16", same = true },
  f4 = { c = "float", size = 4, dtype = "float32", same = true },
  f8 = { c = "double", size = 8, dtype = "float64", same = true },
  c8 = { c = "float", size = 8, dtype = "complex64", same = true },
  c16 = { c = "double", size = 16, dtype = "complex128", same = true },
  b1 = { c = "uint8_t", size = 1, dtype = "bool" },
  u1 = { c = "uint8_t", size = 1, dtype = "uint8", same = true },
  i1 = { c = "int8_t", size = 1, dtype = "int32" },
  i2 = { c = "int16_t", size = 2, dtype = "int32" },
  u2 = { c = "uint16_t", size = 2, dtype = "int32" },
  i4 = { c = "int32_t", size = 4, dtype = "int32", same = true },
  u4 = { c = "uint32_t", size = 4, dtype = "int64" },
  i8 = { c = "int64_t", size = 8, dtype = "int64", same = true },
}

local DTYPE, ARRAY = "numpy.dtype", "numpy.ndarray"

local function lost_kind(what, code) return lost("%s of type '%s'", what, code) end

-- The kind of a dtype's stand-in, or nil.
local function kind(dtype) return kind_of(dtype) == DTYPE and KINDS[dtype.name] or nil end

-- Bytes with the lowest of each element, or of each part of a complex one, first.
local function lowest_first(bytes, of, dtype)
  local step = ffi.sizeof(of.c)
  if dtype.order ~= ">" or step == 1 then return bytes end
  return (bytes:gsub(("."):rep(step), string.reverse))
end

-- ---- what names give

--- Returns the stand-in of numpy.dtype(code, align, copy), whose byte order comes by `build`.
function M.dtype(self, arguments)
  if type(arguments[1]) ~= "string" then self:bad("a numpy.dtype without a type") end
  return stand_in(DTYPE, arguments[1])
end

-- The integer of `size` bytes at a place, the lowest byte first.
local function integer_at(bytes, at, size, signed)
  local v = 0
  for k = size - 1, 0, -1 do v = v * 256 + bytes:byte(at + k) end
  return signed and v >= 2 ^ (8 * size - 1) and v - 2 ^ (8 * size) or v
end

-- The elements one after the other, a 1-d tensor.
local function elements(bytes, of, count)
  local t = core.empty({ count }, { dtype = of.dtype })
  if of.same then
    ffi.copy(ffi.cast("char *", t:data_ptr()), bytes, #bytes)
    return t
  end
  local is_bool, signed = of.dtype == "bool", of.c:find "^int" ~= nil
  local to = ffi.cast(is_bool and "uint8_t *" or of.dtype .. "_t *", t:data_ptr())
  for i = 0, count - 1 do
    local v = integer_at(bytes, 1 + i * of.size, of.size, signed)
    to[i] = is_bool and math.min(v, 1) or v
  end
  return t
end

-- A whole number is one that Lua's numbers hold.
local function number_of(cell)
  local number = tonumber(cell[0])
  if ffi.istype("int64_t", cell[0]) and ffi.cast("int64_t", number) ~= cell[0] then
    return lost("the integer %s, which Lua's numbers do not hold exactly",
      (tostring(cell[0]):gsub("LL$", "")))
  end
  return number
end

--- Returns the value of numpy.core.multiarray.scalar(dtype, bytes).
function M.scalar(self, arguments)
  local dtype, bytes = arguments[1], arguments[2]
  if kind_of(dtype) ~= DTYPE then self:bad("a scalar of NumPy's without a numpy.dtype") end
  local of = kind(dtype)
  if not of or type(bytes) ~= "string" then return lost_kind("a NumPy scalar", dtype.name) end
  if #bytes ~= of.size then self:bad("a NumPy scalar of type '%s' with %d bytes", dtype.name, #bytes) end
  bytes = lowest_first(bytes, of, dtype)
  if of.dtype == "float16" then return elements(bytes, of, 1):item() end
  local cells = ffi.new(of.c .. "[2]")
  ffi.copy(cells, bytes, #bytes)
  if of.dtype == "bool" then return cells[0] ~= 0 end
  if of.dtype:find "^complex" then return { cells[0], cells[1] } end
  return number_of(cells)
end

--- Returns the stand-in of an array that `build` fills, numpy.core.multiarray._reconstruct(class,
--- shape, code); of a class of its own it is lost.
function M.array(_, arguments)
  local class = arguments[1]
  if kind_of(class) ~= "name" then return lost "an array of no class" end
  return class.name == ARRAY and stand_in(ARRAY) or lost("Python's %s", class.name)
end

-- ---- arrays

local function is_shape(shape)
  if type(shape) ~= "table" or getmetatable(shape) or #shape > 8 then return false end
  for _, size in ipairs(shape) do
    if type(size) ~= "number" or size % 1 ~= 0 or size < 0 then return false end
  end
  return true
end

-- In Fortran's order the first size varies fastest: the sizes backwards, and then the dims.
local function shaped(t, shape, fortran)
  if not fortran or #shape < 2 then return t:view(shape) end
  local sizes, dims = {}, {}
  for d = 1, #shape do sizes[d], dims[d] = shape[#shape + 1 - d], #shape + 1 - d end
  return t:view(sizes):permute(dims):contiguous()
end

--- Returns the tensor of an array's bytes.
function M.tensor(self, dtype, shape, fortran, bytes)
  if kind_of(dtype) ~= DTYPE or not is_shape(shape) then self:bad("the state of a NumPy array is none") end
  local of = kind(dtype)
  if not of or type(bytes) ~= "string" then return lost_kind("a NumPy array", dtype.name) end
  local count = lists.product(shape)
  if #bytes ~= count * of.size then
    self:bad("a NumPy array of %.0f elements of type '%s' with %d bytes", count, dtype.name, #bytes)
  end
  return shaped(elements(lowest_first(bytes, of, dtype), of, count), shape, fortran == true)
end

--- Returns what a dtype or an array is with its state, (3, order, ..) or (1, shape, dtype, in
--- Fortran's order, bytes); nil for other objects.
function M.build(self, object, state)
  local what = kind_of(object)
  if what ~= DTYPE and what ~= ARRAY then return nil end
  if type(state) ~= "table" or getmetatable(state) then self:bad("the state of a %s is none", what) end
  if what == ARRAY then return M.tensor(self, state[3], state[2], state[4], state[5]) end
  object.order = state[2]
  return object
end

return M
