--- Rows of text in columns.

local M = {}

--- Appends a line for each row to `out`, its cells as wide as the widest of their column.
---@param out string[]
---@param rows string[][]
---@param indent string? default: none
function M.append(out, rows, indent)
  local widths = {}
  for _, row in ipairs(rows) do
    for k, text in ipairs(row) do widths[k] = math.max(widths[k] or 0, #text) end
  end
  for _, row in ipairs(rows) do
    local cells = {}
    for k, text in ipairs(row) do cells[k] = text .. (" "):rep(widths[k] - #text) end
    out[#out + 1] = (indent or "") .. (table.concat(cells, "  "):gsub("%s+$", ""))
  end
end

return M
