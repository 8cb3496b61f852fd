--- Python's pickle, protocols 2 to 5, as far as torch.save writes it for plain values: a reader
--- that does nothing but make values. Opcodes and names outside the lists below are refused by
--- name; nothing is called, imported or looked up.
local ffi = require "ffi"
local core = require "accelerate.core"
local flat = require "accelerate.files.nested"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

-- ---- values that Lua has not --------------------------------------------------------------------

-- Stand-ins are tables with a metatable, so that the last check of a value finds them.
local function stand_in(kind, name) return setmetatable({ name = name }, { __name = kind }) end
local NONE = stand_in("None")
local MARK = stand_in("mark")

local function kind_of(v)
  local meta = type(v) == "table" and getmetatable(v)
  return meta and rawget(meta, "__name") or type(v)
end

-- ---- reading bytes ------------------------------------------------------------------------------

local Reader = {}
Reader.__index = Reader

local function bad(self, message, ...)
  fail("%s: %s at byte %d of %s", self.where, message:format(...), self.at - 1,
    self.more and "the file" or "data.pkl")
end

-- Whether another piece of a file was added to the text.
local function grown(self)
  local piece = self.more and self.more()
  if piece then self.text = self.text .. piece end
  return piece
end

function Reader:take(n)
  while n > #self.text - self.at + 1 do
    if not grown(self) then bad(self, "the pickle ends inside a value") end
  end
  local part = self.text:sub(self.at, self.at + n - 1)
  self.at = self.at + n
  return part
end

-- A number of n bytes, lowest first.
function Reader:unsigned(n)
  local v, scale = 0, 1
  for _, byte in ipairs { self:take(n):byte(1, n) } do
    v, scale = v + byte * scale, scale * 256
  end
  return v
end

function Reader:line()
  local stop = self.text:find("\n", self.at, true)
  while not stop do
    if not grown(self) then bad(self, "the pickle ends inside a name") end
    stop = self.text:find("\n", self.at, true)
  end
  local line = self.text:sub(self.at, stop - 1)
  self.at = stop + 1
  return line
end

-- Python's integers of n bytes, lowest first, signed.
function Reader:long(n)
  if n == 0 then return 0 end
  if n > 8 then bad(self, "an integer of %d bytes, which Lua's numbers do not hold", n) end
  local bytes = self:take(n)
  local negative = bytes:byte(n) >= 128
  bytes = bytes .. (negative and "\255" or "\0"):rep(8 - n)
  local value = ffi.new("int64_t[1]")
  ffi.copy(value, bytes, 8)
  local number = tonumber(value[0])
  if math.abs(number) >= 2 ^ 53 and ffi.cast("int64_t", number) ~= value[0] then
    bad(self, "the integer %s, which Lua's numbers do not hold exactly", tostring(value[0]):gsub("LL$", ""))
  end
  return number
end

local function float(bytes)
  local value = ffi.new("double[1]")
  ffi.copy(value, bytes:reverse(), 8)
  return value[0]
end

-- ---- the stack ----------------------------------------------------------------------------------

function Reader:push(v)
  self.n = self.n + 1
  self.stack[self.n] = v
end

function Reader:pop()
  local v = self.stack[self.n]
  if self.n == 0 or v == MARK then bad(self, "a value is missing") end
  self.stack[self.n] = nil
  self.n = self.n - 1
  return v
end

function Reader:top()
  local v = self.stack[self.n]
  if self.n == 0 or v == MARK then bad(self, "a value is missing") end
  return v
end

-- The values above the last mark, as a list.
function Reader:pop_mark()
  local at = table.remove(self.marks)
  if not at then bad(self, "a mark is missing") end
  local list = {}
  for i = at + 1, self.n do
    list[i - at] = self.stack[i]
    self.stack[i] = nil
  end
  self.stack[at] = nil
  self.n = at - 1
  return list
end

function Reader:tuple(n)
  local list = {}
  for i = n, 1, -1 do list[i] = self:pop() end
  self:push(list)
end

function Reader:container(kind)
  local t = self:top()
  if type(t) ~= "table" or not nested.is_container(t) then
    bad(self, "items for a %s, which is no %s", kind_of(t), kind)
  end
  return t
end

