--- Reading values by intervals from files that hold pieces of them.
---
--- A piece is a run of a value's flattened elements, or a box of it, over a mapped file: only the
--- elements that a caller wants are read. Any number of writers can have cut a value in any way:
--- what a caller wants is put together from the pieces that it meets.
local boxes = require "accelerate.checkpoint.boxes"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

local MOST_DIMS, MOST_ELEMENTS = 8, 2 ^ 53

---@class accelerate.Piece
---@field file string for messages
---@field lend fun(): accelerate.Tensor, fun()? its elements, of its shape or flat, over the mapped
---  file; and what is called after they were copied: it raises where the file was truncated
---@field from integer? a run: its first element, from 0
---@field n integer?
---@field offsets integer[]? else a box
---@field sizes integer[]?

---@class accelerate.IntervalReader
---@field path string
---@field _values table<string, { dtype: string, shape: integer[], numel: integer, runs:
---  accelerate.Piece[], boxes: accelerate.Piece[], file: string }>
local Reader = class("IntervalReader")

function Reader:init(where, path)
  self.where, self.path = where, path
  self._values, self._objects, self._paths = ordered.new(), ordered.new(), {}
  self._open, self._lent = {}, {}
end

--- Raises an error that begins with the path. A name is shown with at most 100 bytes.
---@param message string with one '%s' for the name first
---@param name string
function Reader:fail(message, name, ...)
  fail("%s: '%s': %s", self.where, self.path, message:format(tostring(name):sub(1, 100), ...))
end

-- ---- what there is

--- Returns whether a value is a list of sizes that a tensor can have.
---@param list any
---@return boolean
function M.is_shape(list)
  if type(list) ~= "table" or #list > MOST_DIMS or not ordered.is_list(list) and next(list) ~= nil then
    return false
  end
  local n = 1
  for _, size in ipairs(list) do
    if type(size) ~= "number" or size < 0 or size % 1 ~= 0 then return false end
    n = n * math.max(size, 1)
  end
  return n <= MOST_ELEMENTS
end

local function fits(value, piece)
  if piece.sizes then
    if #piece.sizes ~= #value.shape or #piece.offsets ~= #value.shape then return false end
    for d, size in ipairs(value.shape) do
      if piece.offsets[d] + piece.sizes[d] > size then return false end
    end
    return true
  end
  return piece.from + piece.n <= value.numel
end

-- Elements `from` up to `to`, which is behind them.
local function run_text(from, to)
  if to == from + 1 then return ("element %.0f"):format(from) end
  return ("elements %.0f to %.0f"):format(from, to - 1)
end

local function place_text(piece)
  if piece.sizes then
    return ("elements of the box %s at %s"):format(lists.shape_text(piece.sizes),
      lists.shape_text(piece.offsets))
  end
  return run_text(piece.from, piece.from + piece.n)
end

-- The entry of a name, which all files must describe alike.
local function entry_of(self, name, dtype, shape, file)
  local value = self._values[name]
  if not value then
    value = { dtype = dtype, shape = shape, numel = boxes.count(shape), runs = {}, boxes = {}, file = file }
    self._values[name] = value
  elseif value.dtype ~= dtype or not lists.same(value.shape, shape) then
    self:fail("'%s' is %s %s in %s and %s %s in %s", name, value.dtype, lists.shape_text(value.shape),
      value.file, dtype, lists.shape_text(shape), file)
  end
  return value
end

