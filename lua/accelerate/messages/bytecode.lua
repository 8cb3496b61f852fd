--- What a script does with a name that it has just read, as its compiled form says: whether the
--- value is tested (`if x.name then`, `x.name or y`, `x.name == nil`, `type(x.name)`), raises by
--- itself (`x.name()`, `x.name.y`), or goes somewhere.
local bit = require "bit"
local util = require "jit.util"

local funcbc, funck = util.funcbc, util.funck

local M = {}

-- An instruction's operation and operands, as LuaJIT lays them out: A in byte 1; D in the upper
-- half, or C and B in its two bytes.
---@return integer? op
---@return integer a
---@return integer d
---@return integer b
local function decoded(fn, pc)
  local ins = funcbc(fn, pc)
  if not ins then return nil end
  return bit.band(ins, 0xff), bit.band(bit.rshift(ins, 8), 0xff), bit.rshift(ins, 16), bit.rshift(ins, 24)
end

-- The operation at `pc` of a piece of Lua. Operations have other numbers in other versions of
-- LuaJIT: they are read from samples.
local function operation(code, pc) return (decoded(loadstring(code), pc)) end

local function operations(samples)
  local set = {}
  for code, pc in pairs(samples) do set[operation(code, pc)] = true end
  return set
end

local GET, SET = operation("return x", 1), operation("x = 1", 2)
local FIELD = operation("local x; return x.y", 2)
local TESTS = operations {
  ["if x then f() end"] = 2, ["if not x then f() end"] = 2, ["return not x"] = 2,
  ["local a, b b = x or a"] = 3, ["local a, b b = x and a"] = 3,
}
local EQUAL = operations { ["if x == nil then f() end"] = 2, ["if x ~= nil then f() end"] = 2 }
local INDEX = operations { ["return x.y"] = 2, ["return x[1]"] = 2, ["local a; return x[a]"] = 3 }
local CALLS = operations { ["x()"] = 2, ["return x()"] = 2 }

local function constant(fn, d) return funck(fn, -d - 1) end

local function is_type(fn, pc)
  local op, _, name = decoded(fn, pc)
  return op == GET and constant(fn, name) == "type"
end

-- Whether the value that the instruction at `pc` reads into register `r` is compared with nil, or
-- its type is read.
local function is_nil_test(fn, pc, r)
  if is_type(fn, pc - 1) or is_type(fn, pc - 2) then return true end
  local op, a = decoded(fn, pc + 1)
  return EQUAL[op] and a == r or false
end

-- Whether it is tested in any way, or raises by itself.
local function is_harmless(fn, pc, r)
  if is_nil_test(fn, pc, r) then return true end
  local after, _, tested = decoded(fn, pc + 1)
  if TESTS[after] and tested == r then return true end
  for at = pc + 1, math.huge do
    local op, a, _, b = decoded(fn, at)
    if not op then return false end
    if INDEX[op] and b == r and at <= pc + 2 then return true end
    if a == r then return CALLS[op] == true end -- else it is used, or the register gets another value
  end
end

-- Whether a line of fn reads `name` by the operation, and none of these reads is `harmless`.
local function reads(fn, line, name, operation_of_read, harmless)
  local found = false
  for pc = 1, math.huge do
    local op, a, d = decoded(fn, pc)
    if not op then return found end
    if op == operation_of_read and util.funcinfo(fn, pc).currentline == line then
      local index = op == FIELD and bit.band(d, 0xff) or d
      if constant(fn, index) == name then
        if harmless(fn, pc, a) then return false end
        found = true
      end
    end
  end
end

--- Returns whether a line of fn reads the global `name` and goes on with what it got.
---@param fn function
---@param line integer
---@param name string
---@return boolean
function M.uses_global(fn, line, name) return reads(fn, line, name, GET, is_harmless) end

--- Returns whether a line of fn reads the global `name`, other than to compare it with nil or to
--- read its type.
---@param fn function
---@param line integer
---@param name string
---@return boolean
function M.relies_on_global(fn, line, name) return reads(fn, line, name, GET, is_nil_test) end

--- Returns whether a line of fn reads a field `name` and goes on with what it got.
---@param fn function
---@param line integer
---@param name string
---@return boolean
function M.uses_field(fn, line, name) return reads(fn, line, name, FIELD, is_harmless) end

--- Returns the registers from which a line of fn reads a field `name`, from 1: as debug.getlocal
--- counts.
---@param fn function
---@param line integer
---@param name string
---@return integer[]
function M.owners(fn, line, name)
  local list = {}
  for pc = 1, math.huge do
    local op, _, d, b = decoded(fn, pc)
    if not op then return list end
    if op == FIELD and util.funcinfo(fn, pc).currentline == line
      and constant(fn, bit.band(d, 0xff)) == name then
      list[#list + 1] = b + 1
    end
  end
end

--- Adds the globals that a function, or one inside it, sets to `names`.
---@param fn function
---@param names table<string, true>
---@return table<string, true> names
function M.set_globals(fn, names)
  for pc = 1, math.huge do
    local op, _, d = decoded(fn, pc)
    if not op then break end
    if op == SET then names[constant(fn, d)] = true end
  end
  for k = -1, -math.huge, -1 do
    local value = funck(fn, k)
    if value == nil then return names end
    if type(value) == "proto" then M.set_globals(value, names) end
  end
end

return M
