--- What chunks gave: _, _1, _2, ... and their text.
local M = {}

local last = 0 -- how many of _1, _2, ... are set

--- Sets _ and its like.
---@param results any[] with their number as n
function M.keep(results)
  if results.n == 0 or results.n == 1 and results[1] == nil then return end
  rawset(_G, "_", results[1])
  for i = 1, math.max(results.n, last) do rawset(_G, "_" .. i, results[i]) end
  last = results.n
end

--- Returns the values as the prompt shows them.
---@param results any[] with their number as n
---@param options table those of utils.pformat
---@return string
function M.text(results, options)
  local texts, wide = {}, false
  for i = 1, results.n do
    texts[i] = require("accelerate.utils.show").pformat(results[i], options)
    wide = wide or texts[i]:find("\n", 1, true) ~= nil
  end
  return table.concat(texts, wide and "\n" or "\t")
end

return M
