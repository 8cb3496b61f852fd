--- Errors of functions that are made of others: they name the one that was called.
local options = require "accelerate.utils.options"

local M = {}

local function finish(name, inside, ok, ...)
  if ok then return ... end
  local result = (...)
  local message, found = tostring(result):gsub("\nstack traceback:.*", ""), false
  for _, op in ipairs(inside) do
    local count
    message, count = message:gsub("^.-%f[%w_]" .. op .. ": ", "")
    found = found or count > 0
  end
  if not found then error(result, 0) end
  options.fail("%s: %s", name, message)
end

--- Returns fn(...). An error that begins with the name of an op in `inside` gets `name` in its
--- place.
---@param name string
---@param inside string[]
---@param fn function
---@param ... any
---@return any ...
function M.call(name, inside, fn, ...) return finish(name, inside, pcall(fn, ...)) end

--- A function that calls fn in this way.
---@param name string
---@param inside string[]
---@param fn function
---@return function
function M.wrap(name, inside, fn)
  return function(...) return finish(name, inside, pcall(fn, ...)) end
end

return M
