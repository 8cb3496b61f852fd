--- Globals that the script reads and nothing has set: `{ lr = misspelt }` is nil, and the default
--- is used without a word.
---
--- Each such name is pointed out once, with the line, where its value goes somewhere. It is left
--- alone where the script tests it (`if name then`, `name or default`, `name == nil`,
--- `type(name)`), where the line raises by itself (`name()`, `name.field`), where the script sets
--- it somewhere, in `_G.name` and rawget, and in files that the script requires.
local bit = require "bit"
local util = require "jit.util"

local funcbc, funck = util.funcbc, util.funck

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
local TESTS = operations {
  ["if x then f() end"] = 2, ["if not x then f() end"] = 2, ["return not x"] = 2,
  ["local a, b b = x or a"] = 3, ["local a, b b = x and a"] = 3,
}
local EQUAL = operations { ["if x == nil then f() end"] = 2, ["if x ~= nil then f() end"] = 2 }
local INDEX = operations { ["return x.y"] = 2, ["return x[1]"] = 2, ["local a; return x[a]"] = 3 }
local CALLS = operations { ["x()"] = 2, ["return x()"] = 2 }

local function constant(fn, d) return funck(fn, -d - 1) end

-- Whether the value that the instruction at `pc` reads into register `r` is tested, or raises by
-- itself.
local function is_harmless(fn, pc, r)
  local before, _, name = decoded(fn, pc - 1)
  if before == GET and constant(fn, name) == "type" then return true end
  local op, a, d = decoded(fn, pc + 1)
  if TESTS[op] and d == r or EQUAL[op] and a == r then return true end
  for at = pc + 1, math.huge do
    local b
    op, a, _, b = decoded(fn, at)
    if not op then return false end
    if INDEX[op] and b == r and at <= pc + 2 then return true end
    if a == r then return CALLS[op] == true end -- else it is used, or the register gets another value
  end
end

-- Whether `line` of fn reads the global `name` and goes on with what it got.
local function uses(fn, line, name)
  for pc = 1, math.huge do
    local op, a, d = decoded(fn, pc)
    if not op then return false end
    local is_read = op == GET and constant(fn, d) == name and util.funcinfo(fn, pc).currentline == line
    if is_read and not is_harmless(fn, pc, a) then return true end
  end
end

-- The globals that a function, or one inside it, sets.
local function set_by(fn, names)
  for pc = 1, math.huge do
    local op, _, d = decoded(fn, pc)
    if not op then break end
    if op == SET then names[constant(fn, d)] = true end
  end
  for k = -1, -math.huge, -1 do
    local value = funck(fn, k)
    if value == nil then return names end
    if type(value) == "proto" then set_by(value, names) end
  end
end

local function names_at(level)
  local names = {}
  for name in next, _G do names[#names + 1] = type(name) == "string" and name or nil end
  for i = 1, 250 do
    local name = debug.getlocal(level + 1, i)
    if not name then break end
    if name:match("^%a") then names[#names + 1] = name end
  end
  return names
end

-- Python's names for Lua's values.
local VALUES = { None = "nil", null = "nil", True = "true", False = "false" }

local function point_out(name, info, level)
  local notice, options = require "accelerate.utils.notice", require "accelerate.utils.options"
  local near = VALUES[name] or options.nearest(name, names_at(level + 1))
  notice.main("%s:%d: the global '%s' is nil: nothing has set it%s", info.short_src, info.currentline, name,
    near and ("; did you mean '%s'?"):format(near) or "")
end

local LOOKS = 16 -- so often a name is looked at; then it costs no more than a lookup in a table

--- Makes what is called as __index of _G.
---@param script function the main chunk
---@return fun(globals: table, name: any): nil
return function(script)
  local source, set = debug.getinfo(script, "S").source, set_by(script, {})
  local looks = {}
  return function(_, name)
    local looked = looks[name] or 0
    if looked >= LOOKS or type(name) ~= "string" or set[name] then return nil end
    looks[name] = looked + 1
    local level = 2
    local info = debug.getinfo(level, "Slf")
    if info and info.what == "C" then -- the host's, which called this one the first time
      level = 3
      info = debug.getinfo(level, "Slf")
    end
    if info and info.source == source and uses(info.func, info.currentline, name) then
      looks[name] = LOOKS
      point_out(name, info, level)
    end
    return nil
  end
end
