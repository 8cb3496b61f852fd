--- The names that pickles of plain values may use, and what is made of their calls. Nothing is
--- imported or called: each name has a function here, and all others give a stand-in, which says
--- what Python has in its place.
local core = require "accelerate.core"
local numpy = require "accelerate.files.pickle_numpy"
local ordered = require "accelerate.utils.ordered"
local python = require "accelerate.utils.python"
local stand_ins = require "accelerate.files.pickle_stand_ins"

local M = {}

M.stand_in, M.kind_of, M.describe, M.lost = stand_ins.stand_in, stand_ins.kind_of, stand_ins.describe,
  stand_ins.lost
local stand_in, kind_of, lost = M.stand_in, M.kind_of, M.lost

-- ---- tensors

local TENSORS = "tensors here are float32, float64, float16, bfloat16, int64, int32, uint8, bool, " ..
  "complex64, complex128, float8_e4m3fn and float8_e5m2"

-- Storages of other types, and the bytes of an element.
local OTHER = { CharStorage = { "int8", 1 }, ShortStorage = { "int16", 2 }, QInt8Storage = { "qint8", 1 },
  QUInt8Storage = { "quint8", 1 }, QInt32Storage = { "qint32", 4 }, QUInt4x2Storage = { "quint4x2", 1 },
  QUInt2x4Storage = { "quint2x4", 1 } }

--- Returns the type of a storage whose elements no tensor here can have, and the bytes of an
--- element; nil for other names.
---@param kind string the storage's class, with its module
---@return string? dtype
---@return integer? size
function M.other_storage(kind)
  local entry = OTHER[kind:match("^torch%.(%w+)$") or kind:match("^torch%.storage%.(%w+)$")]
  if entry then return entry[1], entry[2] end
end

local function lost_tensor(dtype) return lost("a tensor of %s; %s", dtype, TENSORS) end

local function whole_list(v)
  if type(v) ~= "table" or getmetatable(v) then return false end
  for _, size in ipairs(v) do
    if type(size) ~= "number" or size % 1 ~= 0 or size < 0 or size > 2 ^ 53 then return false end
  end
  return true
end

local TENSOR, PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"

-- Name -> fn(reader, arguments): what a call gives.
local CALLS = {}

-- PyTorch's marks of a tensor whose elements are conjugated or negated when they are read; nil for
-- none.
local function marks_of(self, marks)
  if marks == nil or kind_of(marks) == "None" then return nil end
  if type(marks) ~= "table" then self:bad("the marks of %s are none", TENSOR) end
  for name, on in ordered.pairs(marks) do
    if name ~= "conj" and name ~= "neg" or type(on) ~= "boolean" then
      self:bad("a tensor with the mark %s, which is not known", tostring(name))
    end
  end
  return (marks.conj or marks.neg) and marks or nil
end

CALLS[TENSOR] = function(self, a)
  if kind_of(a[1]) == "lost" then return lost_tensor(a[1].name) end
  if kind_of(a[1]) ~= "storage" or type(a[2]) ~= "number" or not whole_list(a[3]) or not whole_list(a[4])
    or type(a[5]) ~= "boolean" then
    self:bad("the arguments of %s are none", TENSOR)
  end
  local marks = marks_of(self, a[7])
  if not marks then return self.tensor(a[1].name, a[2], a[3], a[4], a[5]) end
  local over = self.tensor(a[1].name, a[2], a[3], a[4], false)
  local function resolved()
    local t = marks.conj and core.conj(over) or over
    return marks.neg and core.neg(t) or t
  end
  local t = self.later and core.empty(over.shape, { dtype = over.dtype, device = over.device }) or resolved()
  if self.later then self.later(function() t:detach():copy_(resolved()) end) end
  if a[5] then t.requires_grad = true end
  return t
end

-- Tensors of types that came later than storages of their own: uint16, float8_e4m3fn and others.
-- Their storages have bytes.
CALLS["torch._utils._rebuild_tensor_v3"] = function(self, a)
  local dtype = a[7]
  if dtype ~= "float8_e4m3fn" and dtype ~= "float8_e5m2" then
    return lost_tensor(type(dtype) == "string" and dtype or "a type that is not known")
  end
  if kind_of(a[1]) ~= "storage" or a[1].name.dtype ~= "uint8" then
    self:bad("the storage of a tensor of %s is none of bytes", dtype)
  end
  return CALLS[TENSOR](self, { stand_in("storage", a[1].name:view(dtype)), a[2], a[3], a[4], a[5] })
end

CALLS[PARAMETER] = function(self, a)
  if kind_of(a[1]) == "lost" then return a[1] end
  if not core.is_tensor(a[1]) or type(a[2]) ~= "boolean" then
    self:bad("the arguments of %s are none", PARAMETER)
  end
  return self.parameter(a[1], a[2])
end

-- Attributes that a script gave a parameter or a tensor are left out.
CALLS["torch._utils._rebuild_parameter_with_state"] = CALLS[PARAMETER]
CALLS["torch._tensor._rebuild_from_type_v2"] = function(self, a)
  local fn = kind_of(a[1]) == "name" and CALLS[a[1].name]
  if not fn or type(a[3]) ~= "table" or getmetatable(a[3]) then
    return lost "a tensor of a class of its own"
  end
  return fn(self, a[3])
end

CALLS["torch.Size"] = function(self, arguments)
  if type(arguments[1]) ~= "table" then self:bad("torch.Size of no sizes") end
  return arguments[1]
