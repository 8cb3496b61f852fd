--- What stands in a pickle's value, while it is read, for what Lua has not.
local M = {}

--- Returns a table that stands for what Lua has not: a name, a storage, a NumPy dtype or array,
--- what is lost. Its metatable lets the last check of a value find it.
---@param kind "None"|"mark"|"name"|"storage"|"key"|"numpy.dtype"|"numpy.ndarray"|"lost"
---@param name any of a lost one: what messages call it
---@return table
function M.stand_in(kind, name) return setmetatable({ name = name }, { __name = kind }) end

--- Returns the kind of a stand-in, or the type of a value.
---@param v any
---@return string
function M.kind_of(v)
  local meta = type(v) == "table" and getmetatable(v)
  return meta and rawget(meta, "__name") or type(v)
end

--- Returns what messages call a stand-in, or another value that is no data.
---@param v any
---@return string
function M.describe(v)
  local kind = M.kind_of(v)
  if kind == "lost" then return v.name end
  return kind == "name" and "Python's " .. v.name or "a " .. kind
end

--- Returns the stand-in of what is lost; its name is a format with its arguments.
---@param text string
---@return table
function M.lost(text, ...) return M.stand_in("lost", text:format(...)) end

return M
