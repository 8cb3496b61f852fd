--- Python's pickle, protocols 2 to 5, as far as torch.save writes it for plain values: a reader
--- that does nothing but make values. Opcodes outside the list below are refused by name. What
--- names outside that of accelerate.files.pickle_names would make is refused by its place in the
--- value, or left out; nothing is called, imported or looked up.
local ffi = require "ffi"
local flat = require "accelerate.files.nested"
local names = require "accelerate.files.pickle_names"
local nested = require "accelerate.utils.nested"
local numpy = require "accelerate.files.pickle_numpy"
local options = require "accelerate.utils.options"
local python = require "accelerate.utils.python"

local fail = options.fail
local stand_in, kind_of, lost = names.stand_in, names.kind_of, names.lost

local M = {}

local PIECE = 2 ^ 16 -- bytes of a file that are read at first

local NONE, MARK = stand_in("None"), stand_in("mark")

-- ---- reading bytes

local Reader = {}
Reader.__index = Reader

function Reader:bad(message, ...)
  fail("%s: %s at byte %d of %s", self.where, message:format(...), self.at - 1,
    self.more and "the file" or "data.pkl")
end
local bad = Reader.bad

-- Whether another piece of a file was added to the text. Each one is as long as the text so far, so
-- that joining them takes time in proportion to the file.
local function grown(self)
  local piece = self.more and self.more(math.max(PIECE, #self.text))
  if piece then self.text = self.text .. piece end
  return piece
end

-- Passes over n bytes. Returns the place of the first one.
function Reader:pass(n)
  local at = self.at
  while n > #self.text - at + 1 do
    if not grown(self) then bad(self, "the pickle ends inside a value") end
  end
  self.at = at + n
  return at
end

function Reader:take(n)
  local at = self:pass(n)
  return self.text:sub(at, at + n - 1)
end

-- A number of n bytes, lowest first.
function Reader:unsigned(n)
  local at, v = self:pass(n), 0
  for i = at + n - 1, at, -1 do v = v * 256 + self.text:byte(i) end
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
  if n > 8 then
    self:take(n)
    return lost("an integer of %d bytes, which Lua's numbers do not hold", n)
  end
  local bytes = self:take(n)
  local negative = bytes:byte(n) >= 128
  bytes = bytes .. (negative and "\255" or "\0"):rep(8 - n)
  local value = ffi.new("int64_t[1]")
  ffi.copy(value, bytes, 8)
  local number = tonumber(value[0])
  if math.abs(number) >= 2 ^ 53 and ffi.cast("int64_t", number) ~= value[0] then
    return lost("the integer %s, which Lua's numbers do not hold exactly",
      (tostring(value[0]):gsub("LL$", "")))
  end
  return number
end

local function float(bytes)
  local value = ffi.new("double[1]")
  ffi.copy(value, bytes:reverse(), 8)
  return value[0]
end

-- ---- the stack

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

-- None in a list or tuple is false, and noted: written again it is None.
local function place(t, i, v)
  if v == NONE then
    v = false
    python.none(t, i)
  end
  t[i] = v
end

function Reader:tuple(list)
  for i = 1, #list do
    if list[i] == NONE then place(list, i, NONE) end
  end
  self:push(list)
end

function Reader:pop_tuple(n)
  local list = {}
  for i = n, 1, -1 do list[i] = self:pop() end
  self:tuple(list)
end

-- The table that items are for; nil when it is lost, and its items with it.
function Reader:container(kind)
  local t = self:top()
  if kind_of(t) == "lost" then return nil end
  if type(t) ~= "table" or not nested.is_container(t) or self.objects[t] then
    bad(self, "items for a %s, which is no %s", kind_of(t), kind)
  end
  return t
end

function Reader:append(items)
  local t = self:container("list")
  if not t then return end
  for i = 1, #items do place(t, #t + 1, items[i]) end
end

-- What stands for a key of a dict that no key in Lua can be, in messages; nil for others.
local function no_key(key)
  if key ~= key then return "a nan" end
  if type(key) ~= "table" and type(key) ~= "userdata" then return nil end
  return kind_of(key) == "lost" and key.name or "a " .. kind_of(key)
end

-- None in a dict is what nil is in a table: the key is not there.
function Reader:set_items(items)
  if #items % 2 ~= 0 then bad(self, "a key without a value") end
  local t = self:container("dict")
  if not t then return end
  for i = 1, #items, 2 do
    local key, v = items[i], items[i + 1]
    local wrong = not self.objects[key] and no_key(key)
    if wrong then self:lose(t, wrong)
    elseif v ~= NONE then t[key] = v
    else
      if rawget(t, key) ~= nil then t[key] = nil end
      if type(key) ~= "number" then python.none(t, key) end
    end
  end
end

-- An entry whose key has no form here: the table keeps a stand-in until the last check.
function Reader:lose(t, key)
  local name = ("\0%d"):format(self.n_lost)
  self.n_lost = self.n_lost + 1
  t[name] = stand_in("key", key)
end

-- ---- names

function Reader:name(module, name)
  local found = names.find(module, name)
  if found == nil then bad(self, "a name that is none") end
  self:push(found)
end

-- What a call makes where the caller says which classes there are.
function Reader:made(name, arguments)
  local make = self.classes[name]
  if not make then return lost("Python's %s", name) end
  if make ~= true then return make(arguments) end
  local object = { class = name }
  self.objects[object] = true
  return object
end

function Reader:call()
  local arguments, fn = self:pop(), self:pop()
  local kind = kind_of(fn)
  if kind == "lost" then return self:push(fn) end
  if kind ~= "name" then bad(self, "a call of %s", kind) end
  if type(arguments) ~= "table" or getmetatable(arguments) then bad(self, "a call without a tuple") end
  self:push(self.classes and self:made(fn.name, arguments) or names.call(self, fn, arguments))
end

-- ('storage', type, key, device, number of elements), and in files that are no archive a part of
-- another storage that it is, or None.
function Reader:persistent()
  local id = self:pop()
  if not self.storage then bad(self, "a reference, where no tensor is expected") end
  if type(id) ~= "table" or getmetatable(id) or id[1] ~= "storage" or kind_of(id[2]) ~= "name"
    or type(id[3]) ~= "string" or type(id[5]) ~= "number" then
    bad(self, "a reference that is no storage")
  end
  if id[6] then bad(self, "a storage that is a part of another one") end
  if not names.is_storage(id[2].name) then bad(self, "a reference that is no storage") end
  local other = names.other_storage(id[2].name)
  local storage = self.storage(id[2].name, id[3], id[5])
  self:push(storage and stand_in("storage", storage) or lost("%s", other or id[2].name))
end

-- ---- opcodes

local RUN = {}

local function put(self, at)
  local v = self:top()
  self.memo[at] = v
  if kind_of(v) == "numpy.ndarray" then v.places = { at, v.places } end
end

-- Puts what an array has become in its stand-in's place, on the stack and in the memo.
function Reader:exchange(stand, value)
  self.stack[self.n] = value
  local places = stand ~= value and stand.places
  while places do
    self.memo[places[1]] = value
    places = places[2]
  end
end

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
RUN["t"] = function(self) self:tuple(self:pop_mark()) end
for n, code in ipairs { "\133", "\134", "\135" } do
  RUN[code] = function(self) self:pop_tuple(n) end
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
RUN["\129"] = RUN["R"]
RUN["\146"] = function(self)
  self:pop()
  self:call()
end
RUN["Q"] = function(self) self:persistent() end
-- A NumPy array is made of its state. What a module's state dict remembers of versions, beside its
-- entries, is left out.
RUN["b"] = function(self)
  local state = self:pop()
  local t = self:top()
  if self.objects[t] then
    t.state = state
    return
  end
  local built = numpy.build(self, t, state)
  if built ~= nil then return self:exchange(t, built) end
  if kind_of(t) ~= "lost" and not self.plain[t] then
    bad(self, "the state of an object of kind %s", kind_of(t))
  end
end
RUN["\143"] = function(self) self:push(python.set {}) end
RUN["\144"] = function(self) self:append(self:pop_mark()) end
RUN["\145"] = function(self)
  local items = self:pop_mark()
  self:push(python.set {})
  self:append(items)
end
RUN["\150"] = function(self) self:push(self:take(self:unsigned(8))) end

local STOP, BY_BYTE = ("."):byte(), {}
for code, run in pairs(RUN) do BY_BYTE[code:byte()] = run end -- each by itself

-- Of the others: what they are called, for messages.
local NAMES = { I = "INT", L = "LONG", F = "FLOAT", S = "STRING", V = "UNICODE", P = "PERSID", g = "GET",
  p = "PUT", i = "INST", o = "OBJ", ["\130"] = "EXT1", ["\131"] = "EXT2", ["\132"] = "EXT4",
  ["\151"] = "NEXT_BUFFER", ["\152"] = "READONLY_BUFFER" }

local function reader(text, where, more, most)
  return setmetatable({ text = text, where = where, more = more, most = most or math.huge, at = 1 }, Reader)
end

-- Refuses what has no form in Lua, or leaves it out and notes it in `left`.
function Reader:check(value, left)
  flat.flatten(value, self.where, function(path, item, is_whole)
    if kind_of(item) == "key" then
      path = path:gsub("%[[^%[]*$", "")
      if path == "" then path = "the value" end
      item = lost("an entry with %s as key of a dict; expected a string, a number or a boolean", item.name)
      if not left then fail("%s: %s: %s", self.where, path, item.name) end
    end
    local what = names.describe(item)
    if is_whole then fail("%s: it is %s, which has no form in Lua; save a state_dict()", self.where, what) end
    if not left then
      fail("%s: %s is %s, which has no form in Lua; with { strict = false } everything else is loaded",
        self.where, path, what)
    end
    left[#left + 1] = ("%s: %s"):format(path, what)
  end)
end

-- The value that begins at self.at; self.at is behind it then.
function Reader:value(hooks, left)
  self.stack, self.n, self.marks, self.memo, self.memoized = {}, 0, {}, {}, 0
  self.plain, self.n_lost, self.objects, self.classes = {}, 0, {}, hooks.classes
  self.storage, self.tensor, self.parameter = hooks.storage, hooks.tensor, hooks.parameter
  self.later = hooks.later
  local left_over = self.most
  while true do
    local at = self:pass(1)
    local code = self.text:byte(at)
    left_over = left_over - 1
    if left_over < 0 then
      bad(self, "more than %.0f opcodes, which is too much for a file of its size", self.most)
    end
    if code == STOP then break end
    local run = BY_BYTE[code]
    if not run then
      bad(self, "the opcode %s, which plain values do not need", NAMES[string.char(code)]
        or ("0x%02x"):format(code))
    end
    run(self)
  end
  local value = self:pop()
  if value == NONE then return nil end
  if not self.classes then self:check(value, left) end
  return value
end

--- Returns the value of a pickle. Tuples and sets become lists; entries of dicts that are None are
--- left out, None in a list is false. Raises for anything else that has no form in Lua, and names
--- where it is; with `left` it is left out and noted there.
---@param text string
---@param where string what messages begin with
---@param hooks { storage: (fun(kind: string, key: string, count: number): any?), tensor:
---  (fun(storage: any, offset: number, shape: integer[], strides: integer[], requires_grad:
---  boolean): accelerate.Tensor), parameter: fun(t: accelerate.Tensor, requires_grad: boolean):
---  accelerate.Tensor, later: (fun(fn: fun()))? } | { classes: table<string, true|fun(arguments:
---  any[]): any> } storage: nil for elements that there are no tensors of; later: notes what is
---  done when storages have their elements, where they get these after the call; classes: what
---  alone is made of calls, by Python's name: true for { class = NAME, state = ANY }, which may be
---  a key of a table. With them the caller checks the value, in which stand-ins are what has no
---  form in Lua
---@param left string[]?
---@param most integer? opcodes that it may have
function M.read(text, where, hooks, left, most) return reader(text, where, nil, most):value(hooks, left) end

--- Returns a reader of pickles that follow each other in a file: `r:value(hooks, left)` is that of
--- the one at `r.at`, a place counted from 1, which is behind the pickle afterwards.
---@param more fun(bytes: integer): string? the next piece of the file, of at most as many bytes
---@param where string what messages begin with
---@return { at: integer, value: fun(self: table, hooks: table, left: string[]?): any }
function M.stream(more, where) return reader("", where, more) end

return M
