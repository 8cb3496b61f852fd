--- Checks of arguments, and of the fields of decoded JSON files.
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

--- Raises "'path': ...".
function M.fail(file, format, ...) options.fail("tokenizers: '%s': " .. format, file, ...) end

local KINDS = { list = "table", map = "table" }

--- Returns field `name` of `t` after a look at its type, or `default` when it is absent.
--- Raises when it is absent and there is no default.
---@param file string for messages
---@param where string for messages: where `t` stands in the file
---@param t table
---@param name string|integer
---@param kind "string"|"number"|"integer"|"boolean"|"list"|"map"
---@param default any
function M.field(file, where, t, name, kind, default)
  local value = t[name]
  if value == nil then
    if default == nil then M.fail(file, "%s: %s is missing (expected a %s)", where, tostring(name), kind) end
    return default
  end
  local fits = type(value) == (KINDS[kind] or (kind == "integer" and "number") or kind)
  if kind == "integer" and fits then fits = value % 1 == 0 end
  if not fits then
    M.fail(file, "%s: %s must be a %s, got %s", where, tostring(name), kind, show(value))
  end
  return value
end

--- The `type` of a part of the file, which must be one of the keys of `known`.
---@return any known[type]
---@return string type
function M.kind(file, where, t, known)
  local name = M.field(file, where, t, "type", "string")
  local found = rawget(known, name)
  if found == nil then
    local names = {}
    for key in pairs(known) do names[#names + 1] = key end
    table.sort(names)
    M.fail(file, "%s: the type '%s' is not supported%s; supported are %s", where, name:sub(1, 60),
      options.nearest(name, names) and options.hint(name, names) or "", table.concat(names, ", "))
  end
  return found, name
end

--- Returns a list of strings, or raises. `what` names the argument.
---@param where string
---@param what string
---@param value any
---@return string[] value
function M.texts(where, what, value)
  if type(value) ~= "table" or getmetatable(value) then
    fail("%s: %s must be a string or a list of strings, got %s", where, what, show(value))
  end
  for i = 1, #value do
    if type(value[i]) ~= "string" then
      fail("%s: %s[%d] must be a string, got %s", where, what, i, show(value[i]))
    end
  end
  return value
end

return M
