--- Nested values in safetensors files: the tensors are the file's, and the text `structure` of its
--- `__metadata__` says, as JSON, how they hang together.
---
---   { "version": 1, "value": V,
---     "tables": [ { "list": [V, ...] }, { "keys": [V, ...], "values": [V, ...], "ordered": true? }
---       ], each with "nones": [V, ...]? and "kind": TEXT?, what accelerate.utils.python notes,
---     "tensors": [ { "name": NAME, "shape"?, "strides"?, "offset"?, "requires_grad"?, "parameter"?
---       } ] }
---
--- V is a number, a string, a boolean, { "table": i }, { "tensor": i } (from 0), { "number": "nan"
--- | "inf" | "-inf" } or { "bytes": NAME }: a string that is no short text is in the file as
--- bytes. An entry of `tensors` without a shape is the file's tensor; others are views of its
--- elements.
---
--- Why this format: any program that reads safetensors opens the tensors, by names that are their
--- places in the value; nothing in it is code; and its reader is the one that weights have.
local ffi = require "ffi"
local core = require "accelerate.core"
local json = require "accelerate.utils.json"
local layout = require "accelerate.files.layout"
local nested = require "accelerate.files.nested"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parameter = require "accelerate.nn.parameter"
local python = require "accelerate.utils.python"

local fail = options.fail

local M = {}

local SHORT = 4096  -- bytes; longer strings are written as tensors

-- ---- texts

-- Bytes of the UTF-8 character that begins with a byte, and the least second byte and the most.
local function form_of(byte)
  if byte < 0x80 then return 1 end
  if byte < 0xC2 or byte > 0xF4 then return 0 end
  if byte < 0xE0 then return 2, 0x80, 0xBF end
  if byte < 0xF0 then return 3, byte == 0xE0 and 0xA0 or 0x80, byte == 0xED and 0x9F or 0xBF end
  return 4, byte == 0xF0 and 0x90 or 0x80, byte == 0xF4 and 0x8F or 0xBF
end

-- What follows the second byte of a character.
local REST = { [2] = "^", [3] = "^[\128-\191]", [4] = "^[\128-\191][\128-\191]" }

--- Returns whether a string is UTF-8 without NUL.
---@param s string
---@return boolean
function M.is_text(s)
  if s:find("%z") then return false end
  local at = s:find("[\128-\255]")
  while at do
    local n, least, most = form_of(s:byte(at))
    local second = s:byte(at + 1)
    if n < 2 or not second or second < least or second > most or not s:find(REST[n], at + 2) then
      return false
    end
    at = s:find("[\128-\255]", at + n)
  end
  return true
end

