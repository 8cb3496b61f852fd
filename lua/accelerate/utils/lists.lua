--- Plain lists.
local M = {}

--- Returns whether two lists, shapes say, have the same entries.
---@param a any[]
---@param b any[]
---@return boolean
function M.same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

--- Splits a line at its tabs.
---@param line string
---@return string[] fields one more than there are tabs
function M.fields(line)
  local fields = {}
  for field in (line .. "\t"):gmatch "([^\t]*)\t" do fields[#fields + 1] = field end
  return fields
end

return M
