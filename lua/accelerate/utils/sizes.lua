--- Sizes in bytes as people read them: the one place that writes KB, MB and GB, which are 1000,
--- 10^6 and 10^9 bytes.
local M = {}

local UNITS = { { 1e15, "%.2f PB" }, { 1e12, "%.2f TB" }, { 1e9, "%.2f GB" }, { 1e6, "%.1f MB" },
  { 1e3, "%.1f KB" } }

--- Returns a number of bytes as text: "512 bytes", "52.4 MB", "1.07 GB".
---@param bytes number may be negative, for a difference
---@return string
function M.text(bytes)
  local size = math.abs(bytes)
  for _, unit in ipairs(UNITS) do
    if size >= unit[1] then return unit[2]:format(bytes / unit[1]) end
  end
  return ("%.0f bytes"):format(bytes)
end

return M