local function bytes_tensor(s)
  local t = core.empty(#s, { dtype = "uint8" })
  if #s > 0 then ffi.copy(t:data_ptr(), s, #s) end
  return t
end

-- ---- writing

-- Names in a file: text, each once.
local function namer()
  local taken = { ["__metadata__"] = true }
  return function(wanted)
    if not M.is_text(wanted) then wanted = wanted:gsub("[%z\128-\255]", "?") end
    if #wanted > 512 then wanted = wanted:sub(1, 512):gsub("[\128-\255]*$", "") end
    local name, n = wanted, 1
    while taken[name] do
      n = n + 1
      name = ("%s#%d"):format(wanted, n)
    end
    taken[name] = true
    return name
  end
end

-- Values as JSON has them; what it has not goes into `items`, the list of what is written.
local function encoder(items, unique)
  local known = {}
  local function encode(v)
    if type(v) == "table" then
      return v.table and { table = v.table - 1 } or { tensor = v.tensor - 1 }
    elseif type(v) == "number" then
      if v ~= v then return { number = "nan" } end
      if v == math.huge or v == -math.huge then return { number = v > 0 and "inf" or "-inf" } end
      return v
    elseif type(v) ~= "string" or (#v <= SHORT and M.is_text(v)) then
      return v
    end
    if not known[v] then
      known[v] = { bytes = unique("bytes") }
      items[#items + 1] = { known[v].bytes, bytes_tensor(v) }
    end
    return known[v]
  end
  return encode
end

--- Writes a nested value to a safetensors file.
---@param value any
---@param path string
---@param where string what messages begin with
---@param save userdata? a save that the file is added to; nil: it is written
function M.save(value, path, where, save)
  local flat = nested.flatten(value, ("%s: '%s'"):format(where, path))
  local pieces, views = layout.of(flat.tensors)
  local unique, items = namer(), {}
  for i, piece in ipairs(pieces) do items[i] = { unique(flat.names[piece.owner]), piece.tensor } end
  local structure, encode = { version = 1, tables = {}, tensors = {} }, encoder(items, unique)
  for i, view in ipairs(views) do
    local t = flat.tensors[i]
    structure.tensors[i] = { name = items[view.piece][1], shape = view.shape, strides = view.strides,
      offset = view.offset, requires_grad = t.requires_grad and t.is_leaf or nil,
      parameter = parameter.is(t) or nil }
  end
  structure.value = encode(flat.value)
  for i, entry in ipairs(flat.tables) do
    structure.tables[i] = entry.list and { list = lists.map(entry.list, encode) }
      or { keys = lists.map(entry.keys, encode), values = lists.map(entry.values, encode),
      ordered = entry.ordered }
    structure.tables[i].nones, structure.tables[i].kind = entry.nones and lists.map(entry.nones, encode),
      entry.kind
  end
  core.safetensors_save(path, items, { format = "pt", structure = json.encode(structure) }, save)
end

-- ---- reading

local function whole_number(v, most) return type(v) == "number" and v >= 0 and v <= most and v % 1 == 0 end

local NUMBERS = { nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge }

-- Returns the function that turns JSON's values back.
local function decoder(bad, file, tables, tensor)
  local known = {}
  local function decode(v, where)
    if type(v) ~= "table" then
      if v == nil then bad("%s is missing", where) end
      return v
    end
    local kind, given = next(v)
    if kind == "table" or kind == "tensor" then
      if not whole_number(given, 2 ^ 53) then bad("%s names no %s", where, kind) end
      local found = kind == "table" and tables[given + 1]
      if kind == "tensor" then found = tensor(given + 1) end
      if not found then bad("%s names %s %.0f, which there is not", where, kind, given) end
      return found
    elseif kind == "number" and NUMBERS[given] then
      return NUMBERS[given]
    elseif kind == "bytes" and type(given) == "string" then
      if not known[given] then
        local t = file:get_tensor(given)
        if t.dtype ~= "uint8" then bad("%s are %s; expected uint8", where, t.dtype) end
        known[given] = t:numel() == 0 and "" or ffi.string(t:contiguous():data_ptr(), t:numel())
      end
      return known[given]
    end
    bad("%s is no value", where)
  end
  return decode
end

local function list_in(bad, where, entry, name)
  local list = entry[name]
  if type(list) ~= "table" then bad("%s has no %s", where, name) end
  local n = 0
  for key in next, list do
    if type(key) ~= "number" then bad("%s: %s is no list", where, name) end
    n = math.max(n, key)
  end
  return list, n
end

local KINDS = { Counter = python.counter, set = python.set }

local function read_note(bad, t, entry, where, decode)
  if KINDS[entry.kind] then KINDS[entry.kind](t) end
  if entry.nones == nil then return end
  local nones, n = list_in(bad, where, entry, "nones")
  for k = 1, n do
    local key = decode(nones[k], where)
    if type(key) == "table" or core.is_tensor(key) or key ~= key then
      bad("%s has a key that is none", where)
    end
    python.none(t, key)
  end
end

local function fill(bad, t, entry, where, decode)
  read_note(bad, t, entry, where, decode)
  if entry.list then
    local list, n = list_in(bad, where, entry, "list")
    for k = 1, n do t[k] = decode(list[k], where) end
    return
  end
  local keys, n = list_in(bad, where, entry, "keys")
  local values, m = list_in(bad, where, entry, "values")
  if n ~= m then bad("%s has %d keys and %d values", where, n, m) end
  for k = 1, n do
    local key = decode(keys[k], where)
    if type(key) == "table" or core.is_tensor(key) or key ~= key then
      bad("%s has a key that is none", where)
    end
    if rawget(t, key) ~= nil then bad("%s has the key %s twice", where, options.show(key)) end
    t[key] = decode(values[k], where)
  end
end

-- The function that gives tensor i, each made once.
local function tensors_of(bad, file, entries, device, lent)
  local found, pieces, numbers = {}, {}, {}
  local get = lent and file._lend or file.get_tensor
  local find = layout.finder(function(i)
    local piece = get(file, pieces[i])
    return device and piece:to(device) or piece
  end)
  return function(i)
    if found[i] then return found[i] end
    local e = entries[i]
    if type(e) ~= "table" or type(e.name) ~= "string" then bad("tensor %d has no name", i - 1) end
    if not numbers[e.name] then
      pieces[#pieces + 1] = e.name
      numbers[e.name] = #pieces
    end
    local ok, t = pcall(find, { piece = numbers[e.name], shape = e.shape, strides = e.strides,
      offset = e.offset })
    if not ok and tostring(t):find "interrupted$" then error(t, 0) end
    if not ok then bad("tensor %d ('%s'): %s", i - 1, e.name, tostring(t)) end
    local float = core._is_float(t)
    if e.parameter then
      t = parameter.new(t, { requires_grad = e.requires_grad == true and float })
    elseif e.requires_grad == true and float then
      t.requires_grad = true
    end
    found[i] = t
    return t
  end
end

--- Returns the value that `save` wrote into an open safetensors file, or nil when the file has no
--- structure.
---@param file table from core.safetensors_open
---@param path string for messages
---@param device string? where tensors go; default: the CPU
---@param lent boolean? tensors are over the mapped file
function M.load(file, path, device, lent)
  local text = file:metadata().structure
  if not text then return nil end
  local function bad(message, ...)
    fail("load: '%s': its structure is damaged: %s", path, message:format(...))
  end
  local s, why = json.decode(text)
  if type(s) ~= "table" then bad("%s", why or "it is no object") end
  if s.version ~= 1 then bad("version %s; known is 1", options.show(s.version)) end
  local entries, n = list_in(bad, "it", s, "tables")
  list_in(bad, "it", s, "tensors")
  local tables = {}
  for i = 1, n do
    if type(entries[i]) ~= "table" then bad("table %d is none", i - 1) end
    tables[i] = entries[i].ordered and ordered.new() or {}
  end
  local decode = decoder(bad, file, tables, tensors_of(bad, file, s.tensors, device, lent))
  for i = 1, n do fill(bad, tables[i], entries[i], ("table %d"):format(i - 1), decode) end
  return decode(s.value, "the value")
end

return M