function Reader:append(items)
  local t = self:container("list")
  for i = 1, #items do t[#t + 1] = items[i] end
  if t[#t] == NONE then self.open_lists[t] = true end
end

-- The number of tensors at the start of a list that holds nothing but None behind them, or nil.
local function tensors_before_none(t)
  local count = 0
  while core.is_tensor(t[count + 1]) do count = count + 1 end
  for i = count + 1, #t do
    if t[i] ~= NONE then return nil end
  end
  return count
end

-- A list of tensors with places that are not filled yet ends with the last tensor: LBFGS's state
-- has one.
function Reader:cut_lists()
  for t in next, self.open_lists do
    local count = tensors_before_none(t)
    if count then
      for i = #t, count + 1, -1 do t[i] = nil end
    end
  end
end

-- None in a dict is what nil is in a table: the key is not there.
function Reader:set_items(items)
  if #items % 2 ~= 0 then bad(self, "a key without a value") end
  local t = self:container("dict")
  for i = 1, #items, 2 do
    local key, v = items[i], items[i + 1]
    if type(key) == "table" or type(key) == "userdata" or key ~= key then
      bad(self, "a %s as key of a dict; expected a string, a number or a boolean", key ~= key and "nan"
        or kind_of(key))
    end
    if v ~= NONE then t[key] = v elseif rawget(t, key) ~= nil then t[key] = nil end
  end
end

-- ---- names --------------------------------------------------------------------------------------

local CALLS = {}

CALLS["collections.OrderedDict"] = function(self, arguments)
  local t = ordered.new()
  self:push(t)
  for _, pair in ipairs(arguments[1] or {}) do
    if type(pair) ~= "table" or #pair ~= 2 then bad(self, "an OrderedDict of no pairs") end
    self:set_items(pair)
  end
  self:pop()
  self.plain[t] = true
  return t
end

CALLS["_codecs.encode"] = function(self, arguments)
  local text, name = arguments[1], arguments[2]
  if type(text) ~= "string" or name ~= "latin1" and name ~= "latin-1" then
    bad(self, "_codecs.encode of no text, or not to latin1")
  end
  local bytes = text:gsub("([\194\195])([\128-\191])", function(a, b)
    return string.char(b:byte() + (a == "\195" and 64 or 0))
  end)
  return bytes
end

CALLS["torch.Size"] = function(self, arguments)
  if type(arguments[1]) ~= "table" then bad(self, "torch.Size of no sizes") end
  return arguments[1]
end

local TENSOR, PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"

local function whole_list(v)
  if type(v) ~= "table" or getmetatable(v) then return false end
  for _, size in ipairs(v) do
    if type(size) ~= "number" or size % 1 ~= 0 or size < 0 or size > 2 ^ 53 then return false end
  end
  return true
end

CALLS[TENSOR] = function(self, a)
  if kind_of(a[1]) ~= "storage" or type(a[2]) ~= "number" or not whole_list(a[3]) or not whole_list(a[4])
    or type(a[5]) ~= "boolean" then
    bad(self, "the arguments of %s are none", TENSOR)
  end
  return self.tensor(a[1].name, a[2], a[3], a[4], a[5])
end

CALLS[PARAMETER] = function(self, a)
  if not core.is_tensor(a[1]) or type(a[2]) ~= "boolean" then
    bad(self, "the arguments of %s are none", PARAMETER)
  end
  return self.parameter(a[1], a[2])
end

function Reader:name(module, name)
  local full = module .. "." .. name
  if not full:find("^[%w_.]+$") then bad(self, "a name that is none") end
  if not CALLS[full] and not full:find("^torch%.%w+Storage$") then
    bad(self, "the name %s, which is no part of plain values; known are %s, %s, collections.OrderedDict and "
      .. "storages", full, TENSOR, PARAMETER)
  end
  self:push(stand_in("name", full))
end

function Reader:call()
  local arguments, fn = self:pop(), self:pop()
  if kind_of(fn) ~= "name" or not CALLS[fn.name] then
    bad(self, "a call of %s", kind_of(fn) == "name" and fn.name or kind_of(fn))
  end
  if type(arguments) ~= "table" or getmetatable(arguments) then bad(self, "a call without a tuple") end
  self:push(CALLS[fn.name](self, arguments))
end

-- ('storage', type, key, device, number of elements), and in files that are no archive a part of
-- another storage that it is, or None.
function Reader:persistent()
  local id = self:pop()
  if type(id) ~= "table" or getmetatable(id) or id[1] ~= "storage" or kind_of(id[2]) ~= "name"
    or type(id[3]) ~= "string" or type(id[5]) ~= "number" then
    bad(self, "a reference that is no storage")
  end
  if id[6] ~= nil and id[6] ~= NONE then bad(self, "a storage that is a part of another one") end
  self:push(stand_in("storage", self.storage(id[2].name, id[3], id[5])))
end

-- ---- opcodes ------------------------------------------------------------------------------------

local RUN = {}

local function put(self, at) self.memo[at] = self:top() end
local function get(self, at)
  local v = self.memo[at]
  if v == nil then bad(self, "the memo has no entry %d", at) end
  self:push(v)
end

RUN["\128"] = function(self)
  local version = self:unsigned(1)
  if version < 2 or version > 5 then bad(self, "protocol %d; known are 2 to 5", version) end
end
RUN["\149"] = function(self) self:take(8) end
RUN["("] = function(self)
  self:push(MARK)
  self.marks[#self.marks + 1] = self.n
end
RUN["0"] = function(self) self:pop() end
RUN["1"] = function(self) self:pop_mark() end
RUN["2"] = function(self) self:push(self:top()) end
RUN["N"] = function(self) self:push(NONE) end
RUN["\136"] = function(self) self:push(true) end
RUN["\137"] = function(self) self:push(false) end
RUN["K"] = function(self) self:push(self:unsigned(1)) end
RUN["M"] = function(self) self:push(self:unsigned(2)) end
RUN["J"] = function(self) self:push(self:long(4)) end
RUN["\138"] = function(self) self:push(self:long(self:unsigned(1))) end
RUN["\139"] = function(self) self:push(self:long(self:unsigned(4))) end
RUN["G"] = function(self) self:push(float(self:take(8))) end
for code, bytes in pairs { X = 4, ["\140"] = 1, ["\141"] = 8, U = 1, T = 4, B = 4, C = 1, ["\142"] = 8 } do
  RUN[code] = function(self) self:push(self:take(self:unsigned(bytes))) end
end
RUN[")"] = function(self) self:push {} end
RUN["t"] = function(self) self:push(self:pop_mark()) end
for n, code in ipairs { "\133", "\134", "\135" } do
  RUN[code] = function(self) self:tuple(n) end
end
RUN["]"] = function(self) self:push {} end
RUN["l"] = RUN["t"]
RUN["a"] = function(self)
  local v = self:pop()
  self:append { v }
end
RUN["e"] = function(self) self:append(self:pop_mark()) end
RUN["}"] = RUN["]"]
RUN["d"] = function(self)
  local items = self:pop_mark()
  self:push {}
  self:set_items(items)
end
RUN["s"] = function(self)
  local v = self:pop()
  self:set_items { self:pop(), v }
end
RUN["u"] = function(self) self:set_items(self:pop_mark()) end
RUN["q"] = function(self) put(self, self:unsigned(1)) end
RUN["r"] = function(self) put(self, self:unsigned(4)) end
RUN["\148"] = function(self)
  put(self, self.memoized)
  self.memoized = self.memoized + 1
end
RUN["h"] = function(self) get(self, self:unsigned(1)) end
RUN["j"] = function(self) get(self, self:unsigned(4)) end
RUN["c"] = function(self)
  local module = self:line()
  self:name(module, self:line())
end
RUN["\147"] = function(self)
  local name, module = self:pop(), self:pop()
  if type(name) ~= "string" or type(module) ~= "string" then bad(self, "a name that is none") end
  self:name(module, name)
end
RUN["R"] = function(self) self:call() end
RUN["Q"] = function(self) self:persistent() end
-- What a module's state dict remembers of versions, beside its entries.
RUN["b"] = function(self)
  self:pop()
  local t = self:top()
  if not self.plain[t] then bad(self, "the state of an object of kind %s", kind_of(t)) end
end

-- Of the others: what they are called, for messages.
local NAMES = { I = "INT", L = "LONG", F = "FLOAT", S = "STRING", V = "UNICODE", P = "PERSID", g = "GET",
  p = "PUT", i = "INST", o = "OBJ", ["\129"] = "NEWOBJ", ["\130"] = "EXT1", ["\131"] = "EXT2",
  ["\132"] = "EXT4", ["\143"] = "EMPTY_SET", ["\144"] = "ADDITEMS", ["\145"] = "FROZENSET",
  ["\146"] = "NEWOBJ_EX", ["\150"] = "BYTEARRAY8", ["\151"] = "NEXT_BUFFER", ["\152"] = "READONLY_BUFFER" }

local function reader(text, where, more)
  return setmetatable({ text = text, where = where, more = more, at = 1 }, Reader)
end

-- The value that begins at self.at; self.at is behind it then.
function Reader:value(hooks)
  self.stack, self.n, self.marks, self.memo, self.memoized = {}, 0, {}, {}, 0
  self.plain, self.open_lists = {}, {}
  self.storage, self.tensor, self.parameter = hooks.storage, hooks.tensor, hooks.parameter
  while true do
    local code = self:take(1)
    if code == "." then break end
    local run = RUN[code]
    if not run then
      bad(self, "the opcode %s, which plain values do not need", NAMES[code]
        or ("0x%02x"):format(code:byte()))
    end
    run(self)
  end
  local value = self:pop()
  if value == NONE then return nil end
  self:cut_lists()
  flat.flatten(value, self.where) -- nothing in it that is no data
  return value
end

--- Returns the value of a pickle. Tuples become lists; entries of dicts that are None, and None
--- behind the tensors of a list, are left out. Raises for anything else that has no form in Lua,
--- and names where it is.
---@param text string
---@param where string what messages begin with
---@param hooks { storage: (fun(kind: string, key: string, count: number): any), tensor:
---  (fun(storage: any, offset: number, shape: integer[], strides: integer[], requires_grad:
---  boolean): accelerate.Tensor), parameter: fun(t: accelerate.Tensor, requires_grad: boolean):
---  accelerate.Tensor }
function M.read(text, where, hooks) return reader(text, where):value(hooks) end

--- Returns a reader of pickles that follow each other in a file: `r:value(hooks)` is that of the
--- one at `r.at`, a place counted from 1, which is behind the pickle afterwards.
---@param more fun(): string? the next piece of the file
---@param where string what messages begin with
---@return { at: integer, value: fun(self: table, hooks: table): any }
function M.stream(more, where) return reader("", where, more) end

return M
