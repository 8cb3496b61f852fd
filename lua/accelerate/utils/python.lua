--- What PyTorch's files have that a plain table cannot say: notes beside tables, which change
--- nothing about them. The reader of such files makes the notes, and so do optimizers and
--- schedulers where PyTorch's expect None or a Counter; the writer follows them.
local M = {}

local notes = setmetatable({}, { __mode = "k" })

---@class accelerate.utils.PythonNote
---@field nones table<any, true>? keys at which PyTorch has None: numbers in a list, where false
---  stands; text or booleans in another table, which has nothing there
---@field kind "Counter"|"set"|nil what PyTorch has for the whole table

local function note_of(t)
  local note = notes[t]
  if not note then
    note = {}
    notes[t] = note
  end
  return note
end

--- Notes that PyTorch has None at a key. A value that the table gets there later counts.
---@generic T: table
---@param t T
---@param key string|number|boolean
---@return T t
function M.none(t, key)
  local note = note_of(t)
  note.nones = note.nones or {}
  note.nones[key] = true
  return t
end

--- Notes that PyTorch has a collections.Counter: of the entries of a list, or with the numbers that
--- a table from ordered.new holds.
---@generic T: table
---@param t T
---@return T t
function M.counter(t)
  note_of(t).kind = "Counter"
  return t
end

--- Notes that PyTorch has a set of the entries of a list.
---@generic T: table
---@param t T
---@return T t
function M.set(t)
  note_of(t).kind = "set"
  return t
end

--- Returns what is noted beside a table.
---@param t table
---@return accelerate.utils.PythonNote?
function M.of(t) return notes[t] end

--- Notes beside a copy what is noted beside a table.
---@param from table
---@param to table
function M.copy(from, to)
  local note = notes[from]
  if not note then return end
  local made = note_of(to)
  made.kind = note.kind
  for key in next, note.nones or {} do M.none(to, key) end
end

return M