--- Adds a piece of a value; a box whose elements follow each other becomes a run.
---@param name string
---@param dtype string
---@param shape integer[] of the whole value, which M.is_shape has seen
---@param piece accelerate.Piece
function Reader:add(name, dtype, shape, piece)
  local value = entry_of(self, name, dtype, shape, piece.file)
  if not fits(value, piece) then
    self:fail("'%s' in %s: %s lie outside its shape %s", name, piece.file, place_text(piece),
      lists.shape_text(shape))
  end
  if piece.sizes then
    local from, n = boxes.run(shape, piece)
    if from then piece.from, piece.n = from, n end
  end
  local list = piece.from and value.runs or value.boxes
  list[#list + 1] = piece
  value.sorted = nil
end

--- Adds a tensor whose pieces come later, or never: an empty one may have none.
---@param name string
---@param dtype string
---@param shape integer[]
---@param file string
function Reader:add_name(name, dtype, shape, file) entry_of(self, name, dtype, shape, file) end

--- Notes where a value stands in the nested value that was saved.
---@param name string
---@param path (string|integer)[]?
function Reader:set_path(name, path) self._paths[name] = path end

--- Returns where a value stands in the nested value that was saved.
---@param name string
---@return (string|integer)[]
function Reader:path_of(name) return self._paths[name] or { name } end

--- Adds a value that is no tensor.
---@param name string
---@param get fun(): any
function Reader:add_object(name, get) self._objects[name] = { get = get } end

--- Lets close() call a function.
function Reader:holds(close) self._open[#self._open + 1] = close end

--- Returns the names of the tensors, in the order of the files.
---@return string[]
function Reader:names() return ordered.keys(self._values) end

--- Returns the names of what is no tensor.
---@return string[]
function Reader:object_names() return ordered.keys(self._objects) end

---@param name string
---@return boolean
function Reader:has(name) return self._values[name] ~= nil end

---@param name string
---@return boolean
function Reader:has_object(name) return self._objects[name] ~= nil end

local function near(name, list)
  local found = options.nearest(tostring(name), ordered.keys(list))
  return found and ("; did you mean '%s'?"):format(found) or ""
end

function Reader:_value(name)
  local value = self._values[name]
  if value then return value end
  self:fail("there is no tensor '%s'%s", tostring(name), near(name, self._values))
end

--- Returns the shape of the whole value.
---@param name string
---@return integer[]
function Reader:shape(name) return { unpack(self:_value(name).shape) } end

---@param name string
---@return string
function Reader:dtype(name) return self:_value(name).dtype end

--- Returns a value that is no tensor.
---@param name string
---@return any
function Reader:object(name)
  local object = self._objects[name]
  if not object then
    self:fail("there is no object '%s'%s", tostring(name), near(name, self._objects))
  end
  return object.get()
end

--- Ends the reading.
function Reader:close()
  for _, close in ipairs(self._open) do close() end
  self._open = {}
end

-- ---- reading

-- Calls fn with the elements of a piece, whose errors get the value's name; then the check that
-- they were whole, or later(check).
local function with_piece(self, name, piece, fn, later)
  local ok, why = pcall(function()
    local t, check = piece.lend()
    fn(t)
    if check and later then later(check) elseif check then check() end
  end)
  if ok then return end
  why = tostring(why):gsub("^[^:\n]*:%d+: ", "")
  if why:find(("%s: '%s': "):format(self.where, self.path), 1, true) then fail("%s", why) end
  self:fail("'%s' in %s: %s", name, piece.file, why)
end

-- Where pieces have elements in common, these must be the same bits.
local function check_same(self, name, piece, theirs, ours, at)
  if theirs.dtype ~= ours.dtype then theirs = theirs:to(ours.dtype) end
  if core._checksum { theirs } == core._checksum { ours } then return end
  self:fail("'%s': %s differ in %s and in another piece of it", name, at, piece.file)
end

local function missing(self, name, value, from, to, before)
  self:fail("'%s': no file has %s of its %.0f%s%s", name, run_text(from, to), value.numel,
    before and ("; %s has those before"):format(before.file) or "", self.lacking or "")
end

-- Runs in the order of their first elements.
local function sorted_runs(value)
  if not value.sorted then
    value.sorted = { unpack(value.runs) }
    table.sort(value.sorted, function(a, b) return a.from < b.from end)
  end
  return value.sorted
end

-- The elements `from` to `to` of a piece, which is a run.
local function part_of_run(t, piece, from, to)
  return t:reshape { piece.n }:narrow(1, from - piece.from + 1, to - from)
end

local function read_runs(self, name, value, from, n, into)
  local at, stop, before = from, from + n, nil
  for _, piece in ipairs(sorted_runs(value)) do
    local first, last = math.max(piece.from, from), math.min(piece.from + piece.n, stop)
    if first >= stop then break end
    if first < last then
      if first > at then missing(self, name, value, at, first, before) end
      local known = math.min(at, last)
      with_piece(self, name, piece, function(t)
        if first < known then
          check_same(self, name, piece, part_of_run(t, piece, first, known),
            into:narrow(1, first - from + 1, known - first), run_text(first, known))
        end
        if known < last then
          into:narrow(1, known - from + 1, last - known):copy_(part_of_run(t, piece, known, last))
        end
      end)
      at, before = math.max(at, last), piece
    end
  end
  if at < stop then missing(self, name, value, at, stop, before) end
end

-- The boxes that a value's pieces consist of. A run consists of several, one after the other.
local function all_boxes(value)
  local list = {}
  for _, piece in ipairs(value.boxes) do list[#list + 1] = { piece = piece, box = piece } end
  for _, piece in ipairs(value.runs) do
    local first = 0
    for _, box in ipairs(boxes.of(value.shape, piece.from, piece.n)) do
      list[#list + 1] = { piece = piece, box = box, first = first }
      first = first + boxes.count(box.sizes)
    end
  end
  return list
end

-- The elements of a box in those of its piece.
local function elements_of(t, entry)
  local sizes = entry.box.sizes
  if not entry.first then return t:reshape(sizes) end
  return t:reshape { entry.piece.n }:narrow(1, entry.first + 1, boxes.count(sizes)):view(sizes)
end

-- Copies `part` of a box into the wanted box's. want.seen is 1 where want.into has its elements.
local function copy_part(self, name, entry, t, want, part)
  local theirs = boxes.view(elements_of(t, entry), entry.box, part)
  local ours, seen = boxes.view(want.into, want.box, part), boxes.view(want.seen, want.box, part)
  if seen:any():item() then
    local old = seen:ne(0)
    check_same(self, name, entry.piece, theirs:masked_select(old), ours:masked_select(old),
      place_text(part))
  end
  ours:copy_(theirs)
  seen:fill_(1)
end

-- The boxes of the wanted run, and where their elements go.
local function wanted_boxes(shape, from, n, into, seen)
  local list, at = {}, 0
  for _, box in ipairs(boxes.of(shape, from, n)) do
    local count = boxes.count(box.sizes)
    list[#list + 1] = { box = box, into = into:narrow(1, at + 1, count):view(box.sizes),
      seen = seen:narrow(1, at + 1, count):view(box.sizes) }
    at = at + count
  end
  return list
end

local function read_boxes(self, name, value, from, n, into)
  local seen = core.zeros({ n }, { dtype = "uint8" })
  local wanted = wanted_boxes(value.shape, from, n, into, seen)
  for _, entry in ipairs(all_boxes(value)) do
    local parts = {}
    for _, want in ipairs(wanted) do
      local part = boxes.meet(want.box, entry.box)
      if part then parts[#parts + 1] = { want, part } end
    end
    if #parts > 0 then
      with_piece(self, name, entry.piece, function(t)
        for _, common in ipairs(parts) do copy_part(self, name, entry, t, common[1], common[2]) end
      end)
    end
  end
  local first = seen:argmin():item()
  if seen[first + 1]:item() == 0 then
    local rest = seen:narrow(1, first + 1, n - first)
    local count = rest:any():item() and rest:argmax():item() or n - first
    missing(self, name, value, from + first, from + first + count)
  end
end

--- Returns `n` elements of a flattened value from element `from` (from 0) on, in the value's dtype
--- or written into `into`. Only these elements are read. Raises, with the value, the file and the
--- range, where some are in no file, or in several that differ.
---@param name string
---@param from integer? default 0
---@param n integer? default: up to its end
---@param into accelerate.Tensor? 1-d, contiguous, of n elements
---@return accelerate.Tensor
function Reader:read(name, from, n, into)
  local value = self:_value(name)
  from = from or 0
  n = n or value.numel - from
  if from < 0 or n < 0 or from + n > value.numel or from % 1 ~= 0 or n % 1 ~= 0 then
    self:fail("'%s' has %.0f elements; asked for %s from %s on", name, value.numel, tostring(n),
      tostring(from))
  end
  local fine, why = pcall(core.empty, into and 0 or n, { dtype = value.dtype })
  if not fine and why:find("no element type", 1, true) then
    self:fail("'%s' is a tensor of %s, which there are none of here", name, value.dtype)
  elseif not fine then
    self:fail("'%s': %s", name, (why:gsub("^[^:\n]*:%d+: ", "")))
  end
  into = into or why
  if n == 0 then return into end
  core.no_grad(function()
    local read = #value.boxes > 0 and read_boxes or read_runs
    read(self, name, value, from, n, into)
  end)
  return into
end

-- The only piece that has all elements of a run, or nil.
local function only_piece(value, from, n)
  local found
  for _, piece in ipairs(#value.boxes == 0 and sorted_runs(value) or {}) do
    if piece.from < from + n and from < piece.from + piece.n then
      if found then return nil end
      found = piece
    end
  end
  return found and found.from <= from and from + n <= found.from + found.n and found or nil
end

--- Returns the same elements for a caller that copies them elsewhere at once: over the mapped file
--- where one piece has them all. Call check() after the copying, and close() then.
---@param name string
---@param from integer
---@param n integer
---@return accelerate.Tensor
function Reader:lend(name, from, n)
  local value = self:_value(name)
  local piece = from >= 0 and n > 0 and only_piece(value, from, n)
  if not piece then return self:read(name, from, n) end
  local result
  with_piece(self, name, piece, function(t) result = part_of_run(t, piece, from, from + n) end,
    function(check) self._lent[#self._lent + 1] = check end)
  return result
end

--- Raises when a file was truncated while lent elements were copied.
function Reader:check()
  for _, check in ipairs(self._lent) do check() end
  self._lent = {}
end

--- Returns a whole value in its shape.
---@param name string
---@return accelerate.Tensor
function Reader:tensor(name) return self:read(name):view(self:shape(name)) end

--- Returns a reader without values.
---@param where string what messages begin with
---@param path string
---@return accelerate.IntervalReader
function M.new(where, path) return Reader(where, path) end

return M
