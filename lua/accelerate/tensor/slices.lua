--- The different slices of a dim.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local M = {}

-- The rows' positions in the order of their elements, the first one first. A stable sort by each
-- column from the last to the first leaves them so.
local function row_order(rows)
  local order = core.arange(rows.shape[1], { device = rows.device })
  for column = rows.shape[2], 1, -1 do
    local keys = rows:select(2, column):index_select(1, order)
    order = order:index_select(1, keys:argsort(1))
  end
  return order
end

--- The different slices of dim, in rising order where `ordered`, else without repetitions of the
--- slice before; where each slice went; how many there were: what is
--- not wanted is left out.
function M.unique(x, dim, return_inverse, return_counts, ordered)
  if x.ndim == 0 then
    options.fail("%s: dim is %d, and x has no dims", ordered and "unique" or "unique_consecutive", dim)
  end
  local n = x.shape[dim]
  local moved = x.ndim > 1 and x:movedim(dim, 1) or x
  local rows = moved:reshape(n, n > 0 and -1 or 0)
  local order
  if ordered then
    order = row_order(rows.dtype == "bool" and rows:to("uint8") or rows)
    rows, moved = rows:index_select(1, order), moved:index_select(1, order)
  end
  local first = core.ones({ n }, { dtype = "bool", device = x.device })
  if n > 1 then
    first:narrow(1, 2, n - 1):copy_(rows:narrow(1, 2, n - 1):ne(rows:narrow(1, 1, n - 1)):any(2))
  end
  local group = first:long():cumsum(1) - 1
  local values = moved[first]
  if x.ndim > 1 then values = values:movedim(1, dim) end
  local inverse = order and core.empty_like(group):index_copy_(1, order, group) or group
  local results = { values }
  if return_inverse then results[2] = inverse end
  if return_counts then results[#results + 1] = group:bincount() end
  return unpack(results)
end

return M
