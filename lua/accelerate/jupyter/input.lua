--- `io.read` in a cell: the front end shows a field, and each format takes a line of what is typed.
local M = {}

-- What each format of io.read makes of a line (without its end).
local takers = {
  l = function(line) return line end,
  L = function(line) return line .. "\n" end,
  a = function(line) return line .. "\n" end,
  n = function(line) return tonumber(line:match "^%s*(%S+)") end,
}

local function taker(format)
  if type(format) == "number" then return function(line) return line:sub(1, format) end end
  local found = type(format) == "string" and takers[format:match "^%*?(%a)"]
  if found then return found end
  error(('io.read: expected "*l", "*L", "*n", "*a" or a number of characters, got %s'):format(
    tostring(format)), 3)
end

--- Returns what takes the place of `io.read`.
---@param ask fun(): string?, string? gives a line, or nil and why there is none
---@return fun(...: string|integer): any
function M.reader(ask)
  return function(...)
    local formats, results = { ... }, {}
    local n = math.max(#formats, 1)
    for i = 1, n do formats[i] = taker(formats[i] or "*l") end
    for i = 1, n do
      local line, problem = ask()
      if not line then error("io.read: " .. problem, 2) end
      results[i] = formats[i](line)
      if results[i] == nil then break end -- as io.read does at what is no number
    end
    return unpack(results, 1, n)
  end
end

return M