end

CALLS["torch.device"] = function(self, arguments)
  local kind, index = arguments[1], arguments[2]
  if type(kind) ~= "string" or index and type(index) ~= "number" then
    self:bad("torch.device of no device")
  end
  return index and ("%s:%d"):format(kind, index) or kind
end

CALLS["torch.serialization._get_layout"] = function(self, arguments)
  if type(arguments[1]) ~= "string" then self:bad("a layout without a name") end
  return (arguments[1]:gsub("^torch%.", ""))
end

-- ---- Python's own

CALLS["collections.OrderedDict"] = function(self, arguments)
  local t, list = ordered.new(), arguments[1] or {}
  if type(list) ~= "table" then self:bad("an OrderedDict of no pairs") end
  self:push(t)
  for _, pair in ipairs(list) do
    if type(pair) ~= "table" or #pair ~= 2 then self:bad("an OrderedDict of no pairs") end
    self:set_items(pair)
  end
  self:pop()
  self.plain[t] = true
  return t
end

-- The counts by value. The table is one that remembers its order, so that counts of 1, 2, .. are no
-- list.
CALLS["collections.Counter"] = function(self, arguments)
  local t, counts = ordered.new(), arguments[1] or {}
  if type(counts) ~= "table" or kind_of(counts) ~= "table" then self:bad("a Counter of no dict") end
  for _, key in ipairs(ordered.sorted_keys(counts)) do t[key] = counts[key] end
  return python.counter(t)
end

-- What it makes of a key that is not there is left out.
CALLS["collections.defaultdict"] = function() return {} end

local function list_of(kind)
  return function(self, arguments)
    local list = arguments[1] or {}
    if type(list) ~= "table" or getmetatable(list) then self:bad("a %s of no list", kind) end
    return python.set(list)
  end
end
CALLS["builtins.set"], CALLS["builtins.frozenset"] = list_of "set", list_of "frozenset"

-- A list; how long it may become is left out.
CALLS["collections.deque"] = function(self, arguments)
  local list = arguments[1] or {}
  if type(list) ~= "table" or getmetatable(list) then self:bad("a deque of no list") end
  return { unpack(list) }
end

-- As z:totable() has a complex number.
CALLS["builtins.complex"] = function(self, arguments)
  if type(arguments[1]) ~= "number" or type(arguments[2]) ~= "number" then
    self:bad("a complex number of no numbers")
  end
  return { arguments[1], arguments[2] }
end

CALLS["_codecs.encode"] = function(self, arguments)
  local text, name = arguments[1], arguments[2]
  if type(text) ~= "string" or name ~= "latin1" and name ~= "latin-1" then
    self:bad("_codecs.encode of no text, or not to latin1")
  end
  local bytes = text:gsub("([\194\195])([\128-\191])", function(a, b)
    return string.char(b:byte() + (a == "\195" and 64 or 0))
  end)
  return bytes
end

-- Protocol 2 has no bytes of its own, and writes none of them as a call.
CALLS["builtins.bytes"] = function(self, arguments)
  if arguments[1] ~= nil then self:bad("bytes with arguments") end
  return ""
end

CALLS["builtins.bytearray"] = function(self, arguments)
  if arguments[2] then return CALLS["_codecs.encode"](self, arguments) end
  if arguments[1] and type(arguments[1]) ~= "string" then self:bad("a bytearray of no bytes") end
  return arguments[1] or ""
end

-- ---- NumPy's

CALLS["numpy.dtype"] = numpy.dtype
for _, room in ipairs { "numpy.core.", "numpy._core." } do
  CALLS[room .. "multiarray.scalar"], CALLS[room .. "multiarray._reconstruct"] = numpy.scalar, numpy.array
  CALLS[room .. "numeric._frombuffer"] = function(self, a)
    return numpy.tensor(self, a[2], a[3], a[4] == "F", a[1])
  end
end

-- ---- names

local DTYPES = {}
for name in ([[float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool
  complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
  float4_e2m1fn_x2 qint8 quint8 qint32 quint4x2 quint2x4]]):gmatch("%S+") do
  DTYPES["torch." .. name] = name
end

-- What Python 2's modules, which protocol 2 names, are called now.
local MODULES = { __builtin__ = "builtins", copy_reg = "copyreg" }

-- Functions that make an object of the class that is their first argument.
local MAKERS = { ["copyreg._reconstructor"] = true }

--- Returns what a name stands for: a string for a dtype, else a stand-in; nil when it is no name.
---@param module string
---@param name string
---@return any
function M.find(module, name)
  local full = (MODULES[module] or module) .. "." .. name
  if not full:find("^[%w_.<>]+$") then return nil end
  return DTYPES[full] or stand_in("name", full)
end

--- Returns whether a name is that of a storage.
---@param full string
---@return boolean
function M.is_storage(full) return full:find("^torch%.%w*%.?%w+Storage$") ~= nil end

--- Returns what a call of a name, or a class's __new__, gives.
---@param reader table
---@param fn table the name's stand-in
---@param arguments any[]
---@return any
function M.call(reader, fn, arguments)
  local call = CALLS[fn.name]
  if call then return call(reader, arguments) end
  local class = MAKERS[fn.name] and kind_of(arguments[1]) == "name" and arguments[1] or fn
  return lost("Python's %s", class.name)
end

return M
