--- Names that nothing has: globals that nothing has set, and fields that an object of this library
--- does not have. In a strict run (`accel-run --strict`, `ACCEL_STRICT`, `accelerate.strict()`)
--- reading one raises; otherwise some are pointed out, once.
---
--- Reads of this library and of modules outside the script's folder are left alone.
local bytecode = require "accelerate.messages.bytecode"

local M = {}

local LIBRARY = debug.getinfo(1, "S").source:match("^(@.*[/\\])messages[/\\]strictness%.lua$")
local LOOKS = 16 -- so often a name is looked at; then it costs no more than a lookup in a table
local SHORT = 4 -- letters of a field that is not pointed out: too many names are near it

local given = os.getenv("ACCEL_STRICT")
local strict = given ~= nil and given ~= "" and given ~= "0" and given:lower() ~= "false"

--- Returns whether the run is strict.
---@return boolean
function M.is_strict() return strict end

-- ---- who reads

-- Whether a source is the script's: the script, what it was typed as, or a file of its folder.
local function is_own(source)
  if source:sub(1, #LIBRARY) == LIBRARY or source == "=pcall" then return false end
  if source:sub(1, 1) ~= "@" then return true end
  local folder = arg and arg[0] and arg[0]:match("^(.*/)") or ""
  local path = source:sub(2):gsub("^%./", "")
  if folder == "" or folder == "./" then return path:sub(1, 1) ~= "/" end
  return path:sub(1, #folder) == folder
end

-- The level of the function that read a name, as the one that calls this one counts: above the
-- metamethods.
local function reader()
  local inside = false -- __index
  for level = 2, 12 do
    local info = debug.getinfo(level, "Slfn")
    if not info then return nil end
    local is_index = info.namewhat == "metamethod" and info.name == "__index"
    if inside and not is_index then return level - 1, info end
    inside = is_index
  end
end

local function fail(info, message)
  error(("%s:%d: %s"):format(info.short_src, info.currentline, message), 0)
end

local function meant(near) return near and ("; did you mean '%s'?"):format(near) or "" end

-- ---- globals

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

local function near_global(name, level)
  return VALUES[name] or require("accelerate.utils.options").nearest(name, names_at(level + 1))
end

--- Raises in a strict run where a script reads a global that nothing has set.
---@param name any
function M.missed_global(name)
  if not strict or type(name) ~= "string" then return end
  local level, info = reader()
  if not level or not is_own(info.source) or
    not bytecode.relies_on_global(info.func, info.currentline, name) then
    return
  end
  fail(info, ("the global '%s' is nil: nothing has set it%s"):format(name, meant(near_global(name, level))))
end

--- Makes what points out globals that the script reads, and whose value goes somewhere: what is
--- called as __index of _G. A name is left alone where the script sets it somewhere, in `_G.name`
--- and rawget, and in files that the script requires.
---@param script function the main chunk
---@return fun(globals: table, name: any): nil
function M.watcher(script)
  local source, set = debug.getinfo(script, "S").source, bytecode.set_globals(script, {})
  local looks = {}
  return function(_, name)
    if strict then return M.missed_global(name) end
    local looked = looks[name] or 0
    if looked >= LOOKS or type(name) ~= "string" or set[name] then return nil end
    looks[name] = looked + 1
    local level, info = reader()
    if level and info.source == source and bytecode.uses_global(info.func, info.currentline, name) then
      looks[name] = LOOKS
      require("accelerate.messages.notice").main("%s:%d: the global '%s' is nil: nothing has set it%s",
        info.short_src, info.currentline, name, meant(near_global(name, level)))
    end
    return nil
  end
end

-- ---- fields

local looks = {} -- field -> how often it was looked at

-- The object of the script's that lacks the field: what it read the field from.
local function owner(level, info, key)
  for _, register in ipairs(bytecode.owners(info.func, info.currentline, key)) do
    local _, value = debug.getlocal(level + 1, register)
    if type(value) == "table" and value ~= _G then return value end
  end
end

local function about_field(object, key)
  local explain, options = require "accelerate.messages.explain", require "accelerate.utils.options"
  local near = options.misspelt(key, explain.names_of(object))
  return ("%s has no '%s'"):format(explain.title(object) or "the object", key), near
end

local function look(Class, key)
  local level, info = reader()
  if not level or not is_own(info.source) or not bytecode.uses_field(info.func, info.currentline, key) then
    return
  end
  local message, near = about_field(owner(level, info, key) or Class, key)
  if strict then fail(info, message .. meant(near)) end
  if not near or #key < SHORT then return end
  looks[key] = LOOKS
  require("accelerate.messages.notice").main("%s:%d: %s: it is nil%s", info.short_src, info.currentline,
    message,
    meant(near))
end

--- Called where no class of an object has a field: raises in a strict run, and otherwise points the
--- field out once where another name is near it; where a script reads it and goes on with its
--- value.
---@param Class table the outermost class
---@param key any
function M.missed_field(Class, key)
  if type(key) ~= "string" then return end
  local looked = looks[key] or 0
  if looked >= LOOKS and not strict or key:byte() == 95 then return end -- "_"
  looks[key] = looked + 1
  look(Class, key)
end

-- ---- switching on

--- Makes the run strict, or not: reading a global that nothing has set, or a field that an object
--- of the library does not have, is an error, in the script and in the files of its folder. A field
--- may be tested (`if m.bias then`), a global be compared with nil, or its type be read.
---@param on? boolean default true
function M.strict(on)
  if on ~= nil and type(on) ~= "boolean" then
    require("accelerate.utils.options").fail("strict: expected true or false, got %s",
      require("accelerate.utils.options").show(on))
  end
  strict = on ~= false
  if not strict then return end
  local meta = debug.getmetatable(_G) or {}
  if meta.__index == nil then meta.__index = function(_, name) M.missed_global(name) end end
  debug.setmetatable(_G, meta)
end

return M
